package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// source is a server of config discovery at a port of its own.
type source struct {
	*http.Server
	connections sync.Map // an http.Server does not track hijacked WebSocket connections
}

// newSource serves until the end of the test.
func newSource(t *testing.T, host string, handler http.Handler) *source {
	t.Helper()
	socket, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, harnesstest.Port(t)))
	if err != nil {
		t.Fatal(err)
	}
	s := &source{Server: &http.Server{Addr: socket.Addr().String(), Handler: handler}}
	s.ConnState = func(conn net.Conn, _ http.ConnState) { s.connections.Store(conn, true) }
	go func() { _ = s.Serve(socket) }() // Serve returns when close is called
	t.Cleanup(s.close)
	return s
}

// close stops listening and closes every connection.
func (s *source) close() {
	_ = s.Server.Close()
	for conn := range s.connections.Range {
		_ = conn.(net.Conn).Close()
	}
}

// url returns the config origin for a dataplane.
func (s *source) url() string { return "http://" + s.Addr }

// publisher is a source of published configs.
type publisher struct {
	*source
	*discovery.Server
}

func newPublisher(t *testing.T, host string, c config.Config) publisher {
	t.Helper()
	s := discovery.NewServer(discovery.ServerOptions{})
	s.Publish(c)
	return publisher{newSource(t, host, s), s}
}

// when packets to and from the config source are dropped silently, without TCP reset, the dataplane reports the
// loss within 30 s, keeps its config and calls, and gets the newest config afterwards.
func TestSilentSourceIsReportedAsLost(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const address = "198.18.5.5"
	// a rule with a lower number can now precede the rule of local addresses
	netns.Run(t, "ip rule add pref 10 lookup local")
	netns.Run(t, "ip rule del pref 0")
	d := newDataplane(t)
	source := newPublisher(t, address, d.config)
	d.start(harness.Command{Path: stunnerd}, source.url())
	d.await("in force", d.inForce(d.config))
	live := d.calls()

	netns.Run(t, "ip rule add pref 5 to "+address+" blackhole")
	netns.Run(t, "ip rule add pref 6 from "+address+" blackhole")
	next := d.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" })
	source.Publish(next)
	d.within(30*time.Second, "the status reports the loss", d.status(func(st inspection.Status) bool {
		return st.Lost != "" && st.Revision == d.config.Revision()
	}))
	d.awaitEchoes(live...)
	netns.Run(t, "ip rule del pref 5")
	netns.Run(t, "ip rule del pref 6")
	d.within(15*time.Second, "the newest config arrives", d.inForce(next))
	d.undisturbed(live)
}

// a state folder that is not writable is reported, and configs are applied anyway.
func TestUnwritableStateFolderIsAWarning(t *testing.T) {
	for name, mount := range map[string]string{
		"full":      `mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero >"$0/full"`,
		"read-only": `mount -t tmpfs -o ro tmpfs "$0"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDataplane(t)
			source, state := newPublisher(t, harness.Loopback, d.config), t.TempDir()
			d.start(inMounts(mount, state), source.url(), "--state-dir", state)
			d.await("in force", d.inForce(d.config))
			d.await("the log warns", func(context.Context) error {
				if !strings.Contains(d.process.Output(), `level=WARN msg="cannot save the last good config"`) {
					return errors.New("no warning")
				}
				return nil
			})
			live := d.calls(call.UDP)
			next := d.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" })
			source.Publish(next)
			d.await("in force without a problem", d.status(func(st inspection.Status) bool {
				return st.Revision == next.Revision() && st.Problem == "" && st.Status == "READY"
			}))
			d.undisturbed(live)
		})
	}
}

// if another process uses a port of the first config, the dataplane is not ready, and reports the listener and
// the error. It becomes ready when the port is free. A port conflict in a later config does not make it unready,
// because that would end its calls, and affects no other listener.
func TestTakenPortAffectsOnlyItsListener(t *testing.T) {
	t.Parallel()
	d, name := newDataplane(t), listenerName(call.UDP)
	taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(d.at(call.UDP)))
	if err != nil {
		t.Fatal(err)
	}
	d.write(d.config)
	d.start(harness.Command{Path: stunnerd}, d.file)
	d.await("/ready reports the listener and the error", func(ctx context.Context) error {
		code, body, err := harness.Get(ctx, d.health()+"/ready")
		for _, words := range []string{`"message":"stunnerd not ready: `, name, "address already in use"} {
			if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(string(body), words)) {
				err = fmt.Errorf("/ready: status %d %s, want it to contain %q", code, body, words)
			}
		}
		return err
	})
	d.await("the status names the listener", d.status(func(st inspection.Status) bool {
		return st.Status == "NOT-READY" && len(st.Failures) == 1 && st.Failures[name] != ""
	}))
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	d.awaitReady()
	live := d.calls()
	if taken, err = net.ListenUDP("udp", nil); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	former := d.options(call.UDP)
	d.config.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port
	d.config.Listeners[1].Port = harnesstest.Port(t)
	d.write(d.config)
	d.await("the status names the listener, at its previous port", d.status(func(st inspection.Status) bool {
		return st.Status == "READY" && len(st.Failures) == 1 && st.Failures[name] != "" &&
			st.Listeners[0].Port == int(former.Gateway.Port())
	}))
	d.probe()
	for _, o := range []call.Options{former, d.options(call.TCP), d.options(call.TLS)} {
		d.undisturbed([]*call.Call{d.call(o)})
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	d.await("the listener moves when the port is free", admits(d.options(call.UDP)))
	d.await("the problem is over", d.status(func(st inspection.Status) bool {
		return len(st.Failures) == 0 && st.Problem == ""
	}))
	d.undisturbed(live)
}
