package usage

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// last queries the usage since a number of minutes ago.
func (b *fixture) last(minutes int, by inspection.UsageBy, user string) inspection.Usage {
	return b.Hour(inspection.UsageQuery{
		From: b.now.Add(-time.Duration(minutes) * time.Minute), To: b.now.Add(time.Second), By: by, User: user,
		Limit: inspection.MaxLimit,
	})
}

// figures are the expected numbers of a user or a route that has only sent.
func figures(sessions uint64, seconds float64, bytes, packets uint64) inspection.UsageFigures {
	return inspection.UsageFigures{
		Sessions: sessions, Seconds: seconds, Sent: inspection.UsageCount{Bytes: bytes, Packets: packets},
	}
}

func (b *fixture) expectHour(
	what string, got inspection.Usage, total inspection.UsageFigures, entries ...inspection.UsageEntry,
) {
	b.t.Helper()
	if entries == nil {
		entries = []inspection.UsageEntry{}
	}
	if got.Total != total || !reflect.DeepEqual(got.Entries, entries) || got.Truncated {
		b.t.Errorf("%s: %+v, want %+v and %+v", what, got, total, entries)
	}
}

// The last hour has the usage of users by minute, user and route, with and without records. Older usage is removed.
func TestLastHour(t *testing.T) {
	for name, open := range map[string]func(*fixture){
		"with records":    func(*fixture) {},
		"without records": func(b *fixture) { b.o.Sink = nil; b.Recorder = Open(b.o) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, Options{})
			open(b)
			ann, bob := b.begin("ann"), b.begin("bob")
			send(ann, "media/echo", 100)
			send(ann, "media/sfu", 10)
			b.pass(61)
			send(bob, "media/echo", 1_000)
			send(ann, "media/echo", 1)
			b.expectHour("the last minute", b.last(0, inspection.UsageByUser, ""), figures(0, 2, 1_001, 2),
				inspection.UsageEntry{User: "bob", UsageFigures: figures(0, 1, 1_000, 1)},
				inspection.UsageEntry{User: "ann", UsageFigures: figures(0, 1, 1, 1)})
			b.expectHour("the hour by user", b.last(60, inspection.UsageByUser, ""), figures(2, 122, 1_111, 4),
				inspection.UsageEntry{User: "bob", UsageFigures: figures(1, 61, 1_000, 1)},
				inspection.UsageEntry{User: "ann", UsageFigures: figures(1, 61, 111, 3)})
			b.expectHour("a user", b.last(60, inspection.UsageByUser, "ann"), figures(1, 61, 111, 3),
				inspection.UsageEntry{User: "ann", UsageFigures: figures(1, 61, 111, 3)})
			b.expectHour("an unknown user", b.last(60, inspection.UsageByUser, "eve"), inspection.UsageFigures{})

			bob.End()
			b.pass(2)
			bob.Route("media/echo").Rx.Add(7) // in progress at the end
			b.pass(int(settleTime / time.Second))
			routes := b.last(60, inspection.UsageByRoute, "bob")
			want := figures(1, 61, 1_000, 1)
			want.Received = inspection.UsageCount{Bytes: 7, Packets: 1}
			b.expectHour("an ended session by route", routes, want, inspection.UsageEntry{Route: "media/echo",
				UsageFigures: inspection.UsageFigures{Sent: want.Sent, Received: want.Received}})
			b.expectHour("two routes", b.last(60, inspection.UsageByRoute, "ann"), figures(1, 66, 111, 3),
				inspection.UsageEntry{Route: "media/echo", UsageFigures: figures(0, 0, 101, 2)},
				inspection.UsageEntry{Route: "media/sfu", UsageFigures: figures(0, 0, 10, 1)})

			ann.End()
			b.pass(3_600)
			if got := b.last(60, inspection.UsageByUser, "bob"); got.Total.Received.Bytes != 7 || got.Total.Sessions != 0 {
				t.Errorf("an hour later: %+v", got)
			}
			b.pass(240)
			b.expectHour("more than an hour later", b.last(60, inspection.UsageByUser, ""), inspection.UsageFigures{})
			if len(b.hour.users) != 0 || b.hour.size != 0 {
				t.Errorf("%d users and %d bytes stay", len(b.hour.users), b.hour.size)
			}
		})
	}
}

