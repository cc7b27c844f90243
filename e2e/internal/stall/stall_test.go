package stall

import (
	"testing"
	"testing/synctest"
	"time"
)

// A stall counts only for periods that it overlaps. It also counts when the query is the first code to run after it.
func TestStallCountsForPeriodsThatItOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Monitor{last: time.Now()}
		run := func(d time.Duration) {
			for range d / interval {
				time.Sleep(interval)
				m.tick(time.Now())
			}
		}
		began := time.Now()
		run(time.Second)
		if stalled, took := m.Stalled(began, time.Now()), m.Since(began); stalled != 0 || took != time.Second {
			t.Errorf("without a stall: %s stalled, %s elapsed", stalled, took)
		}
		before := time.Now()
		time.Sleep(interval + 300*time.Millisecond)
		if took := m.Since(before); took != interval {
			t.Errorf("right after a stall: %s elapsed, want %s", took, interval)
		}
		run(time.Second)
		if m.Stalled(began, before) != 0 || m.Stalled(began, time.Now()) != 300*time.Millisecond ||
			m.Worst() != 300*time.Millisecond {
			t.Errorf("%s before, %s in total, %s longest", m.Stalled(began, before), m.Stalled(began, time.Now()), m.Worst())
		}
	})
}
