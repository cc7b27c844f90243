package session

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var begin = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// denying adds a session of a user to a table.
func denying(t *Table, user string) *Session {
	s := &Session{UserID: user, Listener: "l", Started: begin, Source: netip.MustParsePrefix("192.0.2.1/32")}
	t.Restore(s)
	return s
}

func peerOf(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 5000)
}

// A denied peer has the number of sessions to which it was denied, and the number of failed sessions among them. A
// repeated denial counts once.
func TestDeniedPeersCountSessions(t *testing.T) {
	table := NewTable()
	var all []*Session
	for i := range 5 {
		s := denying(table, fmt.Sprint("user-", i))
		for n := range 3 {
			s.Deny(peerOf(1), n == 2, begin.Add(time.Duration(i)*time.Second))
		}
		all = append(all, s)
	}
	all[0].Traffic.Rx.Add(1) // the session reaches another peer
	check := func(after time.Duration, failed int) {
		t.Helper()
		list := table.Denied(begin, begin.Add(after))
		want := Denied{
			Listener: "l", Peer: peerOf(1), PortOnly: true, Sessions: 5, Failed: failed,
			First: begin, Last: begin.Add(4 * time.Second),
		}
		if len(list) != 1 || list[0] != want {
			t.Errorf("%+v, want %+v", list, want)
		}
	}
	check(inspection.SetupTime-1, 0)
	check(inspection.SetupTime, 4)
	table.Remove(all[0])
	table.Remove(all[1])
	check(inspection.SetupTime-1, 1)
	check(inspection.SetupTime, 4)
	all[1].Deny(peerOf(1), false, begin) // a request that was in progress at the end of the session
	check(inspection.SetupTime, 4)
	if list := table.Denied(begin.Add(5*time.Second), begin); len(list) != 0 {
		t.Errorf("earlier denials: %+v", list)
	}
	// After an hour the counts of the entry begin at 0 again.
	later := begin.Add(2 * time.Hour)
	all[2].Deny(peerOf(1), false, later)
	if list := table.Denied(later, later); len(list) != 1 || list[0].Sessions != 1 || list[0].First != later {
		t.Errorf("after two hours: %+v", list)
	}
}

// T-12: a user that is denied a million peers, with many sessions, does not displace the peers of other users.
func TestOneUserDoesNotPushOutDeniedPeers(t *testing.T) {
	table := NewTable()
	for i := range 35 {
		denying(table, fmt.Sprint("user-", i)).Deny(peerOf(0), false, begin)
	}
	for i := range 20 {
		denying(table, fmt.Sprint("other-", i)).Deny(peerOf(-1-i), false, begin)
	}
	var peers []int
	for n := range 3000 { // the hostile user is also the first that was denied the peers of others
		peers = append(peers, n+1)
	}
	hostile := denying(table, "hostile")
	hostile.Deny(peerOf(1<<20), false, begin)
	denying(table, "victim").Deny(peerOf(1<<20), false, begin)
	for _, n := range peers {
		if len(hostile.denied) == maxDeniedOfSession {
			hostile = denying(table, "hostile")
		}
		hostile.Deny(peerOf(n), false, begin.Add(time.Second))
	}
	list := table.Denied(begin, begin)
	if len(list) != maxDenied {
		t.Errorf("%d entries, want %d", len(list), maxDenied)
	}
	counts := map[netip.AddrPort]int{}
	for _, d := range list {
		counts[d.Peer] = d.Sessions
	}
	if counts[peerOf(0)] != 35 || counts[peerOf(1<<20)] != 2 {
		t.Errorf("%d and %d sessions, want 35 and 2", counts[peerOf(0)], counts[peerOf(1<<20)])
	}
	for i := range 20 {
		if counts[peerOf(-1-i)] != 1 {
			t.Errorf("the peer of user %d was pushed out", i)
		}
	}
}

// A flood of denied datagrams causes only a few records. All denied requests are recorded.
func TestDeniedDatagramsOfAFlood(t *testing.T) {
	table := NewTable()
	s := denying(table, "ann")
	for n := range 100 {
		s.DenyDatagram(peerOf(n%2), false, begin.Add(time.Duration(n)*time.Millisecond))
	}
	if list := table.Denied(begin, begin); len(list) != 1 || !list[0].Last.Equal(begin) {
		t.Errorf("in 100 ms: %+v", list)
	}
	s.DenyDatagram(peerOf(1), false, begin.Add(denyInterval))
	s.Deny(peerOf(2), false, begin)
	if list := table.Denied(begin, begin); len(list) != 3 {
		t.Errorf("%+v", list)
	}
}

// Sessions end while peers are denied to them and while the list is read.
func TestDeniedPeersOfEndingSessions(t *testing.T) {
	table := NewTable()
	var group sync.WaitGroup
	for i := range 8 {
		s := denying(table, fmt.Sprint("user-", i))
		group.Go(func() {
			for n := range 100 {
				s.Deny(peerOf(n%10), false, begin)
				table.Denied(begin, begin)
			}
		})
		group.Go(func() { table.Remove(s) })
	}
	group.Wait()
	if n := table.WithoutMedia(); n != 8 {
		t.Errorf("%d sessions without media, want 8", n)
	}
	for _, d := range table.Denied(begin, begin) {
		if d.Failed != d.Sessions {
			t.Errorf("%s was denied to %d sessions, of which %d have ended", d.Peer, d.Sessions, d.Failed)
		}
	}
}
