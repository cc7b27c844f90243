package meter

import (
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// faults is the state of the log of panics.
type faults struct {
	log    atomic.Pointer[slog.Logger]
	logged atomic.Int64 // Unix time in seconds
}

// LogFaults makes CountPanic write to a log.
func (m *Meter) LogFaults(log *slog.Logger) { m.faults.log.Store(log) }

// RecoverPanic recovers a panic of the calling function. It must be deferred. The argument task names the function in
// the log.
func (m *Meter) RecoverPanic(task string) {
	if cause := recover(); cause != nil {
		m.CountPanic(task, cause)
	}
}

// CountPanic counts a recovered panic, and logs its stack at most once a second. A deferred function that must do more
// than RecoverPanic calls recover and then CountPanic.
func (m *Meter) CountPanic(task string, cause any) {
	m.Panics.Add(1)
	log, now := m.faults.log.Load(), time.Now().Unix()
	last := m.faults.logged.Load()
	if log == nil || last == now || !m.faults.logged.CompareAndSwap(last, now) {
		return
	}
	log.Error("recovered from a panic: please report it", "task", task, "panic", cause, "stack", string(debug.Stack()))
}
