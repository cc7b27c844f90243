package harness

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestProcess: AwaitOutput returns as soon as the process writes a matching line, and fails with the exit status if the
// process ends first.
func TestProcess(t *testing.T) {
	p := shell(t, `echo ready; exec sleep 60`)
	if _, err := p.AwaitOutput(t.Context(), regexp.MustCompile(`(?m)^ready$`)); err != nil {
		t.Fatal(err)
	}
	dead := shell(t, `echo no such file >&2; exit 3`)
	_, err := dead.AwaitOutput(t.Context(), regexp.MustCompile(`ready`))
	if !errors.Is(err, ErrExited) || !strings.Contains(err.Error(), "exit status 3\nno such file") {
		t.Errorf("wait for a process that failed: %v", err)
	}
	if got := dead.Tail(1); len(got) != 1 || got[0] != "no such file" {
		t.Errorf("last line: %q", got)
	}
}

// TestStop: Stop ends a process that handles SIGTERM. A process that ignores SIGTERM is killed, and Stop returns an
// error.
func TestStop(t *testing.T) {
	for _, c := range []struct {
		name, script string
		grace        time.Duration
		ignores      bool
	}{
		{"handles SIGTERM", `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`, time.Minute, false},
		{"ignores SIGTERM", `trap '' TERM; echo ready; while :; do sleep 0.01; done`, time.Second, true},
	} {
		p := shell(t, c.script)
		if _, err := p.AwaitOutput(t.Context(), regexp.MustCompile(`ready`)); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(c.grace); (err != nil) != c.ignores {
			t.Errorf("%s: %v", c.name, err)
		}
		select {
		case <-p.Done():
		default:
			t.Errorf("%s: still running after Stop", c.name)
		}
	}
}

// TestUntil: at the deadline, Until returns the error of the last check.
func TestUntil(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	missing := errors.New("no listener")
	if err := Until(ctx, func(context.Context) error { return missing }); !errors.Is(err, missing) || !errors.Is(
		err, context.DeadlineExceeded,
	) {
		t.Errorf("gave up with %v", err)
	}
}

// TestSum: sum adds all series of the given metric, and no others.
func TestSum(t *testing.T) {
	page := `# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{name="a b",direction="rx"} 2
calls_total{name="c"} 1.5e1
calls_total_more 7
idle 0
`
	for name, want := range map[string]float64{"calls_total": 17, "idle": 0, "calls_total_more": 7} {
		if got, err := Sum(page, name); err != nil || got != want {
			t.Errorf("%s: got %g, %v; want %g", name, got, err, want)
		}
	}
	if _, err := Sum(page, "calls"); !errors.Is(err, ErrNoMetric) {
		t.Errorf("absent metric: %v", err)
	}
}

// TestPrepare: the copied quickstart differs from the original in the port numbers only.
func TestPrepare(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	ports, err := FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	stack := Stack{Dir: t.TempDir(), Ports: ports}
	source := filepath.Join(root, "docs/examples/quickstart")
	if err := stack.Prepare(source); err != nil {
		t.Fatal(err)
	}
	back := Stack{Dir: t.TempDir(), Ports: quickstart()}
	if err := back.Prepare(source); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gateway.yaml", "udproute.yaml", "echo.yaml"} {
		original, moved := read(t, source, name), read(t, stack.Input(), name)
		if original == moved {
			t.Errorf("%s: ports did not change", name)
		}
		if copied := read(t, back.Input(), name); copied != original {
			t.Errorf("%s: the copy on the original ports differs", name)
		}
	}
}

// TestInstallTakesNoSpace: an installed program is a link to the built one. If a later build has replaced the built
// program, the installed program is a copy of the program that this process has built.
func TestInstallTakesNoSpace(t *testing.T) {
	dir := t.TempDir()
	source, linked, copied := filepath.Join(dir, "built"), filepath.Join(dir, "linked"), filepath.Join(dir, "copied")
	if err := os.WriteFile(source, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if err := install(program, linked); err != nil {
		t.Fatal(err)
	}
	before, beforeErr := os.Stat(source)
	after, afterErr := os.Stat(linked)
	if err := errors.Join(beforeErr, afterErr); err != nil || !os.SameFile(before, after) {
		t.Errorf("the installed program is not a link to the built one: %v", err)
	}
	if err := errors.Join(os.Remove(source), os.Remove(linked), install(program, copied)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "copied"); got != "program" {
		t.Errorf("copied %q", got)
	}
}

// TestLaterBuildLeavesPrograms: the file of a program does not change when another process builds the same program.
func TestLaterBuildLeavesPrograms(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	var infos []os.FileInfo
	for range 2 {
		b := built{files: map[string]*os.File{}}
		programs, err := b.open(t.Context(), root, []string{Echo})
		if err != nil {
			t.Fatal(err)
		}
		defer programs[0].Close()
		info, err := programs[0].Stat()
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	if !os.SameFile(infos[0], infos[1]) || !infos[0].ModTime().Equal(infos[1].ModTime()) {
		t.Errorf("%s at %s, then %s at %s", infos[0].Name(), infos[0].ModTime(), infos[1].Name(), infos[1].ModTime())
	}
}

// TestPortsAreGivenOnce: a port that one suite has been given is not given again while that suite runs, although the
// port is not bound yet.
func TestPortsAreGivenOnce(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if !isFree(port) {
		t.Errorf("port %d is in use", port)
	}
	if claim(port) {
		t.Errorf("port %d is given twice", port)
	}
	if l, err := net.Listen("unix", "@stunner-port-"+strconv.Itoa(port)); err == nil {
		l.Close()
		t.Errorf("another process can claim port %d", port)
	}
}

// TestPairIsGivenOnce: both ports of a pair are reserved.
func TestPairIsGivenOnce(t *testing.T) {
	first, err := FreePair()
	if err != nil {
		t.Fatal(err)
	}
	if claim(first) || claim(first+1) {
		t.Errorf("port %d or the next one is given twice", first)
	}
}

// TestFreePortCanBeBoundWhileProgramsStart: no program that starts at the same time keeps a free port occupied.
func TestFreePortCanBeBoundWhileProgramsStart(t *testing.T) {
	ended := make(chan struct{})
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		})
	}
	for range 300 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", at(port))
		if err != nil {
			t.Error(err)
			continue
		}
		l.Close()
	}
	close(ended)
	starts.Wait()
}

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Logs: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
