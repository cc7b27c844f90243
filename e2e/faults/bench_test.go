// Package faults injects faults around a single dataplane during calls, and measures the effect on the calls.
//
// # Files
//
//	supervise_test.go  --supervise, and the memory of the supervisor
//
// Other files have the name of a fault: broken configs, lost connections, signals, kernel limits, bad networks.
package faults

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// stunnerd is the path of the built program.
var stunnerd string

func TestMain(m *testing.M) {
	bedtest.Parallel(5)
	dir, err := os.MkdirTemp("", "faults")
	if err == nil {
		stunnerd, err = filepath.Join(dir, "stunnerd"), build(dir)
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) error {
	root, err := bed.Root()
	if err != nil {
		return err
	}
	return bed.Build(context.Background(), root, dir, bed.Stunnerd)
}

const (
	patience = 20 * time.Second // timeout on a busy machine
	pace     = 20 * time.Millisecond
	user     = "ann"
	password = "opens-the-door"
	secret   = "shared-by-both-sides"
	gateway  = "faults/door"
)

// bench is a dataplane under test: its process, its config and an echo peer.
type bench struct {
	t testing.TB
	// config has one listener per transport, with a route to the peer. A test may change it before run.
	config  config.Config
	peer    netip.AddrPort
	roots   *x509.CertPool
	process *bed.Process
	file    string         // config file that the process watches
	pulse   *stall.Monitor // excludes stalls of the machine from time limits
}

// newBench makes a config and its peer. It does not start the process.
func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, roots: x509.NewCertPool(), pulse: stall.Start()}
	b.peer = bedtest.Echo(t, netip.MustParseAddr(bed.Loopback))
	t.Cleanup(b.pulse.Stop)
	ports := freePorts(t, 6)
	health := fmt.Sprintf("http://%s:%d", bed.Loopback, ports[4])
	b.config = config.Config{
		Version: config.Version,
		Admin: config.Admin{
			Name: gateway, LogLevel: "all:INFO", HealthcheckEndpoint: &health,
			MetricsEndpoint: fmt.Sprintf("http://%s:%d/metrics", bed.Loopback, ports[5]),
		},
		Auth: config.Auth{Type: config.AuthEphemeral, Realm: "faults.example.org", Credentials: map[string]credential.Secret{
			config.KeyUsername: user, config.KeyPassword: password, config.KeySecret: secret,
		}},
		Clusters: []config.Cluster{
			{Name: "faults/echo", Type: config.Static, Protocol: "UDP", Endpoints: []string{endpoint(b.peer)}},
		},
	}
	cert, key := b.certificate()
	for i, network := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		l := config.Listener{Name: listenerName(network), Protocol: config.Protocol(
			"TURN-" + strings.ToUpper(string(network)),
		),
			Address: bed.Loopback, Port: ports[i], Routes: []string{"faults/echo"}}
		if l.Protocol.Secure() {
			l.Cert, l.Key = cert, key
		}
		b.config.Listeners = append(b.config.Listeners, l)
	}
	b.config.Default()
	return b
}

func listenerName(network call.Network) string { return gateway + "/" + string(network) }

// endpoint returns a peer in the syntax of a config.
func endpoint(peer netip.AddrPort) string {
	return fmt.Sprintf("%s:<%d-%d>", peer.Addr(), peer.Port(), peer.Port())
}

// certificate makes a key pair that the calls of the bench trust, encoded for a config.
func (b *bench) certificate() (cert string, key credential.Secret) {
	b.t.Helper()
	chain, private, err := bed.Certificate()
	if err != nil {
		b.t.Fatal(err)
	}
	b.roots.AppendCertsFromPEM(chain)
	return encoded(chain), credential.Secret(encoded(private))
}

// encoded encodes PEM for a config.
func encoded(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }

// run starts the process with the config in a file, and waits until it is ready.
func (b *bench) run(flags ...string) {
	b.t.Helper()
	b.file = filepath.Join(b.t.TempDir(), "config.json")
	b.write(b.config)
	b.start(b.file, flags...)
	b.await("ready", bed.Answers(b.health()+"/ready", http.StatusOK))
}

// start starts the process with a config from another origin, and waits until its probes respond.
func (b *bench) start(origin string, flags ...string) {
	b.t.Helper()
	b.startAs(bed.Command{Path: stunnerd}, origin, flags...)
}

