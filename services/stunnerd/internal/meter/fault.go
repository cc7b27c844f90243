package meter

import (
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// faults is where panics are logged.
type faults struct {
	log    atomic.Pointer[slog.Logger]
	logged atomic.Int64 // Unix time in seconds
}

// LogFaults makes Panicked write to a log.
func (m *Meter) LogFaults(log *slog.Logger) { m.faults.log.Store(log) }

// Survive is deferred by a function whose panic must not end the process. task says what the function does.
func (m *Meter) Survive(task string) {
	if cause := recover(); cause != nil {
		m.Panicked(task, cause)
	}
}

// Panicked counts a panic that was recovered from, and logs at most one a second with its stack. It is called by the deferred function that has
// recovered, where there is more to do than Survive does.
func (m *Meter) Panicked(task string, cause any) {
	m.Panics.Add(1)
	log, now := m.faults.log.Load(), time.Now().Unix()
	last := m.faults.logged.Load()
	if log == nil || last == now || !m.faults.logged.CompareAndSwap(last, now) {
		return
	}
	log.Error("recovered from a panic: please report it", "task", task, "panic", cause, "stack", string(debug.Stack()))
}
