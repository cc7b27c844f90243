package stunnerctl

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// shells are the command lines of interactive shells that read no files of the user, and their setup. In both, Ctrl-X
// prints the edited line and clears it.
var shells = map[string]struct{ command, setup string }{
	"bash": {"bash --norc --noprofile -i", `
source /usr/share/bash-completion/bash_completion
source <(stunnerctl completion bash)
bind 'set bell-style none'
bind -x '"\C-x": echo "<$READLINE_LINE>"; READLINE_LINE='
`},
	"zsh": {"zsh -f -i", `
autoload -U compinit && compinit -u -D
source <(stunnerctl completion zsh)
show() { print -r -- "<$BUFFER>"; BUFFER= }
zle -N show
bindkey '^X' show
`},
}

// In a terminal with bash or zsh, the Tab key completes commands, flags, their values, and Gateways of a folder.
func TestCompletion(t *testing.T) {
	programs, home := harnesstest.Build(t, harness.Stunnerctl), t.TempDir()
	status := filepath.Join(home, "out/status")
	harnesstest.NoError(t, os.MkdirAll(status, 0o700))
	write := func(path, text string) {
		harnesstest.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, name := range []string{"front-door", "side-door"} {
		write(filepath.Join(status, name+".yaml"), "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n"+
			"metadata: {namespace: meet, name: "+name+"}\n")
	}
	for name, shell := range shells {
		t.Run(name, func(t *testing.T) {
			write(filepath.Join(home, name+".setup"), shell.setup)
			x := startTerminal(t, shell.command, home, "PATH="+programs+":"+os.Getenv("PATH"))
			x.send("source " + name + ".setup; echo ready $((6*7))\n")
			x.until(`ready 42`)
			for _, line := range []struct{ typed, want string }{
				{"stat\t", "status"},
				{"config du\t", "config dump"},
				{"status --all-namespaces\t", "status --all-namespaces"},
				{"sessions --sin\t", "sessions --since"},
				{"status -o y\t", "status -o yaml"},
				{"--folder out status meet/fr\t", "--folder out status meet/front-door"},
				{"--folder out why me\ts\t", "--folder out why meet/side-door"},
				{"--folder out status -n m\t", "--folder out status -n meet"},
			} {
				x.send("stunnerctl " + line.typed + "\x18")
				if got := strings.TrimRight(x.until(`<stunnerctl ([^>\n]*)>`), " ="); got != line.want {
					t.Errorf("%q is completed to %q, want %q", line.typed, got, line.want)
				}
			}
		})
	}
}

// terminal is a program on a pseudo terminal.
type terminal struct {
	*testing.T
	in  io.Writer
	out *os.File
}

func startTerminal(t *testing.T, command, dir, path string) terminal {
	t.Helper()
	c := exec.Command("script", "--quiet", "--flush", "--return", "--command", command, "/dev/null")
	c.Dir, c.Env = dir, []string{path, "HOME=" + dir, "TERM=dumb", "LANG=C.UTF-8", "SHELL=/bin/bash"}
	in, err := c.StdinPipe()
	harnesstest.NoError(t, err)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	harnesstest.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Process.Kill() // closes the terminal, which ends the shell
		_ = c.Wait()
	})
	return terminal{t, in, out.(*os.File)}
}

func (x terminal) send(keys string) {
	x.Helper()
	if _, err := io.WriteString(x.in, keys); err != nil {
		x.Fatal(err)
	}
}

// until reads until a pattern matches, and returns its last group.
func (x terminal) until(pattern string) string {
	x.Helper()
	if err := x.out.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		x.Fatal(err)
	}
	var seen []byte
	buf := make([]byte, 4096)
	for {
		n, err := x.out.Read(buf)
		seen = append(seen, buf[:n]...)
		if m := regexp.MustCompile(pattern).FindSubmatch(seen); m != nil {
			return string(m[len(m)-1])
		}
		if err != nil {
			x.Fatalf("no %s in %q: %v; .ci/install installs the shells", pattern, seen, err)
		}
	}
}