// startAs starts the process through another program, whose arguments precede those of stunnerd.
func (b *bench) startAs(c bed.Command, origin string, flags ...string) {
	b.t.Helper()
	c.Name, c.Logs, c.Env = "stunnerd", b.t.TempDir(), append(c.Env, "STUNNER_ADDR="+b.config.Listeners[0].Address)
	c.Args = append(c.Args, "--watch", "--config", origin, "--id", gateway, "--healthcheck-endpoint", b.health())
	c.Args = append(c.Args, flags...)
	p, err := bed.Start(c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.process = p
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("last log lines of stunnerd:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		if err := p.Kill(); err != nil {
			b.t.Error(err)
		}
	})
}

func (b *bench) health() string { return *b.config.Admin.HealthcheckEndpoint }

// changed returns a changed copy of the config.
func (b *bench) changed(change func(*config.Config)) config.Config {
	c := b.config.Clone()
	change(&c)
	return c
}

// write replaces the config file atomically.
func (b *bench) write(c config.Config) { b.t.Helper(); b.writeRaw(c.Canonical()) }

func (b *bench) writeRaw(data []byte) {
	b.t.Helper()
	if err := os.WriteFile(b.file+".new", data, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(b.file+".new", b.file); err != nil {
		b.t.Fatal(err)
	}
}

// apply writes a config and waits until it is in force.
func (b *bench) apply(c config.Config) {
	b.t.Helper()
	b.write(c)
	b.inForce(c)
}

// inForce waits until a config is in force.
func (b *bench) inForce(c config.Config) {
	b.t.Helper()
	b.await("config in force", b.runs(c))
}

// await waits for a condition while the process runs.
func (b *bench) await(what string, cond func(context.Context) error) {
	b.t.Helper()
	b.within(patience, what, cond)
}

// within waits for a condition with a time limit, and returns how long it took. Stalls of the machine do not count.
func (b *bench) within(limit time.Duration, what string, cond func(context.Context) error) time.Duration {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), max(limit, patience))
	defer cancel()
	began := time.Now()
	err := b.process.Until(ctx, cond)
	took := time.Since(began)
	if stall := b.pulse.Stalled(began, began.Add(took)); err != nil || took-stall > limit {
		b.t.Fatalf(
			"%s: took longer than %s: %s, including stalls of the machine of %s: %v", what, limit, took, stall, err,
		)
	}
	return took
}

// status is the part of a dataplane's status that the tests use.
type status struct {
	Status          string            `json:"status"`
	Revision        string            `json:"revision"`
	Origin          string            `json:"origin"`
	Problem         string            `json:"problem"`
	Lost            string            `json:"lost"`
	Failures        map[string]string `json:"failures"`
	Unknown         []string          `json:"unknownFields"`
	AllocationCount int               `json:"allocationCount"`
	Auth            config.Auth       `json:"auth"`
	Listeners       []config.Listener `json:"listeners"`
	Clusters        []config.Cluster  `json:"clusters"`
}

func (b *bench) look(ctx context.Context) (st status, err error) {
	code, body, err := bed.Get(ctx, b.health()+"/status")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status: code %d", code)
	}
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	return st, err
}

func (b *bench) status() status {
	b.t.Helper()
	st, err := b.look(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return st
}

// sessions returns the condition that the dataplane has a number of allocations.
func (b *bench) sessions(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.AllocationCount != want {
			err = fmt.Errorf("%d allocations, want %d", st.AllocationCount, want)
		}
		return err
	}
}

// metric returns the sum of the series of a metric, 0 if there is none.
func (b *bench) metric(name string) float64 {
	b.t.Helper()
	v, err := bed.Metric(b.t.Context(), b.config.Admin.MetricsEndpoint, name)
	if err != nil && !errors.Is(err, bed.ErrNoMetric) {
		b.t.Fatal(err)
	}
	return v
}

// files returns the number of open descriptors of the process.
func (b *bench) files() int {
	b.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.process.PID()))
	if err != nil {
		b.t.Fatal(err)
	}
	return len(list)
}

// lowestFree returns the descriptor number that the process gets next.
func (b *bench) lowestFree() int {
	b.t.Helper()
	for fd := 0; ; fd++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", b.process.PID(), fd)); errors.Is(err, fs.ErrNotExist) {
			return fd
		} else if err != nil {
			b.t.Fatal(err)
		}
	}
}

// at returns the address of the listener for a transport.
func (b *bench) at(network call.Network) netip.AddrPort {
	i := slices.IndexFunc(b.config.Listeners, func(l config.Listener) bool { return l.Name == listenerName(network) })
	l := b.config.Listeners[i]
	return netip.AddrPortFrom(netip.MustParseAddr(l.Address), uint16(l.Port))
}

// options returns options of a call over a transport with the static credential.
func (b *bench) options(network call.Network) call.Options {
	return call.Options{
		Gateway: b.at(network), Network: network, Roots: b.roots, Username: user, Password: password, Peer: b.peer,
		Interval: pace,
	}
}

