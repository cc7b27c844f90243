package pulse

import (
	"testing"
	"testing/synctest"
	"time"
)

// A stall counts only for periods that it overlaps. It also counts when the query is the first code to run after it.
func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Pulse{last: time.Now()}
		run := func(d time.Duration) {
			for range d / pace {
				time.Sleep(pace)
				p.beat(time.Now())
			}
		}
		began := time.Now()
		run(time.Second)
		if stalled, took := p.Stalled(began, time.Now()), p.Since(began); stalled != 0 || took != time.Second {
			t.Errorf("without a stall: %s stalled, %s elapsed", stalled, took)
		}
		still := time.Now()
		time.Sleep(pace + 300*time.Millisecond)
		if took := p.Since(still); took != pace {
			t.Errorf("right after a stall: %s elapsed, want %s", took, pace)
		}
		run(time.Second)
		if p.Stalled(began, still) != 0 || p.Stalled(began, time.Now()) != 300*time.Millisecond ||
			p.Worst() != 300*time.Millisecond {
			t.Errorf(
				"%s before, %s in total, %s longest", p.Stalled(began, still), p.Stalled(began, time.Now()), p.Worst(),
			)
		}
	})
}
