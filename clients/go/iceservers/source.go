package iceservers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	longestNap      = 30 * time.Second // timers may stop while the computer sleeps
	shortestRenewal = time.Second      // between renewals, whatever the lifetime
	longestSpare    = 10 * time.Second
)

// Source holds ICE servers whose credentials have not expired, while Run runs. Its methods may be called by several
// goroutines.
type Source struct {
	client    *Client
	onRenewal func(*ICEServers)
	onError   func(error)

	mu     sync.Mutex
	answer answer
	// waiting is the result that callers of Get wait for; nil if none waits.
	waiting *result
	// asked has a value when a caller of Get waits, so that Run does not wait until servers are due.
	asked chan struct{}
}

// result is closed when servers or err are set.
type result struct {
	done    chan struct{}
	servers *ICEServers
	err     error
}

// NewSource returns a Source that requests its servers by a client. Run calls onRenewal with the first servers and with
// those of each renewal, and onError with the error of each request that fails, before the next one. Both may be nil.
func NewSource(client *Client, onRenewal func(*ICEServers), onError func(error)) *Source {
	return &Source{client: client, onRenewal: onRenewal, onError: onError, asked: make(chan struct{}, 1)}
}

// Run requests servers, and renews them until the context ends. It returns the cause of that.
func (s *Source) Run(ctx context.Context) error {
	for failures := 0; ; {
		a, err := s.client.request(ctx)
		switch {
		case ctx.Err() != nil:
			s.settle(nil, context.Cause(ctx))
			return context.Cause(ctx)
		case err == nil:
			failures = 0
			s.take(a)
			s.hold(ctx, a)
			continue
		}
		failures++
		if !temporary(err) || failures >= mostFailures {
			s.settle(nil, err)
		}
		if s.onError != nil {
			s.onError(err)
		}
		_ = sleep(ctx, backoff(err, failures)) // the next request sees that the context has ended
	}
}

// Get returns servers whose credentials have not expired. It waits only if Run has none, such as at the start or while
// the service is away. It returns an error if the service refuses, or does not answer five requests in a row, or if
// the context ends.
func (s *Source) Get(ctx context.Context) (*ICEServers, error) {
	s.mu.Lock()
	if a := s.answer; a.servers != nil && a.valid() {
		s.mu.Unlock()
		return a.servers, nil
	}
	if s.waiting == nil {
		s.waiting = &result{done: make(chan struct{})}
	}
	waiting := s.waiting
	s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default: // Run has not yet seen the one before
	}
	select {
	case <-waiting.done:
		return waiting.servers, waiting.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// valid reports whether the credentials are valid long enough to begin a call.
func (a answer) valid() bool {
	return a.lifetime == 0 || elapsed(a.sent) < a.lifetime-min(a.lifetime/4, longestSpare)
}

func (s *Source) take(a answer) {
	s.mu.Lock()
	s.answer = a
	s.mu.Unlock()
	s.settle(a.servers, nil)
	if s.onRenewal != nil {
		s.onRenewal(a.servers)
	}
}

// settle returns servers or an error to all callers of Get that wait.
func (s *Source) settle(servers *ICEServers, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		return
	}
	s.waiting.servers, s.waiting.err = servers, err
	close(s.waiting.done)
	s.waiting = nil
	select {
	case <-s.asked:
	default:
	}
}

// hold waits until it is time to renew: a random time between half and two thirds of the lifetime, so that processes
// that were started together do not renew together, and a third of the lifetime is left for further requests.
func (s *Source) hold(ctx context.Context, a answer) {
	if a.lifetime == 0 {
		<-ctx.Done()
		return
	}
	due := max(a.lifetime/2+rand.N(a.lifetime/6), shortestRenewal)
	for left := due; left > 0; left = due - elapsed(a.sent) {
		timer := time.NewTimer(min(left, longestNap))
		select {
		case <-timer.C:
			continue
		case <-s.asked:
		case <-ctx.Done():
		}
		timer.Stop()
		return
	}
}

// elapsed returns the time since then. The monotonic clock may stop while the computer sleeps, and the other one may be
// set: the longer of both is never too short.
func elapsed(since time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
