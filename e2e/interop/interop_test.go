// Package interop lets clients that nobody here wrote use the dataplane: those of coturn.
package interop

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// TestInterop: coturn's clients get what they ask for, over every transport and with both kinds of credentials, and lose nothing.
func TestInterop(t *testing.T) {
	root, err := bed.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := bed.Build(t.Context(), root, bin, bed.Stunnerd, bed.Echo); err != nil {
		t.Fatal(err)
	}
	plain := func(d dataplane) int { return d.turn }
	secure := func(d dataplane) int { return d.secure }
	transports := []struct {
		name string
		args []string
		port func(dataplane) int
	}{
		{"UDP", nil, plain},
		{"UDP, without channels", []string{"-s"}, plain},
		{"TCP", []string{"-t"}, plain},
		{"TLS", []string{"-t", "-S"}, secure},
		{"DTLS", []string{"-S"}, secure},
	}
	for _, c := range []struct {
		name, auth string
		credential []string // arguments of the client
	}{
		{"static", `{type: static, realm: interop.example.org, credentials: {username: carol, password: sings-alto}}`,
			[]string{"-u", "carol", "-w", "sings-alto"}},
		{"ephemeral", `{type: ephemeral, realm: interop.example.org, credentials: {secret: shared-by-two}}`,
			[]string{"-u", "carol", "-W", "shared-by-two"}},
	} {
		d := start(t, bin, c.auth)
		for _, transport := range transports {
			t.Run(c.name+" credentials over "+transport.name, func(t *testing.T) {
				relay(t, d, slices.Concat(c.credential, transport.args, []string{"-p", strconv.Itoa(transport.port(d))})...)
			})
		}
		t.Run("wrong password for "+c.name+" credentials", func(t *testing.T) {
			out, err := client(t, "turnutils_uclient", uclient(d, "-u", "carol", "-w", "guessed", "-p", strconv.Itoa(d.turn))...)
			if err == nil || !strings.Contains(out, "Cannot complete Allocation") {
				t.Errorf("not refused: %v\n%s", err, out)
			}
		})
		t.Run("binding request beside "+c.name+" credentials", func(t *testing.T) { binding(t, d) })
	}
}

// messages that a client sends in a run, and how many clients there are at a time.
const (
	messages = 50
	clients  = 4
)

// Figures that the client prints.
var (
	lostPattern     = regexp.MustCompile(`Total lost packets (\d+) \(([0-9.]+)%\)`)
	receivedPattern = regexp.MustCompile(`tot_recv_msgs=(\d+)`)
)

// relay runs coturn's client against the echo peer: everything that it sends comes back. The client waits most of its time.
func relay(t *testing.T, d dataplane, args ...string) {
	t.Parallel()
	out, err := client(t, "turnutils_uclient", uclient(d, args...)...)
	if err != nil {
		t.Fatalf("client failed: %v\n%s", err, out)
	}
	lost := lostPattern.FindStringSubmatch(out)
	if lost == nil {
		t.Fatalf("client does not say what was lost:\n%s", out)
	}
	received := receivedPattern.FindAllStringSubmatch(out, -1)
	if lost[1] != "0" || len(received) == 0 || received[len(received)-1][1] != strconv.Itoa(messages*clients) {
		t.Errorf("lost %s packets (%s %%), want 0 of %d:\n%s", lost[1], lost[2], messages*clients, out)
	}
}

// uclient are the arguments for echoed traffic through the dataplane: -y would make clients talk to each other, -c leaves RTCP out.
func uclient(d dataplane, more ...string) []string {
	args := append([]string{"-c"}, more...)
	return append(args,
		"-n", strconv.Itoa(messages), "-m", strconv.Itoa(clients), "-l", "170",
		"-e", bed.Loopback, "-r", strconv.Itoa(d.peer), bed.Loopback)
}

// binding asks for the client's own address.
func binding(t *testing.T, d dataplane) {
	out, err := client(t, "turnutils_stunclient", "-p", strconv.Itoa(d.turn), bed.Loopback)
	if err != nil || !strings.Contains(out, "UDP reflexive addr: "+bed.Loopback) {
		t.Errorf("no reflexive address: %v\n%s", err, out)
	}
}

// client runs one of coturn's programs.
func client(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%s is not installed: run `sudo apt-get install --yes coturn`", name)
	}
	return string(out), err
}

// dataplane is the ports of a running stunnerd, and of the echo peer that it may reach.
type dataplane struct {
	turn   int // UDP and TCP
	secure int // DTLS and TLS
	peer   int
	health int
}

// document is the config of a dataplane, without its authentication. The client binds a channel to the next port too, where RTCP
// would be, and takes no refusal.
var document = template.Must(template.New("config").Parse(`version: v1
admin:
  name: interop/door
  healthcheck_endpoint: http://{{.Host}}:{{.Health}}
auth: {{.Auth}}
listeners:
  - {name: interop/door/udp, protocol: TURN-UDP, address: {{.Host}}, port: {{.Turn}}, routes: [interop/echo]}
  - {name: interop/door/tcp, protocol: TURN-TCP, address: {{.Host}}, port: {{.Turn}}, routes: [interop/echo]}
  - {name: interop/door/dtls, protocol: TURN-DTLS, address: {{.Host}}, port: {{.Secure}}, cert: {{.Cert}}, key: {{.Key}}, routes: [interop/echo]}
  - {name: interop/door/tls, protocol: TURN-TLS, address: {{.Host}}, port: {{.Secure}}, cert: {{.Cert}}, key: {{.Key}}, routes: [interop/echo]}
clusters:
  - {name: interop/echo, type: STATIC, endpoints: ["{{.Host}}:<{{.Peer}}-{{.RTCP}}>"]}
`))

// start runs an echo peer and a dataplane until the test ends.
func start(t *testing.T, bin, auth string) dataplane {
	t.Helper()
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	stack := bed.Stack{Bin: bin, Dir: dir, Ports: ports}
	if err := os.Mkdir(stack.Logs(), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := stack.StartEcho(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stack.Echo.Kill() })

	d := dataplane{turn: ports.TURN, secure: ports.Auth, peer: ports.Datagrams, health: ports.AuthHealth}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, d.config(t, auth), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := bed.Start(bed.Command{Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Args: []string{"-c", file}, Logs: stack.Logs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of stunnerd:\n%s", strings.Join(p.Tail(40), "\n"))
		}
		p.Kill()
	})
	if err := p.Until(ctx, bed.Answers(fmt.Sprintf("http://%s:%d/ready", bed.Loopback, d.health), http.StatusOK)); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d dataplane) config(t *testing.T, auth string) []byte {
	t.Helper()
	chain, key, err := bed.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = document.Execute(&out, map[string]any{
		"Cert": base64.StdEncoding.EncodeToString(chain), "Key": base64.StdEncoding.EncodeToString(key),
		"Host": bed.Loopback, "Turn": d.turn, "Secure": d.secure, "Peer": d.peer, "RTCP": d.peer + 1, "Health": d.health, "Auth": auth,
	})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(out.String())
}
