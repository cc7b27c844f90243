// Package watch finds goroutines that many clients depend on and that have stopped.
package watch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long one turn of a Task may take. A turn takes microseconds; one that takes this long does not end.
const Patience = 10 * time.Second

// Task is a goroutine that works in turns, for example one per datagram, and waits between them. The zero Task waits.
type Task struct {
	// turns is odd during a turn.
	turns atomic.Uint64

	mu sync.Mutex
	// seen is the turn that was found under way last, and since the time of the first such find.
	seen  uint64
	since time.Time
}

// Begin begins a turn, and End ends it. No two turns of a Task may overlap.
func (t *Task) Begin() { t.turns.Add(1) }

// End ends the turn that Begin began.
func (t *Task) End() { t.turns.Add(1) }

// Working tells whether a turn is under way.
func (t *Task) Working() bool { return t.turns.Load()%2 == 1 }

// Stuck tells whether the turn that is under way now was already under way at a call at least Patience ago. So it has to be called again and again, as a probe is.
func (t *Task) Stuck(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn := t.turns.Load()
	if turn%2 == 0 {
		return false
	}
	if turn != t.seen {
		t.seen, t.since = turn, now
	}
	return now.Sub(t.since) >= Patience
}
