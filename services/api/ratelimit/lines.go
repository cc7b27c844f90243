package ratelimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lineInterval is the time between two log lines of Lines with one reason.
const lineInterval = time.Minute

// Lines logs refusals at a limited rate, so that no client can fill the log. The first refusal with a reason is logged
// at once. Further refusals are counted, and their number is logged at most once a minute. The zero Lines is ready to
// use.
type Lines struct {
	mu sync.Mutex
	// pending is the number of refusals since the last line, by reason. A reason without an entry is logged at once.
	pending map[string]uint64
}

// Log logs a refusal. There must be few reasons. details are in the line of the first refusal only.
func (l *Lines) Log(log *slog.Logger, level slog.Level, message, reason, text string, details ...any) {
	l.mu.Lock()
	if n, logged := l.pending[reason]; logged {
		l.pending[reason] = n + 1
		l.mu.Unlock()
		return
	}
	if l.pending == nil {
		l.pending = map[string]uint64{}
	}
	l.pending[reason] = 0
	l.mu.Unlock()
	line := func(times uint64, details ...any) {
		log.Log(context.Background(), level, message,
			append([]any{"reason", reason, "text", text, "times", times}, details...)...)
	}
	line(1, details...)
	l.later(reason, line)
}

// later logs the further refusals with a reason in a minute. If there are none, the next refusal is logged at once.
func (l *Lines) later(reason string, line func(times uint64, details ...any)) {
	time.AfterFunc(lineInterval, func() {
		l.mu.Lock()
		times := l.pending[reason]
		if l.pending[reason] = 0; times == 0 {
			delete(l.pending, reason)
		}
		l.mu.Unlock()
		if times > 0 {
			line(times)
			l.later(reason, line)
		}
	})
}
