package gate

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// T-10: a source that does not use the nonces of its challenges gets few answers a second.
func TestForgedSourcesGetFewAnswers(t *testing.T) { synctest.Test(t, forgedSources) }

// forgedSources runs in virtual time, so no time passes during the flood.
func forgedSources(t *testing.T) {
	b := newFixture(t)
	requests := map[string][]byte{
		"allocate":          b.build(request4(stun.MethodAllocate), udp),
		"unknown attribute": b.build(request4(stun.MethodAllocate), number(0x7777, 0)),
	}
	for name, raw := range requests {
		answers := 0
		for i := range 10_000 {
			// The port is not part of the source, because a forger may use all of them.
			c := newClient(fmt.Sprintf("203.0.113.%d:%d", len(name), 1+i))
			if b.send(c, raw) != nil {
				answers++
			}
		}
		if answers != limit.ChallengeBurst {
			t.Errorf("%s: %d answers to 10,000 requests at once, want %d", name, answers, limit.ChallengeBurst)
		}
	}
	// The flood has used every port of its sources, so the bucket of another address and port may be empty, too. The
	// client repeats an unanswered request after 500 ms (RFC 8489 §6.2.1), and the bucket then has five tokens.
	time.Sleep(500 * time.Millisecond)
	other := newClient("198.51.100.1:1")
	if got := codeOf(b.send(other, b.signed(other, username, password, stun.MethodAllocate, udp))); got != 0 {
		t.Errorf("another source: %d", got)
	}
}

// Many users behind one address that use their nonces are all served.
func TestManyUsersBehindOneAddressAreServed(t *testing.T) {
	b := newFixture(t)
	for i := range 500 {
		c := newClient(fmt.Sprintf("203.0.113.7:%d", 1000+i))
		if got := codeOf(b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))); got != 0 {
			t.Fatalf("user %d: %d", i, got)
		}
	}
}

// T-07: guesses of one user's password from many addresses get few answers too, and do not lock the user out anywhere.
func TestGuessingFromEverywhereIsAnsweredWithSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		answers := 0
		for i := range 500 {
			c := newClient(fmt.Sprintf("203.0.%d.%d:1", 113+i/250, 1+i%250))
			if b.send(c, b.signed(c, username, "guess", stun.MethodAllocate, udp)) != nil {
				answers++
			}
		}
		if answers != limit.NameBurst {
			t.Errorf("%d answers to 500 guesses at once, want %d", answers, limit.NameBurst)
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

// T-10: a source that does not use its nonces is challenged ten times, then ten times a second.
func TestForgedSourceIsChallengedTenTimesASecond(t *testing.T) {
	virtually(t, func(v *virtual) {
		challenges := func(times int) (n int) {
			for i := range times {
				if v.send(
					newClient(fmt.Sprint("203.0.113.7:", 1+i)), v.build(request4(stun.MethodAllocate), udp),
				) != nil {
					n++
				}
			}
			return n
		}
		for _, step := range []struct {
			at   time.Duration
			want int
		}{
			{0, 10}, {90 * time.Millisecond, 0}, {110 * time.Millisecond, 1}, {601 * time.Millisecond, 5},
			{10 * time.Second, 10},
		} {
			v.at(step.at)
			if n := challenges(50); n != step.want {
				t.Errorf("%d of 50 challenged after %s, want %d", n, step.at, step.want)
			}
		}
	})
}
