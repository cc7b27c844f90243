// Package abuse attacks a dataplane from outside and without a credential: with floods, silent connections and
// incomplete handshakes. Resource usage of the process is read from the kernel, and a well-behaved client must be
// served during every attack.
package abuse

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

const (
	user     = "ann"
	password = "opens-the-door"
	patience = 20 * time.Second // timeout of conditions
)

// program is the dataplane, built without the race detector, whose memory would dominate the measurements.
var program string

func TestMain(m *testing.M) {
	bedtest.Parallel(6)
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "abuse:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	root, err := bed.Root()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "abuse")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := bed.Build(context.Background(), root, dir, bed.Stunnerd); err != nil {
		return 0, err
	}
	program = filepath.Join(dir, "stunnerd")
	if err := allowFiles(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// allowFiles raises the descriptor limit of this process and its children to the hard limit.
func allowFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read limit of descriptors: %w", err)
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// target is a running dataplane with one listener per transport, and an echo peer with a route.
type target struct {
	process *bed.Process
	ports   map[call.Network]int
	metrics string
	peer    netip.AddrPort
	roots   *x509.CertPool
}

var document = template.Must(template.New("config").Funcs(template.FuncMap{"upper": func(n call.Network) string { return strings.ToUpper(string(n)) }}).Parse(`version: v1
admin: {name: abuse/door, healthcheck_endpoint: "http://127.0.0.1:{{.Health}}", metrics_endpoint: "{{.Metrics}}"}
auth: {type: {{.Type}}, realm: abuse.example.org, credentials: {username: {{.User}}, password: {{.Password}}{{with .Secret}}, secret: {{.}}{{end}}}}
listeners:
{{- range $network, $port := .Ports}}
  - name: abuse/door/{{$network}}
    protocol: TURN-{{upper $network}}
    address: 127.0.0.1
    port: {{$port}}
    routes: [abuse/echo]
    cert: {{$.Cert}}
    key: {{$.Key}}
{{- end}}
clusters:
  - {name: abuse/echo, type: STATIC, endpoints: ["127.0.0.1:<{{.Peer}}-{{.Peer}}>"]}
`))

// settings of a target that a test may change.
type settings struct {
	// files is the descriptor limit; 0 means that of this process.
	files int
	// secret is the shared secret of ephemeral credentials, in addition to the static one; empty means none.
	secret string
	// chain and key are the certificate in PEM; nil means one from bed.Certificate.
	chain, key []byte
}

// start runs a dataplane until the test ends.
func start(t *testing.T) *target {
	t.Helper()
	return startWith(t, settings{})
}

func startWith(t *testing.T, s settings) *target {
	t.Helper()
	chain, key, err := s.chain, s.key, error(nil)
	if chain == nil {
		chain, key, err = bed.Certificate()
	}
	if err != nil {
		t.Fatal(err)
	}
	authType := "static"
	if s.secret != "" {
		authType = "ephemeral"
	}
	health := bedtest.Port(t)
	d := &target{ports: map[call.Network]int{}, peer: echo(t), roots: x509.NewCertPool()}
	d.roots.AppendCertsFromPEM(chain)
	d.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", bedtest.Port(t))
	for _, n := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		d.ports[n] = bedtest.Port(t)
	}
	var config bytes.Buffer
	if err := document.Execute(&config, map[string]any{
		"Health": health, "Metrics": d.metrics, "User": user, "Password": password, "Type": authType,
		"Secret": s.secret, "Ports": d.ports, "Peer": d.peer.Port(),
		"Cert": base64.StdEncoding.EncodeToString(chain), "Key": base64.StdEncoding.EncodeToString(key),
	}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	command := bed.Command{Name: "stunnerd", Path: program, Args: []string{"--config", file}, Logs: dir}
	if s.files > 0 {
		command.Path, command.Args = "prlimit", append(
			[]string{fmt.Sprintf("--nofile=%d:%d", s.files, s.files), program}, command.Args...,
		)
	}
	d.process, err = bed.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.process.Err() != nil || t.Failed() {
			t.Logf("end of the log of stunnerd:\n%s", strings.Join(d.process.Tail(20), "\n"))
		}
		if err := d.process.Kill(); err != nil {
			t.Error(err)
		}
	})
	d.await(t, patience, bed.Answers(fmt.Sprintf("http://127.0.0.1:%d/ready", health), http.StatusOK))
	return d
}

