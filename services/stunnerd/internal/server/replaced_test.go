package server

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// moveTwice moves the UDP listener to another port, and again.
func (b *bed) moveTwice() {
	b.t.Helper()
	for range 2 {
		b.config = b.changed(func(next *config.Config) { next.Listeners[0].Port = testport.Free(b.t) })
		b.apply(b.config)
	}
}

// A session that goes on at an old port stands under the new config like all others, and goes with its listener.
func TestSessionAtAnOldPortObeysTheConfig(t *testing.T) {
	b := newBed(t)
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
	b, book := newNamedBed(t)
	book.move(b.peer.Addr())
	b.apply(b.config)
	c := b.mustDial("udp", "ann", "first")
	within(t, "the name opens its address", func() bool { return c.echo("hello") == nil })
	b.moveTwice()
	if err := c.echo("still here"); err != nil {
		t.Fatalf("the new port cuts the call: %v", err)
	}
	gone := book.move(netip.MustParseAddr("192.0.2.77"))()
	for c.echo("still here") == nil {
		if time.Since(gone) > time.Second {
			t.Fatal("media goes on a second after the name has moved away")
		}
	}
}

// A port that comes back while old calls are still on it takes new ones at once: the listener that retired is taken back.
func TestListenerGoesBackToAPortInUse(t *testing.T) {
	b := newBed(t)
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

// TLS takes the place of TCP on the same port, and the other way round, and the calls go on.
func TestProtocolChangesOnAPortInUse(t *testing.T) {
	b := newBed(t)
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
