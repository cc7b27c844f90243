package session

import (
	"errors"
	"maps"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// reported calls Report, and returns the reported numbers by user.
func reported(table *Table) map[User]int64 {
	told := map[User]int64{}
	table.Report(func(u User, ports int64, fewer bool) {
		if !fewer && ports < told[u] {
			panic("fewer is wrong")
		}
		told[u] = ports
	})
	return told
}

// T-12: a restored session counts in other pods at once, and a new session when they have admitted it. Each session
// counts once.
func TestEachSessionCountsOnceInOtherPods(t *testing.T) {
	table := NewTable()
	told := reported(table)
	table.SetBounds(Bounds{UserSessions: 3})
	restored, admitted, refused, canceled := session("ann", 0, 1), session("ann", 0, 2), session("ann", 0, 3), session("ann", 0, 3)
	table.Restore(restored)
	if a, ok := table.Admission(restored); ok {
		t.Errorf("a restored session needs admission: %+v", a)
	}
	ann := User{}
	for u := range told {
		ann = u
	}
	expect := func(when string, n int64) {
		t.Helper()
		listed := int64(0)
		table.Users(func(u User, ports int64) bool {
			if u != ann {
				t.Errorf("%s: a user %x is listed", when, u)
			}
			listed += ports
			return true
		})
		if told[ann] != n || listed != n {
			t.Errorf("%s: %d sessions are told and %d listed, want %d", when, told[ann], listed, n)
		}
	}
	expect("restored", 1)
	for _, s := range []*Session{admitted, canceled} {
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
	}
	a, ok := table.Admission(admitted)
	if !ok || a != (Admission{User: ann, Ports: 3, Limit: 3, Over: ErrUserQuota}) {
		t.Errorf("the admission is %+v, %t", a, ok)
	}
	if err := table.Reserve(session("ann", 0, 4)); !errors.Is(err, ErrUserQuota) {
		t.Errorf("provisional relay ports do not count here: %v", err)
	}
	table.Cancel(canceled)
	table.Add(admitted)
	if told[ann] != 1 {
		t.Errorf("%d sessions are told before another is admitted", told[ann])
	}
	for range 2 {
		table.Settle(admitted)
		expect("admitted", 2)
	}
	if err := table.Reserve(refused); err != nil {
		t.Fatal(err)
	}
	table.Add(refused)
	if got := table.Added(); got != 1 {
		t.Errorf("%d sessions were added, want 1", got)
	}
	table.Remove(restored) // reported when no relay port is provisional
	if got := maps.Collect(table.Users)[ann]; got != 2 || told[ann] != 2 {
		t.Errorf("%d sessions are listed and %d told while one is provisional", got, told[ann])
	}
	table.Remove(refused)
	table.Settle(refused)
	expect("refused", 1)
	table.Remove(admitted)
	if told[ann] != 0 || table.Added() != 1 || table.WithoutMedia() != 2 {
		t.Errorf("%d sessions are told, %d were added, %d without media", told[ann], table.Added(), table.WithoutMedia())
	}
	for range table.Users {
		t.Error("a user without a session is listed")
	}
}

// Without other pods, or without a limit, no number is reported.
func TestNothingIsCountedForOtherPods(t *testing.T) {
	limited, alone := NewTable(), NewTable()
	told := reported(limited)
	alone.SetBounds(Bounds{UserSessions: 3})
	for _, table := range []*Table{limited, alone} {
		s := session("ann", 0, 1)
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
		if a, ok := table.Admission(s); ok || len(told) != 0 {
			t.Errorf("admission %+v, told %v", a, told)
		}
	}
	s := session("bob", 0, 1)
	s.Caveats = credential.Caveats{Allocations: 2}
	if err := limited.Reserve(s); err != nil {
		t.Fatal(err)
	}
	if a, ok := limited.Admission(s); !ok || a.Limit != 2 || a.Over != ErrCaveatAllocations {
		t.Errorf("admission %+v, %t", a, ok)
	}
	limited.Add(s)
	limited.Settle(s)
	if got := maps.Collect(limited.Users); len(got) != 1 {
		t.Errorf("%v are listed", got)
	}
}

// BenchmarkReserve is the cost of a session in the table, alone and if other pods count it.
func BenchmarkReserve(b *testing.B) {
	for name, table := range map[string]*Table{"alone": NewTable(), "counted": NewTable()} {
		if name == "counted" {
			table.Report(func(User, int64, bool) {})
		}
		table.SetBounds(Bounds{UserSessions: 3})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				s := session("ann", 0, 1)
				if table.Reserve(s) != nil {
					b.Fatal("refused")
				}
				table.Admission(s)
				table.Add(s)
				table.Settle(s)
				table.Remove(s)
			}
		})
	}
}
