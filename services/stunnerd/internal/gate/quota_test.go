package gate

import (
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// podsQuota stands for the other pods of a Gateway. It records the questions and the reported numbers.
type podsQuota struct {
	asked   []session.Admission
	answers []func(bool)
	told    map[session.User]int64
}

func (q *podsQuota) Admit(a session.Admission, answer func(bool)) {
	q.asked, q.answers = append(q.asked, a), append(q.answers, answer)
}

// withPods makes other pods count the sessions of a fixture.
func (b fixture) withPods(bounds session.Bounds) *podsQuota {
	q := &podsQuota{told: map[session.User]int64{}}
	b.quotas = q
	b.table.Report(func(u session.User, ports int64, _ bool) { q.told[u] = ports })
	b.table.SetBounds(bounds)
	return q
}

// total returns the reported number of sessions.
func (q *podsQuota) total() (n int64) {
	for _, ports := range q.told {
		n += ports
	}
	return n
}

// T-12: the answer to an Allocate request waits until other pods have admitted or refused the session. A repeated
// request gets no answer before, and the same answer afterwards. A refused session ends.
func TestOtherPodsAdmitASession(t *testing.T) {
	for _, ok := range []bool{true, false} {
		b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
		q, cred := b.withPods(session.Bounds{UserSessions: 3}), named("")
		raw := b.signed(c, cred.Username, string(cred.Password), stun.MethodAllocate, udp)
		for range 2 {
			if m := b.send(c, raw); m != nil {
				t.Fatalf("an answer before other pods have one: %v", m)
			}
		}
		if len(q.asked) != 1 || q.asked[0].Ports != 1 || q.asked[0].Limit != 3 || q.asked[0].User == (session.User{}) {
			t.Fatalf("other pods are asked %+v", q.asked)
		}
		if b.table.Added() != 0 || q.total() != 0 || b.meter.Sessions.Load() != 0 {
			t.Errorf("%d sessions count before they are admitted, %d in other pods", b.table.Added(), q.total())
		}
		q.answers[0](ok)
		m := &stun.Message{Raw: <-c.frames}
		if err := m.Decode(); err != nil {
			t.Fatal(err)
		}
		key := stun.NewLongTermIntegrity(cred.Username, realm, string(cred.Password))
		if err := key.Check(m); err != nil {
			t.Errorf("the answer is not signed: %v", err)
		}
		if ok {
			if codeOf(m) != 0 || codeOf(b.send(c, raw)) != 0 {
				t.Errorf("answers %d, and to a repetition an error", codeOf(m))
			}
			if q.total() != 1 || b.table.Added() != 1 || b.meter.Sessions.Load() != 1 {
				t.Errorf("%d sessions count, %d in other pods", b.table.Added(), q.total())
			}
			b.with(c, cred, stun.MethodRefresh, lifetime(0))
			if q.total() != 0 {
				t.Errorf("%d sessions count in other pods after the end", q.total())
			}
			continue
		}
		if codeOf(m) != 486 || b.refused(meter.Quota) != 1 {
			t.Errorf("%d, %v", codeOf(m), b.meter.Refusals())
		}
		if b.table.Len() != 0 || b.table.Added() != 0 || b.table.WithoutMedia() != 0 || b.Sessions() != 0 || q.total() != 0 {
			t.Errorf("a refused session is left, or counted: %d, %d, %d", b.table.Len(), b.table.Added(), b.table.WithoutMedia())
		}
		if codeOf(b.with(c, cred, stun.MethodRefresh)) != 437 {
			t.Error("a refused session can be refreshed")
		}
	}
}

// Other pods are asked only if a limit applies, with the lowest limit. A user that has reached its quota in this pod is
// refused at once.
func TestOtherPodsAreAskedOnlyIfALimitApplies(t *testing.T) {
	for _, c := range []struct {
		caveats string
		quota   int
		limit   int64
		over    error
	}{
		{"", 0, 0, nil},
		{"", 3, 3, session.ErrUserQuota},
		{":~1~A2", 0, 2, session.ErrCaveatAllocations},
		{":~1~A2", 3, 2, session.ErrCaveatAllocations},
		{":~1~A9", 3, 3, session.ErrUserQuota},
		{":~1~A3", 3, 3, session.ErrUserQuota},
		{":~1~A9007199254740991", 0, 1<<32 - 1, session.ErrCaveatAllocations},
	} {
		b := newMediaFixture(t)
		q := b.withPods(session.Bounds{UserSessions: c.quota})
		b.with(newClient("192.0.2.1:1000"), named(c.caveats), stun.MethodAllocate, udp)
		if c.limit == 0 {
			if len(q.asked) != 0 || b.table.Added() != 1 || len(q.told) != 0 {
				t.Errorf("%q: other pods are asked %+v and told %v without a limit", c.caveats, q.asked, q.told)
			}
			continue
		}
		if len(q.asked) != 1 || q.asked[0].Limit != c.limit || q.asked[0].Over != c.over {
			t.Errorf("%q with quota %d: other pods are asked %+v", c.caveats, c.quota, q.asked)
		}
	}
	b, cred := newMediaFixture(t), named("")
	q := b.withPods(session.Bounds{UserSessions: 1})
	b.with(newClient("192.0.2.1:1000"), cred, stun.MethodAllocate, udp)
	if got := codeOf(b.with(newClient("192.0.2.1:1001"), cred, stun.MethodAllocate, udp)); got != 486 || len(q.asked) != 1 {
		t.Errorf("%d above the quota of this pod, and other pods are asked %d times", got, len(q.asked))
	}
	q.answers[0](true)
	// A quota that is configured later counts the existing sessions.
	b = newMediaFixture(t)
	q = b.withPods(session.Bounds{})
	for i := range 2 {
		b.allocates(newClient([]string{"192.0.2.1:1000", "192.0.2.1:1001"}[i]), cred)
	}
	b.table.SetBounds(session.Bounds{UserSessions: 5})
	if q.total() != 2 {
		t.Errorf("%d sessions are told after the quota was set, want 2", q.total())
	}
	n := 0
	b.table.Users(func(_ session.User, ports int64) bool { n += int(ports); return true })
	if n != 2 {
		t.Errorf("%d sessions of all users, want 2", n)
	}
}

// A reserved port counts as a session. The session that uses it later is not counted again and needs no admission.
func TestOtherPodsCountReservedPorts(t *testing.T) {
	b, c, cred := newMediaFixture(t), newClient("192.0.2.1:1000"), named("")
	q := b.withPods(session.Bounds{UserSessions: 4})
	even := stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{0x80}}
	b.with(c, cred, stun.MethodAllocate, udp, even)
	if len(q.asked) != 1 || q.asked[0].Ports != 2 {
		t.Fatalf("other pods are asked %+v", q.asked)
	}
	q.answers[0](true)
	m := &stun.Message{Raw: <-c.frames}
	if err := m.Decode(); err != nil {
		t.Fatal(err)
	}
	reserved, err := m.Get(stun.AttrReservationToken)
	if err != nil || q.total() != 2 {
		t.Fatalf("%d sessions are told, want 2: %v", q.total(), err)
	}
	token := stun.RawAttribute{Type: stun.AttrReservationToken, Value: reserved}
	if got := codeOf(b.with(newClient("192.0.2.1:1001"), cred, stun.MethodAllocate, udp, token)); got != 0 {
		t.Errorf("allocate a reserved port: %d", got)
	}
	if len(q.asked) != 1 || q.total() != 2 {
		t.Errorf("other pods are asked %d times and told of %d sessions", len(q.asked), q.total())
	}
}

