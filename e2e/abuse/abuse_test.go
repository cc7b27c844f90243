// Package abuse attacks a dataplane from outside and without a credential: with floods, silent connections and
// incomplete handshakes. Resource usage of the process is read from the kernel, and a well-behaved client must be
// served during every attack.
//
//	abuse_test.go                the dataplane under attack, and its well-behaved client
//	flood_test.go                floods of datagrams
//	share_test.go                guessed passwords, and shares of users in the resources
//	stream_test.go               connections over TCP and TLS
//	handshake_test.go dtls_test.go handshakes
//	records_test.go              DTLS records that are not authentic, with coturn for comparison
//	neighbour_test.go            calls while another client, peer or source sends disturbing traffic, with a control
//	neighbour_hosts_test.go neighbour_triggers_test.go  the networks and the traffic of the neighbour
//	largest_test.go              one user that repeats each message in as many sessions as possible, and the conditions for the server
//	largest_acts_test.go         the repeated messages: requests, attributes, transports, identities
//	largest_source_test.go       the methods and attributes of the source
//	largest_hoard_test.go        how the user opens sessions and connections, and sends
package abuse

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
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

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

const (
	user     = "ann"
	password = "opens-the-door"
	timeout  = 20 * time.Second // limits the wait for a condition
)

// program is the dataplane, built without the race detector, whose memory would dominate the measurements.
var program string

func TestMain(m *testing.M) {
	harnesstest.Parallel(6)
	os.Exit(netns.Main(func() int {
		dir, err := os.MkdirTemp("", "stunner-abuse-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = prepare(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "abuse:", err)
			return 1
		}
		return m.Run()
	}, netns.UsualSendBuffers))
}

// prepare builds the program into a folder, makes the private addresses local, and raises the limit of descriptors of
// this process and its children.
func prepare(dir string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	if err := harness.Build(context.Background(), root, dir, harness.Stunnerd); err != nil {
		return err
	}
	program = filepath.Join(dir, "stunnerd")
	if _, err := netns.Exec(fmt.Sprintf("ip address add %s/24 dev lo", private)); err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read limit of descriptors: %w", err)
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// target is a running dataplane with one listener per transport, and an echo peer with a route.
type target struct {
	process *harness.Process
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
	// files is the descriptor limit. 0 means the limit of this process.
	files int
	// secret is the shared secret of ephemeral credentials, in addition to the static one; empty means none.
	secret string
	// chain and key are the certificate and its key in PEM. nil means the certificate of harness.Certificate.
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
		chain, key, err = harness.Certificate()
	}
	must(t, err)
	authType := "static"
	if s.secret != "" {
		authType = "ephemeral"
	}
	health := harnesstest.Port(t)
	d := &target{
		ports: map[call.Network]int{}, roots: x509.NewCertPool(),
		peer: harnesstest.Echo(t, netip.MustParseAddr(harness.Loopback)),
	}
	d.roots.AppendCertsFromPEM(chain)
	d.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", harnesstest.Port(t))
	for _, n := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		d.ports[n] = harnesstest.Port(t)
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
	must(t, os.WriteFile(file, config.Bytes(), 0o600))
	command := harness.Command{Name: "stunnerd", Path: program, Args: []string{"--config", file}, Logs: dir}
	if s.files > 0 {
		command.Path, command.Args = "prlimit", append(
			[]string{fmt.Sprintf("--nofile=%d:%d", s.files, s.files), program}, command.Args...,
		)
	}
	d.process = harnesstest.Start(t, command,
		harness.Answers(fmt.Sprintf("http://127.0.0.1:%d/ready", health), http.StatusOK))
	return d
}

// Addresses of the dataplane. A client sends from the same address as it sends to.
var (
	loopback = netip.MustParseAddr(harness.Loopback)
	// public is an address that is neither private nor an own address of the host, so that the limits for internet
	// addresses apply.
	public = netip.MustParseAddr("198.18.0.1")
	// private is a private address, for example of a load balancer that forwards traffic of many clients. elsewhere is
	// another private address.
	private, elsewhere = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
)

// at returns the listener for a transport at an address.
func (d *target) at(a netip.Addr, n call.Network) netip.AddrPort {
	return netip.AddrPortFrom(a, uint16(d.ports[n]))
}

// options returns the options of a call to an address.
func (d *target) options(n call.Network, at netip.Addr) call.Options {
	return call.Options{
		Gateway: d.at(at, n), Network: n, Roots: d.roots, Username: user, Password: password, Peer: d.peer,
		Interval: 20 * time.Millisecond,
	}
}

// client returns a client over UDP that sends from one address to another.
func (d *target) client(t *testing.T, from, to netip.Addr, user, password string) *ask.Client {
	t.Helper()
	c, err := ask.Dial(from, d.at(to, call.UDP), user, password)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// request sends a request until its response arrives.
func request(t *testing.T, c *ask.Client, method stun.Method, attrs ...stun.Setter) *stun.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	answer, _, err := c.Do(ctx, method, attrs...)
	if err != nil {
		t.Errorf("%s: %v", method, err)
	}
	return answer
}

// codeOf sends a request and returns the error code of the response, or 0.
func codeOf(t *testing.T, c *ask.Client, method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
	t.Helper()
	return ask.Code(request(t, c, method, attrs...))
}

// await waits for a condition of the dataplane.
func (d *target) await(t *testing.T, timeout time.Duration, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, d.process.Until(ctx, cond))
}

// good runs a well-behaved client. It returns the time to the first echo, without stalls of the machine.
func (d *target) good(t *testing.T, n call.Network) time.Duration {
	t.Helper()
	took, err := d.newCall(t.Context(), n, loopback, timeout)
	if err != nil {
		t.Fatalf("good client over %s: %v", n, err)
	}
	return took
}

// newCall makes a call, waits for echoes of some datagrams, and ends the call. It returns the time to the first echo,
// without stalls of the machine.
func (d *target) newCall(ctx context.Context, n call.Network, at netip.Addr, timeout time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	machine := stall.Start()
	defer machine.Stop()
	began := time.Now()
	c, err := call.Start(ctx, d.options(n, at))
	if err != nil {
		return 0, err
	}
	defer c.End(time.Second)
	err = c.Await(ctx, 1)
	return machine.Since(began), errors.Join(err, c.Await(ctx, 5))
}

// rss returns the resident memory of the dataplane in bytes.
func (d *target) rss(t *testing.T) int {
	t.Helper()
	bytes, err := d.process.Memory()
	must(t, err)
	return bytes
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
	used, err := d.process.CPU()
	must(t, err)
	return used
}

func (d *target) goroutines(t *testing.T) int { return int(d.metric(t, "go_goroutines")) }

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
	must(t, err)
	return value
}

func (d *target) read(ctx context.Context, series string) (float64, error) {
	code, page, err := harness.Get(ctx, d.metrics)
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
