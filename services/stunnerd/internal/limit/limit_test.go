package limit

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestBucketsFillAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, time.Second, 20, Private)
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
		if n := take(Binding); n != Binding {
			t.Errorf("%d cheap answers for a token, want %d", n, Binding)
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

// All private sources together have PrivateFactor times the limit of a public source.
func TestPrivateSourcesAreLimitedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, time.Second, 20, Private)
		n := 0
		for i := range 10_000 {
			if l.allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1) {
				n++
			}
		}
		if n != 20*PrivateFactor {
			t.Errorf("%d answers, want %d", n, 20*PrivateFactor)
		}
	})
}

func TestLimiterAllocatesNothing(t *testing.T) {
	l := newLimiter(10, time.Second, 20, Private)
	source := netip.MustParseAddr("203.0.113.7")
	if n := testing.AllocsPerRun(1000, func() { l.allow(source, 1) }); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
}

// T-07: the tables of guessers have a bounded size.
func TestGuessersTakeBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProcess()
		for i := range 3 * maxGuessers {
			at := func(net int) Request {
				return Request{
					Client:   netip.MustParseAddrPort(fmt.Sprintf("%d.%d.%d.7:1", net, i/250, i%250)),
					Username: []byte("ann"),
				}
			}
			p.WrongPassword(at(203))
			p.RightPassword(at(204).Client.Addr(), "ann")
			if i%100 == 0 {
				time.Sleep(100 * time.Second)
			}
		}
		g := p.guesses
		if a, b := len(g.spent), len(g.authenticated); a > maxGuessers || b > maxGuessers || a == 0 || b == 0 {
			t.Errorf("%d sources and %d users are stored, want at most %d each", a, b, maxGuessers)
		}
	})
}

// the buckets fill by the monotonic clock. A time without a monotonic reading would be compared by the wall
// clock.
func TestLimiterIsMonotonic(t *testing.T) {
	if at := newLimiter(1, time.Second, 1, nil).epoch; at == at.Round(0) {
		t.Errorf("%s has no monotonic reading", at)
	}
}
