package session

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// session returns a session that started so many seconds after a fixed time.
func session(user string, second int, port uint16) *Session {
	return &Session{
		UserID: user, Started: time.Unix(1_700_000_000+int64(second), 0),
		Relay: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port),
	}
}

func TestListIsOldestFirst(t *testing.T) {
	table := NewTable()
	want := []*Session{session("ann", 1, 7), session("bob", 2, 5), session("ann", 2, 6), session("eve", 3, 4)}
	for _, i := range []int{2, 0, 3, 1} {
		if err := table.Reserve(want[i]); err != nil {
			t.Fatal(err)
		}
		table.Add(want[i])
	}
	got := table.List()
	if len(got) != len(want) || table.Len() != len(want) {
		t.Fatalf("%d listed, %d counted", len(got), table.Len())
	}
	for i, s := range want {
		if got[i] != s {
			t.Errorf("place %d holds %s of second %d", i, got[i].Relay, got[i].Started.Unix())
		}
	}
}

// T-12: concurrent requests create no more sessions than the quota of the user. An ended session frees its relay port
// once.
func TestQuotaHoldsForRequestsInFlight(t *testing.T) {
	table, sessions := NewTable(), make(chan *Session, 100)
	table.SetBounds(Bounds{UserSessions: 10})
	var requests sync.WaitGroup
	for i := range 100 {
		requests.Go(func() {
			s := session("ann", 0, uint16(i))
			if table.Reserve(s) == nil {
				table.Add(s)
				sessions <- s
			}
		})
	}
	requests.Wait()
	bob := session("bob", 0, 1)
	if err := table.Reserve(bob); table.Len() != 10 || err != nil {
		t.Fatalf("ann has %d sessions of 10, and bob none for it: %v", table.Len(), err)
	}
	table.Cancel(bob)
	ended := <-sessions
	if !table.Remove(ended) || table.Remove(ended) {
		t.Error("a session ends other than once")
	}
	if table.Reserve(session("ann", 0, 1)) != nil || !errors.Is(table.Reserve(session("ann", 0, 2)), ErrUserQuota) {
		t.Error("an ended session gives back other than one relay port")
	}
	table.SetBounds(Bounds{})
	if err := table.Reserve(session("ann", 0, 3)); err != nil {
		t.Errorf("no quota bounds: %v", err)
	}
}

// T-12: all users of one source share its quota, a /64 of IPv6 is one source, and a shared source has no quota.
func TestSourceHasAQuotaToo(t *testing.T) {
	table := NewTable()
	table.SetBounds(Bounds{SourceSessions: 1})
	from := func(user, source string) *Session {
		s := session(user, 0, 1)
		if s.Shared = source == ""; s.Shared {
			source = "10.0.0.1"
		}
		s.Source = Source(netip.MustParseAddr(source))
		return s
	}
	first := from("ann", "2001:db8::1")
	for _, c := range []struct {
		session *Session
		want    error
	}{
		{first, nil},
		{from("bob", "2001:db8::ffff:1"), ErrSourceQuota},
		{from("bob", "2001:db8:0:1::1"), nil},
		{from("bob", "192.0.2.1"), nil},
		{from("eve", "192.0.2.1"), ErrSourceQuota},
		{from("eve", "192.0.2.2"), nil},
		{from("eve", ""), nil},
		{from("eve", ""), nil},
	} {
		if err := table.Reserve(c.session); !errors.Is(err, c.want) {
			t.Errorf("%s from %s: %v, want %v", c.session.UserID, c.session.Source, err, c.want)
		}
	}
	table.Cancel(first)
	if err := table.Reserve(from("bob", "2001:db8::2")); err != nil {
		t.Errorf("the relay port is not given back: %v", err)
	}
}

// T-12: the used shares of the quotas belong to the user and the source with the most sessions. A shared source has no
// quota.
func TestUsedSharesOfTheQuotas(t *testing.T) {
	table := NewTable()
	assert := func(what string, user, source float64) {
		t.Helper()
		if u, s := table.QuotaUsed(); u != user || s != source {
			t.Errorf("%s: %g of the quota of a user, %g of a source, want %g and %g", what, u, s, user, source)
		}
	}
	reserve := func(user, source string, shared bool) {
		t.Helper()
		s := session(user, 0, 1)
		s.Source, s.Shared = Source(netip.MustParseAddr(source)), shared
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		reserve("ann", "192.0.2.1", false)
	}
	reserve("bob", "192.0.2.1", false)
	for range 2 {
		reserve("eve", "10.0.0.1", true)
	}
	assert("without quotas", 0, 0)
	table.SetBounds(Bounds{UserSessions: 4, SourceSessions: 8})
	assert("with quotas", 0.75, 0.5)
	for range 3 {
		reserve("zoe", "10.0.0.1", true)
	}
	assert("with more sessions of a shared source", 0.75, 0.5)
	table.SetBounds(Bounds{UserSessions: 2, SourceSessions: 1})
	assert("with lower quotas", 1, 1)
}

// T-18: traffic at sixteen times the rate limit or more is reduced to the rate, in each direction independently, for a
// session and for a user.
func TestBytesStayWithinTheirRate(t *testing.T) {
	const rate, datagram, seconds = 125_000, 1000, 20
	for name, bounds := range map[string]Bounds{
		"a session": {SessionRate: rate},
		"a user":    {UserRate: rate},
		"both":      {SessionRate: rate, UserRate: rate},
	} {
		synctest.Test(t, func(t *testing.T) {
			table := NewTable()
			table.SetBounds(bounds)
			one, other := session("ann", 0, 1), session("ann", 0, 2)
			for _, s := range []*Session{one, other} {
				if err := table.Reserve(s); err != nil {
					t.Fatal(err)
				}
				table.Add(s)
			}
			passed := map[*Session]int{}
			back := 0
			for range seconds * 1000 {
				time.Sleep(time.Millisecond)
				for range 2 { // 2,000 bytes each ms is sixteen times the rate
					for _, s := range []*Session{one, other} {
						if _, ok := s.Admits(ToPeer, datagram, time.Now()); ok {
							passed[s] += datagram
						}
					}
				}
				if _, ok := one.Admits(ToClient, 100, time.Now()); ok { // within the rate
					back += 100
				}
			}
			measured := passed[one]
			if bounds.UserRate > 0 {
				measured += passed[other]
			}
			if want := rate * seconds; measured < want*9/10 || measured > want*11/10 {
				t.Errorf("%s: %d bytes in %d s, want %d", name, measured, seconds, want)
			}
			if back != seconds*1000*100 {
				t.Errorf("%s: %d bytes back: the other direction suffers", name, back)
			}
		})
	}
}

func TestChangedReportsEveryChange(t *testing.T) {
	table, s := NewTable(), session("ann", 0, 1)
	for what, change := range map[string]func(){
		"drain": table.Drain,
		"add":   func() { table.Add(s) },
	} {
		changed := table.Changed()
		select {
		case <-changed:
			t.Fatalf("%s: told before", what)
		default:
		}
		change()
		select {
		case <-changed:
		default:
			t.Errorf("%s: not told", what)
		}
	}
	if !table.Draining() {
		t.Error("not draining")
	}
}
