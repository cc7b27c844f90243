package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// withBytes returns a session with a credential of a user that allows this many bytes.
func withBytes(user string, expires time.Time, bytes int64) *Session {
	s := client{user, "192.0.2.1"}.session()
	s.Caveats = credential.Caveats{Bytes: bytes}
	s.Username = fmt.Sprint(expires.Unix(), ":", user, ":", s.Caveats)
	return s
}

// runs creates sessions, uses bytes in them, and ends them.
func runs(t *testing.T, table *Table, s *Session, use int) {
	t.Helper()
	if err := table.Reserve(s); err != nil {
		t.Fatal(err)
	}
	table.Add(s)
	s.Admits(ToPeer, use, time.Now())
	table.Remove(s)
}

// An allowance remains when the sessions of its credential have ended. Another credential of the same user has an
// allowance of its own.
func TestAllowanceOutlivesSessions(t *testing.T) {
	table, expires := NewTable(), time.Now().Add(time.Hour)
	runs(t, table, withBytes("ann", expires, 1000), 600)
	runs(t, table, withBytes("ann", expires, 1000), 400)
	if err := table.Reserve(withBytes("ann", expires, 1000)); !errors.Is(err, ErrCaveatBytes) {
		t.Errorf("after all bytes: %v", err)
	}
	runs(t, table, withBytes("ann", expires.Add(time.Second), 1000), 1)
	runs(t, table, withBytes("bob", expires, 1000), 1)
	// A datagram that is larger than the remaining bytes uses all of them, so that no further session begins.
	s := withBytes("eve", expires, 1000)
	runs(t, table, s, 999)
	if why, ok := s.Admits(ToClient, 2, time.Now()); ok || why != meter.CaveatBytes {
		t.Errorf("more bytes than allowed: %v, %v", why, ok)
	}
	if err := table.Reserve(withBytes("eve", expires, 1000)); !errors.Is(err, ErrCaveatBytes) {
		t.Errorf("after a datagram that did not fit: %v", err)
	}
	if held := table.Held(); held != (Amounts{}) {
		t.Errorf("the table holds %v", held)
	}
}

// Concurrent datagrams of several sessions use exactly the bytes of their credential.
func TestAllowanceIsExact(t *testing.T) {
	table, expires := NewTable(), time.Now().Add(time.Hour)
	const total = 1 << 20
	var group sync.WaitGroup
	var passed [4]int64
	var sessions [len(passed)]*Session // all begin before the bytes are used
	for i := range sessions {
		sessions[i] = withBytes("ann", expires, total)
		if err := table.Reserve(sessions[i]); err != nil {
			t.Fatal(err)
		}
		table.Add(sessions[i])
	}
	for i, s := range sessions {
		group.Go(func() {
			for {
				if _, ok := s.Admits(Direction(i%2), 64, time.Now()); !ok {
					return
				}
				passed[i] += 64
			}
		})
	}
	group.Wait()
	if sum := passed[0] + passed[1] + passed[2] + passed[3]; sum != total {
		t.Errorf("%d bytes passed, want %d", sum, total)
	}
}

