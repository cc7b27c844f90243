package meter

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func noteOf(i int) Note {
	return Note{Listener: "media/edge/udp", Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(i))}
}

func TestRecentReturnsTheLatestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		for i := range 3 * recentSize {
			m.DropNote([]Reason{Malformed, PeerDenied, TooLarge}[i%3], noteOf(i))
			time.Sleep(time.Second)
		}
		m.RefuseNote(UnknownUser, Note{User: "bob"})
		entries, suppressed := m.Recent()
		if len(entries) != recentSize || suppressed != 0 {
			t.Fatalf("%d entries, %d suppressed", len(entries), suppressed)
		}
		if e := entries[0]; e.Reason != UnknownUser || e.User != "bob" || !e.Answered || e.Times != 1 ||
			!e.Last.Equal(time.Now()) {
			t.Errorf("newest %+v", e)
		}
		for i, e := range entries[1:] {
			if want := noteOf(3*recentSize - 1 - i); e.Note != want || e.Answered {
				t.Fatalf("entry %d is %+v, want %+v", i+1, e, want)
			}
		}
	})
}

func TestEqualNotesShareAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, start := New(), time.Now()
		m.DropNote(PeerDenied, noteOf(1))
		m.DropNote(PeerDenied, noteOf(2))
		time.Sleep(time.Minute)
		m.DropNote(PeerDenied, noteOf(1))
		m.RefuseNote(PeerDenied, noteOf(1))
		entries, _ := m.Recent()
		if len(entries) != 3 || entries[1].Note != noteOf(1) || entries[1].Times != 2 {
			t.Fatalf("entries %+v", entries)
		}
		if e := entries[1]; !e.First.Equal(start) || !e.Last.Equal(start.Add(time.Minute)) {
			t.Errorf("from %s to %s", e.First, e.Last)
		}
	})
}

func TestReasonHasAtMostItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		m.RefuseNote(WrongPassword, Note{User: "ann"})
		for i := range 10 * recentSize {
			m.DropNote(Malformed, noteOf(i))
			time.Sleep(time.Second)
		}
		entries, _ := m.Recent()
		if len(entries) != recentShare+1 || entries[recentShare].Reason != WrongPassword {
			t.Errorf("%d entries, the oldest %+v", len(entries), entries[len(entries)-1])
		}
	})
}

func TestNotesBeyondTheRateAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		for range 10 { // the worst case: one burst just before and one just after a full second
			for i := range 1000 {
				m.DropNote(Malformed, noteOf(i))
			}
			time.Sleep(time.Second / 2)
		}
		taken := 10*1000 - m.recent.suppressed.Load()
		if taken != 5*recentRate {
			t.Errorf("%d taken in 5 s, want %d", taken, 5*recentRate)
		}
		if m.Drops()["malformed"] != 10*1000 {
			t.Errorf("drops %v", m.Drops())
		}
	})
}

func TestConcurrentNotes(t *testing.T) {
	m, writers := New(), sync.WaitGroup{}
	for w := range 4 {
		writers.Go(func() {
			for i := range 1000 {
				m.DropNote(Malformed, noteOf(4*i+w))
				m.Recent()
			}
		})
	}
	writers.Wait()
	entries, suppressed := m.Recent()
	total := suppressed
	for _, e := range entries {
		total += uint64(e.Times)
	}
	if len(entries) != recentShare || total > 4000 || suppressed == 0 {
		t.Errorf("%d entries, %d suppressed, %d in all", len(entries), suppressed, total)
	}
}

func TestChallengesAreCountedAndNotKept(t *testing.T) {
	m := New()
	m.RefuseNote(NoCredential, noteOf(1))
	if entries, _ := m.Recent(); len(entries) != 0 || m.Refusals()["no_credential"] != 1 {
		t.Errorf("entries %v, refusals %v", entries, m.Refusals())
	}
}

func TestUserNamesAreCut(t *testing.T) {
	m := New()
	m.RefuseNote(UnknownUser, Note{User: strings.Repeat("x", 60_000)})
	if entries, _ := m.Recent(); len(entries[0].User) != maxUser {
		t.Errorf("keeps %d bytes", len(entries[0].User))
	}
}

// G-11: neither a recorded nor a suppressed note allocates.
func TestNotesAllocateNothing(t *testing.T) {
	m, i := New(), 0
	flood := func() {
		m.recent.suppressedUntil.Store(0) // as if so much time had passed that notes are recorded again
		for j := range m.recent.times {
			m.recent.times[j] = -recentPeriod
		}
		for range 10 * recentRate {
			m.DropNote(PeerDenied, noteOf(i))
			i++
		}
	}
	// The test makes one run, because an average would hide a single allocation.
	if n := testing.AllocsPerRun(1, flood); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
	if _, suppressed := m.Recent(); suppressed != 2*9*recentRate {
		t.Errorf("%d suppressed", suppressed)
	}
}

// BenchmarkDropNote measures a drop in a flood.
func BenchmarkDropNote(b *testing.B) {
	m, n := New(), noteOf(1)
	b.ReportAllocs()
	for b.Loop() {
		m.DropNote(PeerDenied, n)
	}
}

func ExampleMeter_Recent() {
	m := New()
	m.RefuseNote(Quota, Note{Listener: "media/edge/udp", User: "ann"})
	entries, _ := m.Recent()
	fmt.Println(entries[0].Reason, entries[0].Listener, entries[0].User)
	// Output: quota media/edge/udp ann
}
