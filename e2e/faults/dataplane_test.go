// Package faults injects faults around a single dataplane during calls, and measures the effect on the calls.
//
// # Files
//
//	dataplane_test.go  the dataplane: its process, config, status and metrics
//	clients_test.go    calls and clients of single requests
//	config_test.go     broken, large and frequent configs
//	source_test.go     config sources, state folders and ports that are not available
//	crash_test.go      processes that are killed or terminated, and their successors
//	journal_test.go    the session journal: 10,000 sessions, and its cost
//	limits_test.go     limits of memory, descriptors and ports, many clients at once
//	network_test.go    network paths that lose, delay, repeat and fragment datagrams
//	dns_test.go        failures of a name server
//	clock_test.go      jumps of the clock
package faults

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// stunnerd is the path of the built program.
var stunnerd string

func TestMain(m *testing.M) {
	harnesstest.Parallel(6)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stunner-faults-")
	defer os.RemoveAll(dir)
	root, rootErr := harness.Root()
	if err = errors.Join(err, rootErr); err == nil {
		err = harness.Build(context.Background(), root, dir, harness.Stunnerd)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stunnerd = filepath.Join(dir, "stunnerd")
	return m.Run()
}

const (
	timeout  = 20 * time.Second // limit for a condition on a busy machine
	interval = 20 * time.Millisecond
	// silence is the longest permitted gap of a call on a busy machine.
	silence  = time.Second
	user     = "ann"
	password = "opens-the-door"
	secret   = "shared-by-both-sides"
	gateway  = "faults/door"
)

var networks = []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}

// dataplane is the dataplane under test, with an echo peer.
type dataplane struct {
	t testing.TB
	// config has one listener per transport, with a route to the peer. A test may change it before the start.
	config  config.Config
	peer    netip.AddrPort
	roots   *x509.CertPool
	process *harness.Process
	file    string         // config file that the process watches
	stalls  *stall.Monitor // excludes stalls of the machine from time limits
}

// newDataplane makes a config and its peer. It does not start the process.
func newDataplane(t testing.TB) *dataplane {
	t.Helper()
	d := &dataplane{t: t, roots: x509.NewCertPool(), stalls: stall.Start()}
	d.file = filepath.Join(t.TempDir(), "config.json")
	t.Cleanup(d.stalls.Stop)
	d.peer = harnesstest.Echo(t, netip.MustParseAddr(harness.Loopback))
	health := "http://" + harnesstest.Address(t)
	d.config = config.Config{
		Version: config.Version,
		Admin: config.Admin{
			Name: gateway, LogLevel: "all:INFO", HealthcheckEndpoint: &health,
			MetricsEndpoint: "http://" + harnesstest.Address(t) + "/metrics",
		},
		Auth: config.Auth{
			Type: config.AuthEphemeral, Realm: "faults.example.org", Credentials: map[string]credential.Secret{
				config.KeyUsername: user, config.KeyPassword: password, config.KeySecret: secret,
			},
		},
		Clusters: []config.Cluster{
			{Name: "faults/echo", Type: config.Static, Protocol: "UDP", Endpoints: []string{endpoint(d.peer)}},
		},
	}
	chain, key, err := harness.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	d.roots.AppendCertsFromPEM(chain)
	for _, network := range networks {
		l := config.Listener{
			Name: listenerName(network), Protocol: config.Protocol("TURN-" + strings.ToUpper(string(network))),
			Address: harness.Loopback, Port: harnesstest.Port(t), Routes: []string{"faults/echo"},
		}
		if l.Protocol.Secure() {
			l.Cert, l.Key = encoded(chain), credential.Secret(encoded(key))
		}
		d.config.Listeners = append(d.config.Listeners, l)
	}
	d.config.Default()
	return d
}

func listenerName(network call.Network) string { return gateway + "/" + string(network) }

// endpoint returns a peer in the syntax of a config.
func endpoint(peer netip.AddrPort) string {
	return fmt.Sprintf("%s:<%d-%d>", peer.Addr(), peer.Port(), peer.Port())
}

// encoded encodes PEM for a config.
func encoded(pem []byte) string { return base64.StdEncoding.EncodeToString(pem) }

// running returns a dataplane whose process has the config of a file in force.
func running(t testing.TB, flags ...string) *dataplane {
	t.Helper()
	d := newDataplane(t)
	d.serve(harness.Command{Path: stunnerd}, flags...)
	return d
}

// serve starts the process through a command, with the config in a file, and waits until it is ready.
func (d *dataplane) serve(c harness.Command, flags ...string) {
	d.t.Helper()
	d.write(d.config)
	d.start(c, d.file, flags...)
	d.awaitReady()
}

