// Package watch detects stuck goroutines that many clients depend on.
package watch

import (
	"sync"
	"sync/atomic"
	"time"
)

// StuckAfter is how long a unit of work of a Task may last until the Task counts as stuck. A unit of work normally
// takes microseconds.
const StuckAfter = 10 * time.Second

// Task monitors a goroutine that does units of work, for example handles one datagram, and is idle between them. The
// zero Task is idle.
type Task struct {
	// steps counts the calls of Begin and End. It is odd during a unit of work.
	steps atomic.Uint64

	mu sync.Mutex
	// seen is the value of steps at the last call of Stuck that found a unit of work in progress.
	seen uint64
	// since is when Stuck first saw that unit of work.
	since time.Time
}

// Begin begins a unit of work, and End ends it. Units of work of a Task must not overlap.
func (t *Task) Begin() { t.steps.Add(1) }

// End ends the unit of work that Begin began.
func (t *Task) End() { t.steps.Add(1) }

// Working reports whether a unit of work is in progress.
func (t *Task) Working() bool { return t.steps.Load()%2 == 1 }

// Stuck reports whether the current unit of work was already in progress at a call at least StuckAfter ago. It must be
// called periodically, for example by a liveness probe.
func (t *Task) Stuck(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	step := t.steps.Load()
	if step%2 == 0 {
		return false
	}
	if step != t.seen {
		t.seen, t.since = step, now
	}
	return now.Sub(t.since) >= StuckAfter
}