// The bounds of a period are rounded to whole minutes, and the answer contains them.
func TestPeriodOfLastHour(t *testing.T) {
	b := newFixture(t, Options{})
	minute := b.now
	a := b.begin("ann")
	for range 10 {
		b.pass(30)
		send(a, "media/echo", 1)
		b.pass(30)
	}
	for _, c := range []struct {
		from, to time.Duration
		minutes  int
		bytes    uint64
	}{
		{0, 10 * time.Minute, 10, 10},
		{time.Minute, 2 * time.Minute, 1, 1},
		{time.Minute, 2*time.Minute + time.Second, 2, 2},
		{2*time.Minute - time.Second, 2 * time.Minute, 1, 1},
		{90 * time.Second, 270 * time.Second, 4, 4},
		{9 * time.Minute, 11 * time.Minute, 1, 1},
	} {
		got := b.Hour(inspection.UsageQuery{
			From: minute.Add(c.from), To: minute.Add(c.to), By: inspection.UsageByUser, Limit: 1,
		})
		if got.Total.Sent.Bytes != c.bytes || got.To.Sub(got.From) != time.Duration(c.minutes)*time.Minute ||
			!got.Since.Equal(minute) {
			t.Errorf("from %v to %v: %+v", c.from, c.to, got)
		}
	}
}

// A continued session does not count as a new session, and traffic that the previous process has counted does not count
// again. A session that could not start does not count.
func TestLastHourOfContinuedSessions(t *testing.T) {
	b := newFixture(t, Options{Dir: t.TempDir()})
	a, lost := b.begin("ann"), b.begin("lost")
	send(a, "media/echo", 1_000)
	send(lost, "media/echo", 1_000)
	b.tick()
	b.kill(a.id)
	b.now = b.now.Add(20 * time.Second)
	a = b.Begin(Identity{ID: a.id, User: "ann", Started: b.now, Continued: true})
	send(a, "media/echo", 5)
	moved := b.Begin(Identity{ID: New(), User: "moved", Started: b.now, Continued: true})
	send(moved, "media/echo", 6)
	b.begin("failed").End()
	b.pass(10)
	b.expectHour("after a crash", b.last(60, inspection.UsageByUser, ""), figures(0, 20, 11, 2),
		inspection.UsageEntry{User: "moved", UsageFigures: figures(0, 10, 6, 1)},
		inspection.UsageEntry{User: "ann", UsageFigures: figures(0, 10, 5, 1)})
}

// With hashed users the answer shows hashes, and a query has the id. The id of another user that equals a hash selects
// nothing.
func TestLastHourOfHashedUsers(t *testing.T) {
	b := newFixture(t, Options{User: func(user string) string { return "hash of " + user }})
	send(b.begin("ann"), "media/echo", 5)
	b.expectHour("by id", b.last(60, inspection.UsageByUser, "ann"), figures(1, 0, 5, 1),
		inspection.UsageEntry{User: "hash of ann", UsageFigures: figures(1, 0, 5, 1)})
	b.expectHour("by hash", b.last(60, inspection.UsageByUser, "hash of ann"), inspection.UsageFigures{})
}

// Users beyond the memory bound are in the total only, and the answer says so. The users with the most bytes stay.
func TestLastHourIsBounded(t *testing.T) {
	b := newFixture(t, Options{Memory: 1})
	if b.hour.limit != leastHour {
		t.Fatalf("the limit is %d", b.hour.limit)
	}
	var total inspection.UsageFigures
	heavy := b.begin("heavy")
	send(heavy, "media/echo", 1_000_000)
	total.Add(figures(1, 0, 1_000_000, 1))
	for i := range 3_000 {
		a := b.begin(fmt.Sprint(strings.Repeat("x", 900), i))
		send(a, "media/echo", 3)
		a.End()
		total.Add(figures(1, 0, 3, 1))
		if b.hour.size > b.hour.limit {
			t.Fatalf("%d bytes are in use, the limit is %d", b.hour.size, b.hour.limit)
		}
	}
	got := b.last(60, inspection.UsageByUser, "")
	if got.Total != total || !got.Truncated || got.Entries[0].User != "heavy" || len(got.Entries) < 50 {
		t.Errorf("total %+v, %d entries, truncated %t", got.Total, len(got.Entries), got.Truncated)
	}
	if got := b.last(60, inspection.UsageByRoute, "heavy"); got.Total.Sent.Bytes != 1_000_000 || !got.Truncated {
		t.Errorf("one user: %+v", got)
	}
	size := 0
	for _, u := range b.hour.users {
		size += u.size()
	}
	if size != b.hour.size {
		t.Errorf("%d bytes are in use, but %d are counted", size, b.hour.size)
	}
}

