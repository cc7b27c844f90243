package usage

import (
	"context"
	"sync"
)

const (
	// maxRequests is the number of requests to operators in progress, because an answer may take 2 MiB, and another 2
	// MiB while it is read.
	maxRequests = 4
	// maxPerCaller is the number of such requests for one caller, whose Gateways may have pods that do not answer.
	maxPerCaller = 2
)

// limiter limits the requests in progress, in total and for each caller.
type limiter struct {
	mu      sync.Mutex
	total   int
	callers map[string]int
	// left is closed and replaced when a request ends.
	left chan struct{}
}

func newLimiter() *limiter { return &limiter{callers: map[string]int{}, left: make(chan struct{})} }

// enter waits until a request of a caller may begin. It returns false if ctx ends before.
func (l *limiter) enter(ctx context.Context, caller string) bool {
	for ctx.Err() == nil {
		l.mu.Lock()
		left := l.left
		if l.total < maxRequests && l.callers[caller] < maxPerCaller {
			l.total++
			l.callers[caller]++
			l.mu.Unlock()
			return true
		}
		l.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
		}
	}
	return false
}

// leave ends a request.
func (l *limiter) leave(caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.callers[caller]--; l.callers[caller] == 0 {
		delete(l.callers, caller)
	}
	close(l.left)
	l.left = make(chan struct{})
}