// call starts a call that ends with the test, and waits until datagrams are echoed.
func (b *bench) call(o call.Options) *call.Call {
	b.t.Helper()
	c, err := call.Start(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.goOn(calls{c})
	return c
}

// calls starts n calls over each transport, by default over all transports.
func (b *bench) calls(n int, networks ...call.Network) (all calls) {
	b.t.Helper()
	if len(networks) == 0 {
		networks = []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}
	}
	for range n {
		for _, network := range networks {
			all = append(all, b.call(b.options(network)))
		}
	}
	return all
}

// calls are concurrent calls.
type calls []*call.Call

// goOn waits until each call has received more echoes.
func (b *bench) goOn(all calls) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	want := make([]int, len(all))
	for i, c := range all {
		want[i] = c.Stats().Received + 3
	}
	for i, c := range all {
		if err := c.Await(ctx, want[i]); err != nil {
			b.t.Fatalf("call %d receives no more echoes: %v", i, err)
		}
	}
}

// end ends the calls and returns the number of lost datagrams and the longest gap.
func (all calls) end() (lost int, silence time.Duration) {
	stats := make([]call.Stats, len(all))
	var ending sync.WaitGroup
	for i, c := range all {
		ending.Go(func() { stats[i] = c.End(patience) })
	}
	ending.Wait()
	for _, s := range stats {
		lost, silence = lost+s.Lost, max(silence, s.LongestGap)
	}
	return lost, silence
}

// unharmed ends the calls and checks that they lost nothing and had no gap over the limit. Stalls of the machine are
// added to the limit.
func (b *bench) unharmed(all calls, limit time.Duration) {
	b.t.Helper()
	b.goOn(all)
	lost, silence := all.end()
	said := fmt.Sprintf(
		"%d calls: %d datagrams lost, longest silence %s; longest stall of the machine %s", len(all), lost, silence,
		b.pulse.Worst(),
	)
	if lost > 0 || silence-b.pulse.Worst() > limit {
		b.t.Errorf("%s; want 0, %s", said, limit)
	}
	b.t.Log(said)
}

// freePorts returns n different free ports.
func freePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	for range n {
		ports = append(ports, bedtest.Port(t)) // no port is returned twice
	}
	return ports
}

// hub is a discovery server whose connections can be cut, and that can be restarted at the same address.
type hub struct {
	t       *testing.T
	handler http.Handler
	addr    string
	server  *http.Server

	mu      sync.Mutex
	conns   map[net.Conn]bool
	accepts []time.Time
	refuses bool
}

// newHub serves a handler, such as a discovery.Server, on a free port.
func newHub(t *testing.T, handler http.Handler) *hub {
	t.Helper()
	return newHubAt(t, bed.Loopback, handler)
}

func newHubAt(t *testing.T, address string, handler http.Handler) *hub {
	t.Helper()
	h := &hub{
		t: t, handler: handler, addr: fmt.Sprintf("%s:%d", address, freePorts(t, 1)[0]), conns: map[net.Conn]bool{},
	}
	h.up()
	t.Cleanup(h.down)
	return h
}

// serving returns a hub that has published a config.
func serving(t *testing.T, c config.Config) (*hub, *discovery.Server) {
	t.Helper()
	s := discovery.NewServer(discovery.ServerOptions{})
	s.Publish(c)
	return newHub(t, s), s
}

// url returns the config origin for a dataplane.
func (h *hub) url() string { return "http://" + h.addr }

// up starts to listen.
func (h *hub) up() {
	h.t.Helper()
	socket, err := net.Listen("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.server = &http.Server{Handler: h.handler, ConnState: h.note}
	go func(s *http.Server) { _ = s.Serve(socket) }(h.server) // it ends with down
}

// note tracks connections itself, because an http.Server does not track hijacked WebSocket connections.
func (h *hub) note(conn net.Conn, state http.ConnState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch state {
	case http.StateNew:
		h.conns[conn] = true
		h.accepts = append(h.accepts, time.Now())
		if h.refuses {
			_ = conn.Close()
		}
	case http.StateClosed:
		delete(h.conns, conn)
	}
}

// down stops listening and closes every connection.
func (h *hub) down() {
	_ = h.server.Close()
	h.cut()
}

// cut closes every connection and keeps listening.
func (h *hub) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for conn := range h.conns {
		_ = conn.Close()
	}
	clear(h.conns)
}

// refuse sets whether new connections are closed at once.
func (h *hub) refuse(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuses = yes
}

// accepted returns the times of connections since a moment.
func (h *hub) accepted(since time.Time) (times []time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.accepts {
		if at.After(since) {
			times = append(times, at)
		}
	}
	return times
}
