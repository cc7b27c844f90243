package server

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// moveTwice moves the UDP listener to another port, twice.
func (b *fixture) moveTwice() {
	b.t.Helper()
	for range 2 {
		b.config = b.changed(func(next *config.Config) { next.Listeners[0].Port = testport.Free(b.t) })
		b.apply(b.config)
	}
}

// A session on a previous port gets the policy of the current config, and ends when its listener is removed.
func TestSessionAtAnOldPortObeysTheConfig(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	b.moveTwice()
	if err := c.echo("two ports later"); err != nil {
		t.Fatal(err)
	}
	b.apply(b.changed(func(next *config.Config) { next.Listeners[0].Routes = nil }))
	if err := c.echo("without a route"); err == nil {
		t.Error("media goes on without a route")
	}
	b.apply(b.changed(func(next *config.Config) { next.Listeners = next.Listeners[1:] }))
	within(t, "no session without its listener", func() bool { return b.Sessions().Len() == 0 })
}

func TestSessionAtAnOldPortFollowsTheName(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr())
	b.apply(b.config)
	c := b.mustDial("udp", "ann", "first")
	within(t, "the name opens its address", func() bool { return c.echo("hello") == nil })
	b.moveTwice()
	if err := c.echo("still here"); err != nil {
		t.Fatalf("the new port cuts the call: %v", err)
	}
	gone := hosts.move(netip.MustParseAddr("192.0.2.77"))()
	for c.echo("still here") == nil {
		if time.Since(gone) > timeout {
			t.Fatal("media goes on after the name has moved away")
		}
	}
}

// A listener that returns to a port on which calls are still running opens at once: the retired generation is reopened.
func TestListenerReturnsToAPortInUse(t *testing.T) {
	b := newFixture(t)
	first, old := b.config, b.port("udp")
	c := b.mustDial("udp", "ann", "first")
	b.moveTwice()
	between := b.mustDial("udp", "ann", "first")
	b.apply(first)
	if b.port("udp") != old || len(b.Status().Failures) != 0 {
		t.Fatalf("port %d, want %d; failures %v", b.port("udp"), old, b.Status().Failures)
	}
	fresh := b.mustDial("udp", "ann", "first")
	for name, call := range map[string]*call{"from the beginning": c, "from in between": between, "new": fresh} {
		if err := call.echo("hello"); err != nil {
			t.Errorf("call %s: %v", name, err)
		}
	}
	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "the old call has ended", func() bool { return b.Sessions().Len() == 2 })
	if err := b.mustDial("udp", "ann", "first").echo("the port is still served"); err != nil {
		t.Error(err)
	}
}

// calls survive when a listener changes from TCP to TLS on the same port, and back.
func TestProtocolChangesOnAPortInUse(t *testing.T) {
	b := newFixture(t)
	at := slices.IndexFunc(b.config.Listeners, func(l config.Listener) bool { return l.Protocol == config.TURNTCP })
	c := b.mustDial("tcp", "ann", "first")
	secure := b.changed(func(next *config.Config) {
		l := &next.Listeners[at]
		l.Protocol = config.TURNTLS
		id := newIdentity(t, "turn.example.org")
		l.Cert, l.Key = id.cert, id.key
	})
	for _, next := range []config.Config{secure, b.config, secure} {
		b.apply(next)
		if err := c.echo("still here"); err != nil {
			t.Fatalf("%s on the port of the call: %v", next.Listeners[at].Protocol, err)
		}
	}
	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "nobody is left", func() bool { return b.Sessions().Len() == 0 })
	b.apply(b.config)
	if err := b.mustDial("tcp", "ann", "first").echo("hello"); err != nil {
		t.Error(err)
	}
}

// beside returns a config in which the listener at an index has another port, and a further listener has its previous
// port.
func (b *fixture) beside(at, port int) config.Config {
	return b.changed(func(next *config.Config) {
		l := next.Listeners[at]
		l.Name += "-second"
		next.Listeners[at].Port = port
		next.Listeners = append(next.Listeners, l)
	})
}

