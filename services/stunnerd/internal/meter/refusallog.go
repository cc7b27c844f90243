package meter

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// refusalInterval is the time between two log lines with one reason.
const refusalInterval = time.Minute

// RefusalLog logs each reason of refusals and drops at a limited rate, so that no client can fill the log. The first
// refusal with a reason is logged at once. Further refusals are counted, and their number is logged at most once every
// refusalInterval. A line contains no user name, no address of a client and no other text of a request.
type RefusalLog struct {
	log   atomic.Pointer[slog.Logger]
	total func(Reason) uint64
	// pending is set for a reason from its first line until a refusalInterval without a refusal is over. It is an
	// array of its own, so that reading it needs no lock and no clock.
	pending [reasonCount]atomic.Bool
	// logged is the total of a reason at its last line. Only the goroutine that has set pending uses it.
	logged [reasonCount]uint64
}

// NewRefusalLog returns a RefusalLog that writes to a log, or nowhere if it is nil. total returns the number of
// refusals and drops with a reason since the start. It may be called from any goroutine.
func NewRefusalLog(log *slog.Logger, total func(Reason) uint64) *RefusalLog {
	l := &RefusalLog{total: total}
	l.log.Store(log)
	return l
}

// LogRefusals makes the Meter log refusals and drops.
func (m *Meter) LogRefusals(log *slog.Logger) { m.lines.log.Store(log) }

// Note logs a refusal or a drop, which the caller has already counted in total. If a line with the reason was logged
// within the last refusalInterval, Note logs nothing and only loads an atomic value.
func (l *RefusalLog) Note(r Reason, n Note) {
	if !l.pending[r].Load() {
		l.first(r, n)
	}
}

// first logs the first refusal with a reason.
func (l *RefusalLog) first(r Reason, n Note) {
	log := l.log.Load()
	if log == nil || !l.pending[r].CompareAndSwap(false, true) {
		return
	}
	times := l.total(r) - l.logged[r]
	l.logged[r] += times
	l.line(log, r, Entry{Reason: r, Note: n}.Text(allRoutes), slog.String("listener", n.Listener), times)
}

// further logs the number of refusals with a reason since the last line. If there are none, the next refusal is logged
// at once.
func (l *RefusalLog) further(r Reason) {
	log := l.log.Load()
	for {
		if n := l.total(r) - l.logged[r]; n > 0 {
			l.logged[r] += n
			l.line(log, r, r.Text(), slog.Attr{}, n)
			return
		}
		logged := l.logged[r]
		l.pending[r].Store(false)
		// A refusal that was counted between the call of total and the Store has not been logged.
		if l.total(r) == logged || !l.pending[r].CompareAndSwap(false, true) {
			return
		}
	}
}

// line writes a line, and calls further when the next line is due.
func (l *RefusalLog) line(log *slog.Logger, r Reason, text string, listener slog.Attr, times uint64) {
	attrs := []slog.Attr{slog.String("reason", r.String()), slog.String("text", text)}
	if listener.Key != "" && listener.Value.String() != "" {
		attrs = append(attrs, listener)
	}
	attrs = append(attrs, slog.Uint64("times", times))
	log.LogAttrs(context.Background(), r.level(), "refused or dropped", attrs...)
	time.AfterFunc(refusalInterval, func() { l.further(r) })
}
