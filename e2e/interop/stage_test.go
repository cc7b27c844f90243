package interop

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
)

// loopback6 is the IPv6 address that all programs also listen on.
const loopback6 = "::1"

// patience is the timeout of conditions on a busy machine.
const patience = 20 * time.Second

// Folders of the repository and of the built programs.
var root, bin string

// TestMain builds the programs. The clients sleep most of their time.
func TestMain(m *testing.M) {
	bedtest.Parallel(16)
	code, err := within(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// within builds the programs into a temporary folder and runs the tests.
func within(m *testing.M) (code int, err error) {
	if root, err = bed.Root(); err != nil {
		return 1, err
	}
	if bin, err = os.MkdirTemp("", "interop"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(bin)
	if err := bed.Build(context.Background(), root, bin, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// dataplane holds the ports of a running stunnerd and of its peers.
type dataplane struct {
	turn    int // UDP and TCP
	secure  int // DTLS and TLS
	peer    int // echo peer; the next port, for RTCP, echoes too
	health  int
	metrics int
	ca      string // path of the secure listeners' certificate
}

// document is the config of a dataplane without its authentication. Its routes include the relayed addresses of other
// clients.
var document = template.Must(template.New("config").Parse(`version: v1
admin:
  name: interop/door
  healthcheck_endpoint: http://{{.Host}}:{{.Health}}
  metrics_endpoint: http://{{.Host}}:{{.Metrics}}/metrics
auth: {{.Auth}}
listeners:
  - {name: interop/door/udp, protocol: TURN-UDP, address: {{.Host}}, port: {{.Turn}}, routes: [interop/peers]}
  - {name: interop/door/tcp, protocol: TURN-TCP, address: {{.Host}}, port: {{.Turn}}, routes: [interop/peers]}
  - {name: interop/door/dtls, protocol: TURN-DTLS, address: {{.Host}}, port: {{.Secure}}, cert: {{.Cert}}, key: {{.Key}}, routes: [interop/peers]}
  - {name: interop/door/tls, protocol: TURN-TLS, address: {{.Host}}, port: {{.Secure}}, cert: {{.Cert}}, key: {{.Key}}, routes: [interop/peers]}
clusters:
  - {name: interop/peers, type: STATIC, endpoints: ["{{.Host}}", "{{.Host6}}"]}
`))

// start runs a peer and a dataplane until the test ends.
func start(t *testing.T, auth string) dataplane {
	t.Helper()
	ports, logs := freePorts(t), t.TempDir()
	d := dataplane{
		turn: ports.TURN, secure: ports.Auth, health: ports.AuthHealth, metrics: ports.Discovery,
		peer: ports.Media, ca: filepath.Join(logs, "ca.pem"),
	}
	file := filepath.Join(logs, "config.yaml")
	if err := os.WriteFile(file, d.config(t, auth), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, bed.Command{
		Name: "turnutils_peer", Path: installed(t, "turnutils_peer", "coturn"), Logs: logs,
		Args: []string{"-L", bed.Loopback, "-L", loopback6, "-p", strconv.Itoa(d.peer)},
	}, func(ctx context.Context) error {
		return errors.Join(echoes(ctx, bed.Loopback, d.peer), echoes(ctx, loopback6, d.peer+1))
	})
	run(t, bed.Command{
		Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Args: []string{"-c", file}, Logs: logs,
		Env: []string{"STUNNER_ADDRS=" + bed.Loopback + "," + loopback6},
	}, bed.Answers("http://"+at(d.health)+"/ready", http.StatusOK))
	return d
}

// at returns a port of the loopback address as HOST:PORT.
func at(port int) string { return net.JoinHostPort(bed.Loopback, strconv.Itoa(port)) }

func freePorts(t *testing.T) bed.Ports {
	t.Helper()
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	return ports
}

// config renders the document, and writes its certificate to d.ca.
func (d dataplane) config(t *testing.T, auth string) []byte {
	t.Helper()
	chain, key, err := bed.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.ca, chain, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = document.Execute(&out, map[string]any{
		"Cert": base64.StdEncoding.EncodeToString(chain), "Key": base64.StdEncoding.EncodeToString(key), "Auth": auth,
		"Host": bed.Loopback, "Host6": loopback6, "Turn": d.turn, "Secure": d.secure, "Health": d.health,
		"Metrics": d.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(out.String())
}

// run runs a program until the test ends, and waits until it is ready.
func run(t *testing.T, c bed.Command, ready func(context.Context) error) {
	t.Helper()
	p, err := bed.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of %s:\n%s", p.Name, strings.Join(p.Tail(40), "\n"))
		}
		p.Kill()
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Until(ctx, ready); err != nil {
		t.Fatal(err)
	}
}

// echoes returns nil when a peer echoes a datagram.
func echoes(ctx context.Context, host string, port int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("there?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}

// installed returns the path of a program from a Debian package.
func installed(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not installed: run `sudo apt-get install --yes %s`", name, pkg)
	}
	return path
}

// client runs a client program to its end.
func client(t *testing.T, env []string, path string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
