package call

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Stats are the statistics of a call.
type Stats struct {
	Sent       int
	Received   int // distinct echoes
	Lost       int // sent without an echo
	Duplicates int
	Median     time.Duration // of the round trip times
	P95, P99   time.Duration
	LongestGap time.Duration // longest time without an echo: between two echoes, and since the last echo while sending
	Err        error         // first error of the client, if any
}

// String formats the statistics as one line.
func (s Stats) String() string {
	line := fmt.Sprintf("sent %d, received %d, lost %d, duplicates %d, rtt median %s p95 %s, longest gap %s",
		s.Sent, s.Received, s.Lost, s.Duplicates, round(s.Median), round(s.P95), round(s.LongestGap))
	if s.Err != nil {
		line += ", first error: " + s.Err.Error()
	}
	return line
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// tally counts the datagrams of a call. The zero value is ready to use.
type tally struct {
	mu         sync.Mutex
	flying     map[uint64]time.Time // time at which a datagram without an echo was sent, by sequence number
	sends      int
	echoes     int
	duplicates int
	trips      []time.Duration
	last       time.Time // echo
	gap        time.Duration
	lap        time.Duration // longest gap since the last call of nextLap
	frozen     bool
	err        error
	wake       chan struct{} // closed and replaced on every echo
}

// sent records a departure. It returns false when the tally is frozen.
func (t *tally) sent(seq uint64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen {
		return false
	}
	if t.flying == nil {
		t.flying = make(map[uint64]time.Time)
	}
	t.flying[seq] = now
	t.sends++
	return true
}

// received records an echo.
func (t *tally) received(seq uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	departed, ok := t.flying[seq]
	if !ok {
		t.duplicates++
		return
	}
	delete(t.flying, seq)
	t.echoes++
	t.trips = append(t.trips, now.Sub(departed))
	if !t.last.IsZero() {
		t.gap, t.lap = max(t.gap, now.Sub(t.last)), max(t.lap, now.Sub(t.last))
	}
	t.last = now
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

// fail records an error. Only the first error is kept.
func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil && !t.frozen {
		t.err = err
	}
}

// freeze makes sent refuse further departures.
func (t *tally) freeze() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = true
}

// nextLap returns the longest gap since its last call, including the current one.
func (t *tally) nextLap(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	gap := t.lap
	if !t.frozen && !t.last.IsZero() {
		gap = max(gap, now.Sub(t.last))
	}
	t.lap = 0
	return gap
}

func (t *tally) lastEcho() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// await waits for an echo that makes cond true. cond is called with the lock held.
func (t *tally) await(ctx context.Context, cond func(*tally) bool) error {
	for {
		t.mu.Lock()
		if cond(t) {
			t.mu.Unlock()
			return nil
		}
		if t.wake == nil {
			t.wake = make(chan struct{})
		}
		wake := t.wake
		t.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return fmt.Errorf("wait for echoes: %w: %s", context.Cause(ctx), t.stats(time.Now()))
		}
	}
}

func (t *tally) stats(now time.Time) Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{
		Sent: t.sends, Received: t.echoes, Lost: len(t.flying), Duplicates: t.duplicates,
		LongestGap: t.gap, Err: t.err,
	}
	if !t.frozen && !t.last.IsZero() {
		s.LongestGap = max(s.LongestGap, now.Sub(t.last))
	}
	if len(t.trips) > 0 {
		trips := slices.Sorted(slices.Values(t.trips))
		s.Median, s.P95, s.P99 = trips[len(trips)/2], trips[len(trips)*95/100], trips[len(trips)*99/100]
	}
	return s
}