func (d *dataplane) awaitReady() {
	d.t.Helper()
	d.await("ready", harness.Answers(d.health()+"/ready", http.StatusOK))
}

// start starts the process through a command, with the origin of its config. The arguments of the command precede the
// arguments of stunnerd.
func (d *dataplane) start(c harness.Command, origin string, flags ...string) {
	d.t.Helper()
	c.Name, c.Logs, c.Env = "stunnerd", d.t.TempDir(), append(c.Env, "STUNNER_ADDR="+d.config.Listeners[0].Address)
	c.Args = append(c.Args, "--watch", "--config", origin, "--id", gateway, "--healthcheck-endpoint", d.health())
	c.Args = append(c.Args, flags...)
	d.process = harnesstest.Start(d.t, c, func(context.Context) error { return nil })
}

// inMounts returns a command that runs stunnerd in a mount namespace of its own, after a shell command with arguments.
func inMounts(command string, args ...string) harness.Command {
	args = append([]string{"--mount", "sh", "-c", command + ` && exec "$@"`}, args...)
	return harness.Command{Path: "unshare", Args: append(args, stunnerd)}
}

func (d *dataplane) health() string { return *d.config.Admin.HealthcheckEndpoint }

func (d *dataplane) changed(change func(*config.Config)) config.Config {
	c := d.config.Clone()
	change(&c)
	return c
}

// write replaces the config file atomically.
func (d *dataplane) write(c config.Config) {
	d.t.Helper()
	err := os.WriteFile(d.file+".new", c.Canonical(), 0o600)
	if err = errors.Join(err, os.Rename(d.file+".new", d.file)); err != nil {
		d.t.Fatal(err)
	}
}

// await waits for a condition while the process runs.
func (d *dataplane) await(what string, cond func(context.Context) error) {
	d.t.Helper()
	d.within(timeout, what, cond)
}

// within waits for a condition with a time limit, and returns how long it took. Stalls of the machine do not count.
func (d *dataplane) within(limit time.Duration, what string, cond func(context.Context) error) time.Duration {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), max(limit, timeout))
	defer cancel()
	began := time.Now()
	err := d.process.Until(ctx, cond)
	took := d.stalls.Since(began)
	if err != nil || took > limit {
		d.t.Fatalf("%s: took %s without stalls of the machine, want %s at most: %v", what, took, limit, err)
	}
	return took
}

// inForce is the condition that a config is in force.
func (d *dataplane) inForce(c config.Config) func(context.Context) error {
	revision := c.Revision()
	return d.status(func(st inspection.Status) bool { return st.Revision == revision })
}

// status is a condition on the status.
func (d *dataplane) status(holds func(inspection.Status) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		st, err := d.look(ctx)
		if err == nil && !holds(st) {
			err = fmt.Errorf("status %+v", st)
		}
		return err
	}
}

func (d *dataplane) look(ctx context.Context) (st inspection.Status, err error) {
	code, body, err := harness.Get(ctx, d.health()+"/status")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status: code %d", code)
	}
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	return st, err
}

// sessions is the condition that the dataplane has a number of allocations.
func (d *dataplane) sessions(want int) func(context.Context) error {
	return d.status(func(st inspection.Status) bool { return st.AllocationCount == want })
}

// metric returns the sum of the series of a metric, or 0. With a reason, it returns the value of the series with this
// reason.
func (d *dataplane) metric(name string, reason ...string) float64 {
	d.t.Helper()
	var text string
	d.await("metrics", func(ctx context.Context) error { // a process serves them soon after it is ready
		_, page, err := harness.Get(ctx, d.config.Admin.MetricsEndpoint)
		text = string(page)
		return err
	})
	for _, r := range reason {
		text = strings.ReplaceAll(text, fmt.Sprintf("%s{reason=%q}", name, r), name+"_of_reason")
		name += "_of_reason"
	}
	v, err := harness.Sum(text, name)
	if err != nil && !errors.Is(err, harness.ErrNoMetric) {
		d.t.Fatal(err)
	}
	return v
}

func (d *dataplane) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

func (d *dataplane) kill() {
	d.t.Helper()
	if err := d.process.Kill(); err != nil {
		d.t.Fatal(err)
	}
}

// awaitEnd waits until the process has exited with code 0.
func (d *dataplane) awaitEnd() {
	d.t.Helper()
	select {
	case <-d.process.Done():
	case <-time.After(timeout):
		d.t.Fatalf("the process does not exit within %s", timeout)
	}
	if err := d.process.Err(); err != nil {
		d.t.Fatalf("the process failed: %v", err)
	}
}