// If a session ends before other pods have answered, it is not counted, and a later answer has no effect.
func TestSessionEndsBeforeItIsAdmitted(t *testing.T) {
	for _, ok := range []bool{true, false} {
		b, c, cred := newMediaFixture(t), newClient("192.0.2.1:1000"), named("")
		q := b.withPods(session.Bounds{UserSessions: 1})
		b.with(c, cred, stun.MethodAllocate, udp)
		b.with(c, cred, stun.MethodRefresh, lifetime(0))
		q.answers[0](ok)
		if b.table.Len() != 0 || b.table.Added() != 0 || q.total() != 0 || b.table.WithoutMedia() != 0 {
			t.Errorf("admitted %t after the end: %d sessions, %d told", ok, b.table.Added(), q.total())
		}
		again := newClient("192.0.2.1:1001")
		b.with(again, cred, stun.MethodAllocate, udp)
		if len(q.asked) != 2 || q.asked[1].Ports != 1 {
			t.Errorf("asked %+v", q.asked)
		}
	}
}

// A session that is handed over counts at one pod only: at the former owner until it has confirmed the handover, and
// then at the successor. A session that waits for admission is not handed over.
func TestHandedSessionCountsOnce(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		here := s.withPods(session.Bounds{UserSessions: 2}) // counts the existing session
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		next := s.successor()
		there := next.withPods(session.Bounds{UserSessions: 2})
		if err := next.Take(transfer(t, &d.Record), c, next.former()); err != nil {
			t.Fatal(err)
		}
		if here.total() != 1 || there.total() != 0 {
			t.Errorf("%d and %d sessions count before the session has left", here.total(), there.total())
		}
		d.Go(func([]relay.Datagram) {})
		_ = d.Socket().Close()
		if here.total() != 0 || there.total() != 0 {
			t.Errorf("%d and %d sessions count when the session has left", here.total(), there.total())
		}
		next.Confirm(c.addr)
		next.Confirm(c.addr)
		if here.total() != 0 || there.total() != 1 || len(there.asked) != 0 {
			t.Errorf("%d and %d sessions count when the successor is the owner", here.total(), there.total())
		}
		waits := newClient("192.0.2.1:1001")
		next.requests(waits)
		if _, err := next.Depart(waits.addr, none); err == nil || len(there.asked) != 1 {
			t.Errorf("a session that waits for admission departs: %v", err)
		}
	})
}

// requests makes a client send an Allocate request. It expects no answer.
func (b fixture) requests(c *client) {
	b.t.Helper()
	if m := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp)); m != nil {
		b.t.Errorf("an answer: %v", m)
	}
}