// The number of allowances of credentials without a session is bounded. Unused allowances and allowances of expired
// credentials are removed first, then the allowances that expire first. Allowances of live sessions stay.
func TestAllowancesAreBounded(t *testing.T) {
	table, now := NewTable(), time.Now()
	live := withBytes("live", now.Add(time.Minute), 10)
	if err := table.Reserve(live); err != nil {
		t.Fatal(err)
	}
	table.Add(live)
	for i := range maxAllowances + 1 {
		expires, use := now.Add(time.Duration(i+60)*time.Minute), 10
		switch i % 4 {
		case 0:
			expires = now.Add(-2 * time.Hour)
		case 1:
			use = 0
		}
		runs(t, table, withBytes(fmt.Sprint("user-", i), expires, 10), use)
	}
	if n := len(table.allowances); n > maxAllowances/2+1+maxAllowances/4 {
		t.Errorf("%d allowances", n)
	}
	for i := range 2 * maxAllowances {
		runs(t, table, withBytes(fmt.Sprint("later-", i), now.Add(1000*time.Hour), 10), 10)
	}
	if n := len(table.allowances); n > maxAllowances || n < maxAllowances*7/8 {
		t.Errorf("%d allowances, want at most %d", n, maxAllowances)
	}
	if table.allowances[keyOf(live)] == nil {
		t.Error("the allowance of a live session is forgotten")
	}
	runs(t, table, withBytes("last", now.Add(2000*time.Hour), 10), 10)
	first, last := withBytes("user-2", now.Add(62*time.Minute), 10), withBytes("last", now.Add(2000*time.Hour), 10)
	if err := table.Reserve(first); err != nil {
		t.Errorf("the credential that expires first is not forgotten: %v", err)
	}
	if err := table.Reserve(last); !errors.Is(err, ErrCaveatBytes) {
		t.Errorf("the last credential: %v", err)
	}
	table.SetBounds(Bounds{Capacity: Amounts{Memory: allowancePart * priceAllowance * 100}})
	table.forgetAllowances()
	if n := len(table.allowances); n > 100 {
		t.Errorf("%d allowances in memory for 100", n)
	}
}

// Only allowances of credentials without a session count against the bound. With more live sessions than the bound, the
// used bytes of a credential are still remembered.
func TestSessionsDisplaceNoAllowance(t *testing.T) {
	table := NewTable()
	expires := time.Now().Add(time.Minute)
	runs(t, table, withBytes("spent", expires, 10), 10)
	for i := range maxAllowances + 2 {
		s := withBytes(fmt.Sprint("live-", i), time.Now().Add(time.Hour), 10)
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Reserve(withBytes("spent", expires, 10)); !errors.Is(err, ErrCaveatBytes) {
		t.Errorf("the credential that has used its bytes: %v", err)
	}
}

// priceAllowance covers the memory of an allowance.
func TestPriceOfAllowance(t *testing.T) {
	const n = 3500 // just after the map has grown, when its memory for an entry is largest
	table := NewTable()
	sessions := make([]*Session, n)
	for i := range sessions {
		sessions[i] = withBytes(fmt.Sprint("user-", i), time.Now().Add(time.Hour), 10)
	}
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	table.mu.Lock()
	for _, s := range sessions {
		table.allow(s)
	}
	table.mu.Unlock()
	cost := (inUse() - before) / n
	t.Logf("%d bytes", cost)
	if cost > priceAllowance {
		t.Errorf("an allowance takes %d bytes, and %d are counted", cost, priceAllowance)
	}
	runtime.KeepAlive(table)
	runtime.KeepAlive(sessions)
}

// Admits does not allocate, with caveats or without.
func TestAdmitsDoesNotAllocate(t *testing.T) {
	for _, c := range []credential.Caveats{
		{}, {Routes: []string{"a/b"}}, {Bytes: 1 << 50, BytesPerSecond: 1 << 50}, {Bytes: 1}, {BytesPerSecond: 1},
	} {
		table, s := NewTable(), withBytes("ann", time.Now().Add(time.Hour), 1)
		s.Caveats = c
		if err := table.Reserve(s); err != nil {
			t.Fatal(err)
		}
		table.Add(s)
		now := time.Now()
		if n := testing.AllocsPerRun(1000, func() { s.Admits(ToPeer, 1000, now) }); n != 0 {
			t.Errorf("%+v: %v allocations for a datagram", c, n)
		}
	}
}

func BenchmarkAdmits(b *testing.B) {
	for name, c := range map[string]credential.Caveats{
		"none": {}, "routes": {Routes: []string{"a/b"}}, "bytes": {Bytes: 1 << 53, BytesPerSecond: 1 << 50},
	} {
		b.Run(name, func(b *testing.B) {
			table, s := NewTable(), withBytes("ann", time.Now().Add(time.Hour), 1)
			s.Caveats = c
			if err := table.Reserve(s); err != nil {
				b.Fatal(err)
			}
			table.Add(s)
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				s.Admits(Direction(rand.IntN(2)), 1000, now)
			}
		})
	}
}