// Entries beyond the limit of the request are included in the total.
func TestLimitOfLastHour(t *testing.T) {
	b := newFixture(t, Options{})
	for i := range 5 {
		send(b.begin(fmt.Sprint(i)), "media/echo", i)
	}
	got := b.Hour(inspection.UsageQuery{From: b.now, To: b.now.Add(time.Second), By: inspection.UsageByUser, Limit: 2})
	if len(got.Entries) != 2 || got.Entries[0].User != "4" || got.Entries[1].User != "3" || !got.Truncated ||
		got.Total.Sent.Bytes != 10 || got.Total.Sessions != 5 {
		t.Errorf("%+v", got)
	}
}

// While sessions begin, relay and end, and while the hour is queried, no traffic is lost or counted twice.
func TestLastHourUnderLoad(t *testing.T) {
	b := newFixture(t, Options{Sessions: 1 << 20})
	const workers, sessions, packets = 8, 300, 5
	var relaying, reading sync.WaitGroup
	stop := make(chan struct{})
	reading.Go(func() {
		var before uint64
		for {
			got := b.Hour(inspection.UsageQuery{From: b.now, To: b.now.Add(time.Minute), By: inspection.UsageByUser, Limit: 10})
			if got.Total.Sent.Packets < before {
				t.Errorf("the total fell from %d to %d", before, got.Total.Sent.Packets)
			}
			before = got.Total.Sent.Packets
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for w := range workers {
		relaying.Go(func() {
			for range sessions {
				a := b.begin(fmt.Sprint("user", w))
				for range packets {
					send(a, fmt.Sprint("media/", rand.IntN(7)), 10)
				}
				a.End()
			}
		})
	}
	relaying.Wait()
	close(stop)
	reading.Wait()
	got := b.last(60, inspection.UsageByUser, "")
	const all = workers * sessions
	sent := inspection.UsageCount{Bytes: all * packets * 10, Packets: all * packets}
	if got.Total.Sessions != all || got.Total.Sent != sent || len(got.Entries) != workers {
		t.Errorf("%d entries, total %+v", len(got.Entries), got.Total)
	}
	for _, e := range got.Entries {
		if e.Sessions != sessions || e.Sent.Packets != sessions*packets {
			t.Errorf("%+v", e)
		}
	}
}

// Reading the accounts of a minute does not allocate once their users are known.
func TestReadingAMinuteAllocatesNothing(t *testing.T) {
	b := newFixture(t, Options{})
	a := b.begin("ann")
	traffic := a.Route("media/echo")
	b.countHour()
	if n := testing.AllocsPerRun(100, func() {
		traffic.Tx.Add(1)
		b.mu.Lock()
		b.hour.add(a, b.now)
		b.mu.Unlock()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkHour is a query of the usage of 100,000 sessions, each of another user.
func BenchmarkHour(b *testing.B) {
	const sessions = 100_000
	recorder := Open(Options{Sessions: sessions})
	for i := range sessions {
		a := recorder.Begin(Identity{ID: New(), User: fmt.Sprint("user-", i), Started: time.Now()})
		a.Route("media/echo").Tx.Add(100)
	}
	for b.Loop() {
		now := time.Now()
		recorder.Hour(inspection.UsageQuery{From: now.Add(-time.Hour), To: now, By: inspection.UsageByUser, Limit: 100})
	}
}
