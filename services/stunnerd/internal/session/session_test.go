package session

import (
	"net/netip"
	"sync"
	"testing"
	"time"
)

// session makes one that started so many seconds after another.
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

// T-12: many requests at a time take no more than a user's places, and an ended session gives its own back, once.
func TestQuotaHoldsForRequestsInFlight(t *testing.T) {
	table, sessions := NewTable(), make(chan *Session, 100)
	var requests sync.WaitGroup
	for range 100 {
		requests.Go(func() {
			if table.Reserve("ann", 10) {
				s := session("ann", 0, 1)
				table.Add(s)
				sessions <- s
			}
		})
	}
	requests.Wait()
	if table.Len() != 10 || !table.Reserve("bob", 1) {
		t.Fatalf("ann has %d sessions of 10, or bob has none for it", table.Len())
	}
	table.Cancel("bob")
	ended := <-sessions
	if !table.Remove(ended) || table.Remove(ended) {
		t.Error("a session ends other than once")
	}
	if !table.Reserve("ann", 10) || table.Reserve("ann", 10) {
		t.Error("an ended session gives back other than one place")
	}
	if !table.Reserve("ann", 0) {
		t.Error("a quota of 0 bounds")
	}
}

func TestChangedTellsOfEveryChange(t *testing.T) {
	table, s := NewTable(), session("ann", 0, 1)
	for what, change := range map[string]func(){
		"drain": table.Drain,
		"add":   func() { table.Add(s); table.Remove(s) },
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