// taken opens a TCP port, which no listener gets before the test closes it.
func taken(t *testing.T) (net.Listener, int) {
	t.Helper()
	ln, err := net.Listen("tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln, ln.Addr().(*net.TCPAddr).Port
}

// A call over a stream does not occupy the port: the previous port of its listener is free as soon as the listener has
// moved.
func TestPortOfOldStreamCallsIsFree(t *testing.T) {
	for at, transport := range map[int]string{1: "tcp", 2: "tls"} {
		t.Run(transport, func(t *testing.T) {
			b := newFixture(t)
			c := b.mustDial(transport, "ann", "first")
			both := b.beside(at, testport.Free(t))
			moved := both.Clone()
			moved.Listeners = moved.Listeners[:4]
			b.apply(moved)
			b.apply(both)
			if err := c.echo("still here"); err != nil {
				t.Errorf("the call that was there before: %v", err)
			}
			if err := b.mustDial(transport+"-second", "ann", "first").echo("hello"); err != nil {
				t.Errorf("the listener that has the port now: %v", err)
			}
			b.apply(b.changed(func(next *config.Config) { next.Listeners = next.Listeners[:1] }))
			within(t, "no session without its listener", func() bool { return b.Sessions().Len() == 0 })
		})
	}
}

// A listener cannot open its new port, because the port is in use, and another listener has opened its former port. The
// listener accepts no new sessions, but its calls continue with the current policy. It opens when the new port is free.
func TestCallOutlivesThePortOfItsListener(t *testing.T) {
	b := newFixture(t)
	stranger, port := taken(t)
	c := b.mustDial("tcp", "ann", "first")
	next := b.beside(1, port)
	for range 2 { // the server tries again to bind the port
		if _, err := b.Apply(next); err == nil || !strings.Contains(err.Error(), "test/gateway/tcp:") {
			t.Fatalf("error %v does not name the listener", err)
		}
		if err := c.echo("still here"); err != nil {
			t.Fatalf("the call ends with the port: %v", err)
		}
	}
	st := b.Status()
	if st.Failures["test/gateway/tcp"] == "" {
		t.Error("the status does not say that the listener does not run")
	}
	if slices.ContainsFunc(st.Listeners, func(l inspection.ListenerStatus) bool { return l.Name == "test/gateway/tcp" }) {
		t.Error("the status has a listener that takes nobody")
	}
	closed := next.Clone()
	closed.Listeners[1].Routes = nil
	if _, err := b.Apply(closed); err == nil {
		t.Fatal("no error for a taken port")
	}
	if err := c.echo("without a route"); err == nil {
		t.Error("media goes on without a route")
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	b.apply(next)
	if err := c.echo("still here"); err != nil {
		t.Errorf("the call ends when its listener is back: %v", err)
	}
	if err := b.mustDial("tcp", "ann", "first").echo("hello"); err != nil {
		t.Error(err)
	}
}

// A listener without a port that is removed from the config ends with its calls.
func TestListenerWithoutAPortIsRemoved(t *testing.T) {
	b := newFixture(t)
	_, port := taken(t)
	b.mustDial("tcp", "ann", "first")
	next := b.beside(1, port)
	if _, err := b.Apply(next); err == nil {
		t.Fatal("no error for a taken port")
	}
	b.apply(b.changed(func(c *config.Config) { c.Listeners = slices.Delete(next.Clone().Listeners, 1, 2) }))
	within(t, "no session without its listener", func() bool { return b.Sessions().Len() == 0 })
	if len(b.listeners) != 4 {
		t.Errorf("%d listeners are left", len(b.listeners))
	}
}

// A server can be closed while a listener without a port has calls.
func TestServerClosesWithoutAPort(t *testing.T) {
	b := newFixture(t)
	_, port := taken(t)
	b.mustDial("tcp", "ann", "first")
	if _, err := b.Apply(b.beside(1, port)); err == nil {
		t.Error("no error for a taken port")
	}
}

// A listener without a port ends with its last call, and can still be opened later.
func TestListenerWithoutAPortEndsWithItsLastCall(t *testing.T) {
	b := newFixture(t)
	stranger, port := taken(t)
	c := b.mustDial("tcp", "ann", "first")
	next := b.beside(1, port)
	if _, err := b.Apply(next); err == nil {
		t.Fatal("no error for a taken port")
	}
	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	b.retiring.Wait()
	if _, err := b.Apply(next); err == nil {
		t.Fatal("no error for a taken port")
	}
	if err := stranger.Close(); err != nil {
		t.Fatal(err)
	}
	b.apply(next)
	if err := b.mustDial("tcp", "ann", "first").echo("hello"); err != nil {
		t.Error(err)
	}
}

func TestCallWithoutAPortFollowsTheName(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr())
	b.config.Listeners[1].Routes = []string{"test/named"}
	b.apply(b.config)
	_, port := taken(t)
	c := b.mustDial("tcp", "ann", "first")
	within(t, "the name opens its address", func() bool { return c.echo("hello") == nil })
	if _, err := b.Apply(b.beside(1, port)); err == nil {
		t.Fatal("no error for a taken port")
	}
	if err := c.echo("still here"); err != nil {
		t.Fatal(err)
	}
	hosts.move(netip.MustParseAddr("192.0.2.77"))()
	within(t, "the name takes its address along", func() bool { return c.echo("still here") != nil })
}

// Calls over UDP share the socket of the port. A listener that needs the port gets an error that names their listener,
// until the last of them has ended.
func TestPortOfOldDatagramCallsStaysInUse(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	both := b.beside(0, testport.Free(t))
	moved := both.Clone()
	moved.Listeners = moved.Listeners[:4]
	b.apply(moved)
	_, err := b.Apply(both)
	if said := b.Status().Failures["test/gateway/udp-second"]; err == nil ||
		!strings.Contains(said, "calls that listener test/gateway/udp had there") {
		t.Errorf("failure %q does not say whose calls hold the port", said)
	}
	if err := c.echo("still here"); err != nil {
		t.Error(err)
	}
	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	b.retiring.Wait()
	b.apply(both)
	if err := b.mustDial("udp-second", "ann", "first").echo("hello"); err != nil {
		t.Error(err)
	}
}
