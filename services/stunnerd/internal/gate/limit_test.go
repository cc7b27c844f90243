package gate

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"
)

// T-10: a source that asks and never comes back gets a few answers a second, whatever it asks.
func TestForgedSourcesGetFewAnswers(t *testing.T) { synctest.Test(t, forgedSources) }

// forgedSources runs in a bubble, in which no time passes while it floods.
func forgedSources(t *testing.T) {
	b := newBed(t)
	requests := map[string][]byte{
		"allocate":          b.build(request4(stun.MethodAllocate), udp),
		"unknown attribute": b.build(request4(stun.MethodAllocate), number{0x7777, 0}),
	}
	for name, raw := range requests {
		answers := 0
		for i := range 10_000 {
			// The port is not part of the source: a forger has 65,535 of them.
			c := newClient(fmt.Sprintf("203.0.113.%d:%d", len(name), 1+i))
			if b.send(c, raw) != nil {
				answers++
			}
		}
		if answers != challengeBurst {
			t.Errorf("%s: %d answers to 10,000 requests at once, want %d", name, answers, challengeBurst)
		}
	}
	other := newClient("198.51.100.1:1")
	if got := codeOf(b.send(other, b.signed(other, username, password, stun.MethodAllocate, udp))); got != 0 {
		t.Errorf("another source: %d", got)
	}
}

// Many users behind one address come back with their nonce and are all served.
func TestManyUsersBehindOneAddressAreServed(t *testing.T) {
	b := newBed(t)
	for i := range 500 {
		c := newClient(fmt.Sprintf("203.0.113.7:%d", 1000+i))
		if got := codeOf(b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))); got != 0 {
			t.Fatalf("user %d: %d", i, got)
		}
	}
}

// T-07: guessing one user's password from many addresses gets few answers too, and holds the user up nowhere.
func TestGuessingFromEverywhereIsAnsweredWithSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		answers := 0
		for i := range 500 {
			c := newClient(fmt.Sprintf("203.0.%d.%d:1", 113+i/250, 1+i%250))
			if b.send(c, b.signed(c, username, "guess", stun.MethodAllocate, udp)) != nil {
				answers++
			}
		}
		if answers != nameBurst {
			t.Errorf("%d answers to 500 guesses at once, want %d", answers, nameBurst)
		}
		c := newClient("198.51.100.1:1")
		if got := codeOf(b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))); got != 0 {
			t.Errorf("right password: %d", got)
		}
		if b.send(c, b.signed(c, "bob", "guess", stun.MethodAllocate, udp)) == nil {
			t.Error("another name is held up")
		}
	})
}

func TestBucketsFillAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, time.Second, 20, MayHide)
		source := netip.MustParseAddr("203.0.113.7")
		take := func(parts int) (n int) {
			for l.allow(source, parts) {
				n++
			}
			return n
		}
		if n := take(1); n != 20 {
			t.Errorf("burst of %d, want 20", n)
		}
		time.Sleep(time.Second)
		if n := take(1); n != 10 {
			t.Errorf("%d tokens after a second, want 10", n)
		}
		time.Sleep(100 * time.Millisecond)
		if n := take(bindings); n != bindings {
			t.Errorf("%d cheap answers for a token, want %d", n, bindings)
		}
		time.Sleep(time.Hour)
		if n := take(1); n != 20 {
			t.Errorf("burst of %d after an hour, want 20", n)
		}
		for range 100 {
			l.refund(source)
		}
		if n := take(1); n != 20 {
			t.Errorf("refunds fill the bucket to %d, want 20", n)
		}
	})
}

// A load balancer's address stands for many clients: it is limited, but at another scale.
func TestPrivateSourcesAreLimitedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, time.Second, 20, MayHide)
		n := 0
		for i := range 10_000 {
			if l.allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1) {
				n++
			}
		}
		if n != 20*HiddenFactor {
			t.Errorf("%d answers, want %d", n, 20*HiddenFactor)
		}
	})
}

func TestLimiterAllocatesNothing(t *testing.T) {
	l := newLimiter(10, time.Second, 20, MayHide)
	source := netip.MustParseAddr("203.0.113.7")
	if n := testing.AllocsPerRun(1000, func() { l.allow(source, 1) }); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
}