// address returns the address of the listener for a transport.
func (d *target) address(n call.Network) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(bed.Loopback), uint16(d.ports[n]))
}

// await waits for a condition of the dataplane.
func (d *target) await(t *testing.T, patience time.Duration, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.process.Until(ctx, cond); err != nil {
		t.Fatal(err)
	}
}

// good runs a well-behaved client: it allocates, has datagrams echoed and ends. It returns the time to the first echo,
// without stalls of the machine.
func (d *target) good(t *testing.T, n call.Network) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	machine := stall.Start()
	defer machine.Stop()
	began := time.Now()
	c, err := call.Start(ctx, call.Options{
		Gateway: d.address(n), Network: n, Roots: d.roots, Username: user, Password: password, Peer: d.peer,
	})
	if err != nil {
		t.Fatalf("good client over %s: %v", n, err)
	}
	defer c.End(time.Second)
	if err := c.Await(ctx, 1); err != nil {
		t.Fatalf("good client over %s: %v", n, err)
	}
	took := machine.Since(began)
	if err := c.Await(ctx, 10); err != nil {
		t.Errorf("good client over %s: %v", n, err)
	}
	return took
}

// rss returns the resident memory of the dataplane in bytes.
func (d *target) rss(t *testing.T) int {
	t.Helper()
	status := d.proc(t, "status")
	_, after, _ := strings.Cut(status, "VmRSS:")
	kilobytes, err := strconv.Atoi(strings.Fields(after + " x")[0])
	if err != nil {
		t.Fatalf("no VmRSS in %q", status)
	}
	return kilobytes << 10
}

// warm returns the memory of the dataplane after some garbage collections, so that memory of the runtime itself is not
// attributed to the attack.
func (d *target) warm(t *testing.T) int {
	t.Helper()
	for collections := d.metric(t, "go_gc_duration_seconds_count"); d.metric(
		t, "go_gc_duration_seconds_count",
	) < collections+3; {
	}
	return d.rss(t)
}

// cpu returns the CPU time of the dataplane.
func (d *target) cpu(t *testing.T) time.Duration {
	t.Helper()
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go supports
	stat := d.proc(t, "stat")
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may contain spaces
	var ticks int
	for _, f := range fields[11:13] { // utime and stime, proc_pid_stat(5)
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

func (d *target) proc(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(d.process.PID()), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (d *target) goroutines(t *testing.T) int { return int(d.metric(t, "go_goroutines")) }
func (d *target) threads(t *testing.T) int    { return int(d.metric(t, "go_threads")) }

// dropped returns the number of packets dropped for a reason.
func (d *target) dropped(t *testing.T, reason string) int {
	return int(d.metric(t, fmt.Sprintf("stunner_dropped_total{reason=%q}", reason)))
}

// series returns the name of a listener's series for open connections.
func series(n call.Network) string {
	return fmt.Sprintf("stunner_listener_connections{name=\"abuse/door/%s\"}", n)
}

// metric returns the value of one series, or 0 if it does not exist.
func (d *target) metric(t *testing.T, series string) float64 {
	t.Helper()
	value, err := d.read(t.Context(), series)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func (d *target) read(ctx context.Context, series string) (float64, error) {
	code, page, err := bed.Get(ctx, d.metrics)
	if err != nil || code != http.StatusOK {
		return 0, fmt.Errorf("read metrics: status %d: %w", code, err)
	}
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

// echo runs an echo peer until the test ends.
func echo(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(bed.Loopback), Port: bedtest.Port(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go sendBack(conn)
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// sendBack echoes datagrams until the socket is closed.
func sendBack(conn *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from) // clients count losses
		}
	}
}
