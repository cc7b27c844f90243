// Package watch detects stuck goroutines that many clients depend on.
package watch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Patience is the maximum duration of one turn of a Task. A turn takes microseconds; one that takes this long is stuck.
const Patience = 10 * time.Second

// Task is a goroutine that works in turns, for example one for each datagram, and is idle between them. The zero Task
// is idle.
type Task struct {
	// turns is odd during a turn.
	turns atomic.Uint64

	mu sync.Mutex
	// seen is the turn that Stuck last found running, and since is when it first found it.
	seen  uint64
	since time.Time
}

// Begin begins a turn, and End ends it. No two turns of a Task may overlap.
func (t *Task) Begin() { t.turns.Add(1) }

// End ends the turn that Begin began.
func (t *Task) End() { t.turns.Add(1) }

// Working reports whether a turn is running.
func (t *Task) Working() bool { return t.turns.Load()%2 == 1 }

// Stuck reports whether the running turn was already running at a call at least Patience ago. It must be called at
// intervals, as by a probe.
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
