package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// Bounds of TokenReview requests.
const (
	// maxConcurrentReviews limits the requests in progress.
	maxConcurrentReviews = 16
	// reviewTimeout limits the duration of one request.
	reviewTimeout = 10 * time.Second
	// acceptedTTL is how long the result of a TokenReview is cached if the token is valid. The result is not used after
	// the token expires.
	acceptedTTL = 5 * time.Minute
	// rejectedTTL is how long the result of a TokenReview is cached if the token is not valid.
	rejectedTTL = time.Minute
	// maxCachedReviews limits the cached results.
	maxCachedReviews = 20_000
	// maxQueuedReviews limits the requests in the queues.
	maxQueuedReviews = 10_000
	// suspectTTL is how long requests from an IP address have low priority after it sent an invalid token.
	suspectTTL = time.Minute
	// maxSuspects limits the number of such IP addresses.
	maxSuspects = 10_000
)

// tokenReviews makes TokenReview requests to the API server. Concurrent and repeated requests for one token share a
// result. Requests are made in order of arrival. Two kinds of requests have low priority and are made after all others:
// requests for clients at an IP address that sent an invalid token, and requests that check open streams again.
type tokenReviews struct {
	review func(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error)

	mu      sync.Mutex
	reviews map[tokenHash]*tokenReview
	// front and back are the queues of requests with normal and with low priority.
	front   []*tokenReview
	back    []*tokenReview
	running int
	// suspects are the IP addresses that sent an invalid token, with the time until which they have low priority.
	suspects map[netip.Addr]time.Time
}

// tokenHash identifies a token in the cache. The token itself is kept only until its review has ended.
type tokenHash [sha256.Size]byte

// tokenReview is the review of one token.
type tokenReview struct {
	hash   tokenHash
	token  string
	source netip.Addr
	expiry time.Time
	// done is closed when status or err is set.
	done   chan struct{}
	status authenticationv1.TokenReviewStatus
	err    error
	// until is when the cached result expires; zero while there is no result.
	until time.Time
}

// get returns the result of reviewing a token. It waits for the result until ctx ends. The TokenReview request itself
// continues after ctx has ended, so that the next call finds its result.
func (q *tokenReviews) get(
	ctx context.Context, token string, expiry time.Time, source netip.Addr, anew bool,
) (authenticationv1.TokenReviewStatus, error) {
	r, err := q.put(token, expiry, source, anew)
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	select {
	case <-r.done:
		return r.status, r.err
	case <-ctx.Done():
		return authenticationv1.TokenReviewStatus{}, fmt.Errorf("review token: %w: the API server has not answered yet",
			discovery.ErrUndecided)
	}
}

// put returns the review of a token, which may still be in progress. If anew is true, it does not use a cached result.
func (q *tokenReviews) put(token string, expiry time.Time, source netip.Addr, anew bool) (*tokenReview, error) {
	hash, now := tokenHash(sha256.Sum256([]byte(token))), time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if known := q.reviews[hash]; known != nil && (known.until.IsZero() || !anew && now.Before(known.until)) {
		return known, nil
	}
	if len(q.front)+len(q.back) >= maxQueuedReviews {
		return nil, fmt.Errorf("review token: %w: %d reviews wait for the API server", discovery.ErrUndecided,
			maxQueuedReviews)
	}
	if q.reviews == nil {
		q.reviews, q.suspects = map[tokenHash]*tokenReview{}, map[netip.Addr]time.Time{}
	}
	q.evict(now)
	r := &tokenReview{hash: hash, token: token, source: source, expiry: expiry, done: make(chan struct{})}
	q.reviews[hash] = r
	if anew || now.Before(q.suspects[source]) {
		q.back = append(q.back, r)
	} else {
		q.front = append(q.front, r)
	}
	if q.running < maxConcurrentReviews {
		q.running++
		go q.work()
	}
	return r, nil
}

// evict removes a result from the cache of TokenReviews if the cache is full. The caller must hold q.mu.
func (q *tokenReviews) evict(now time.Time) {
	if len(q.reviews) < maxCachedReviews {
		return
	}
	maps.DeleteFunc(q.reviews,
		func(_ tokenHash, r *tokenReview) bool { return !r.until.IsZero() && now.After(r.until) })
	for hash, r := range q.reviews {
		if len(q.reviews) < maxCachedReviews {
			return
		}
		if !r.until.IsZero() {
			delete(q.reviews, hash)
		}
	}
}

// work makes requests until the queues are empty.
func (q *tokenReviews) work() {
	for {
		q.mu.Lock()
		next := popReview(&q.front)
		if next == nil {
			next = popReview(&q.back)
		}
		if next == nil {
			q.running--
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		status, err := q.review(ctx, next.token)
		cancel()
		q.finish(next, status, err, time.Now())
	}
}

func popReview(queue *[]*tokenReview) *tokenReview {
	if len(*queue) == 0 {
		return nil
	}
	first := (*queue)[0]
	(*queue)[0] = nil
	*queue = (*queue)[1:]
	return first
}

// finish stores the result of a TokenReview. An error is not cached, so the next request for the token makes another
// review.
func (q *tokenReviews) finish(r *tokenReview, status authenticationv1.TokenReviewStatus, err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer close(r.done)
	r.token = ""
	if err != nil {
		r.err = fmt.Errorf("review token: %w: %w", discovery.ErrUndecided, err)
		delete(q.reviews, r.hash)
		return
	}
	r.status, r.until = status, now.Add(acceptedTTL)
	if !status.Authenticated {
		r.until = now.Add(rejectedTTL)
		q.suspect(r.source, now)
	}
	if r.expiry.Before(r.until) {
		r.until = r.expiry
	}
}

// suspect records that an IP address sent an invalid token. The caller must hold q.mu.
func (q *tokenReviews) suspect(source netip.Addr, now time.Time) {
	if len(q.suspects) >= maxSuspects {
		maps.DeleteFunc(q.suspects, func(_ netip.Addr, until time.Time) bool { return now.After(until) })
	}
	if len(q.suspects) < maxSuspects {
		q.suspects[source] = now.Add(suspectTTL)
	}
}
