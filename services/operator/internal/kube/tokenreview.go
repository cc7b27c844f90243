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

// Bounds of the questions to the API server about tokens.
const (
	// maxConcurrentReviews is how many questions are on their way at a time, reviewTimeout how long one may take.
	maxConcurrentReviews = 16
	reviewTimeout        = 10 * time.Second
	// acceptedTTL and rejectedTTL are how long an answer counts. An answer about a token that expires earlier counts until then.
	acceptedTTL = 5 * time.Minute
	rejectedTTL = time.Minute
	// maxCachedReviews is how many answers are remembered, maxQueuedReviews how many questions may wait.
	maxCachedReviews = 20_000
	maxQueuedReviews = 10_000
	// suspectTTL is how long the questions of a source come last that has sent a token which the API server refused, maxSuspects how many such sources
	// are told apart.
	suspectTTL  = time.Minute
	maxSuspects = 10_000
)

// questions asks the API server about tokens, each once: who comes while a question waits, or after it was answered, gets the same answer. Questions are
// asked in the order in which they came. Those of sources whose tokens were refused, and those for which nobody waits, come after all others.
type tokenReviews struct {
	ask func(ctx context.Context, token string) (authenticationv1.TokenReviewStatus, error)

	mu       sync.Mutex
	about    map[tokenHash]*tokenReview
	front    []*tokenReview
	back     []*tokenReview
	asking   int
	suspects map[netip.Addr]time.Time
}

// tokenHash stands for a token: tokens themselves are kept for as long as a question waits only.
type tokenHash [sha256.Size]byte

// question is one token that the API server is asked about.
type tokenReview struct {
	hash   tokenHash
	token  string
	source netip.Addr
	expiry time.Time
	// done is closed when there is an answer or an error.
	done   chan struct{}
	answer authenticationv1.TokenReviewStatus
	err    error
	// until is when the answer is forgotten; zero while there is none.
	until time.Time
}

// of returns what the API server says of a token that expires at a time. It waits for that until ctx ends; the question goes on.
func (q *tokenReviews) of(ctx context.Context, token string, expiry time.Time, source netip.Addr) (authenticationv1.TokenReviewStatus, error) {
	asked, err := q.put(token, expiry, source, false)
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	return asked.wait(ctx)
}

// again asks about a token that was accepted before, and has no hurry.
func (q *tokenReviews) again(ctx context.Context, token string, expiry time.Time, source netip.Addr) (authenticationv1.TokenReviewStatus, error) {
	asked, err := q.put(token, expiry, source, true)
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	return asked.wait(ctx)
}

func (a *tokenReview) wait(ctx context.Context) (authenticationv1.TokenReviewStatus, error) {
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		return authenticationv1.TokenReviewStatus{}, fmt.Errorf("review token: %w: the API server has not answered yet", discovery.ErrUndecided)
	}
}

// put returns the question about a token. With anew an answer that there is does not count.
func (q *tokenReviews) put(token string, expiry time.Time, source netip.Addr, anew bool) (*tokenReview, error) {
	hash, now := tokenHash(sha256.Sum256([]byte(token))), time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if known := q.about[hash]; known != nil && (known.until.IsZero() || !anew && now.Before(known.until)) {
		return known, nil
	}
	if len(q.front)+len(q.back) >= maxQueuedReviews {
		return nil, fmt.Errorf("review token: %w: %d questions wait for the API server", discovery.ErrUndecided, maxQueuedReviews)
	}
	if q.about == nil {
		q.about, q.suspects = map[tokenHash]*tokenReview{}, map[netip.Addr]time.Time{}
	}
	q.forget(now)
	asked := &tokenReview{hash: hash, token: token, source: source, expiry: expiry, done: make(chan struct{})}
	q.about[hash] = asked
	if anew || now.Before(q.suspects[source]) {
		q.back = append(q.back, asked)
	} else {
		q.front = append(q.front, asked)
	}
	if q.asking < maxConcurrentReviews {
		q.asking++
		go q.work()
	}
	return asked, nil
}

// forget makes room for one more answer. It needs the lock.
func (q *tokenReviews) forget(now time.Time) {
	if len(q.about) < maxCachedReviews {
		return
	}
	maps.DeleteFunc(q.about, func(_ tokenHash, a *tokenReview) bool { return !a.until.IsZero() && now.After(a.until) })
	for hash, a := range q.about {
		if len(q.about) < maxCachedReviews {
			return
		}
		if !a.until.IsZero() {
			delete(q.about, hash)
		}
	}
}

// work asks until no question waits.
func (q *tokenReviews) work() {
	for {
		q.mu.Lock()
		next := popReview(&q.front)
		if next == nil {
			next = popReview(&q.back)
		}
		if next == nil {
			q.asking--
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		answer, err := q.ask(ctx, next.token)
		cancel()
		q.answered(next, answer, err, time.Now())
	}
}

func popReview(lane *[]*tokenReview) *tokenReview {
	if len(*lane) == 0 {
		return nil
	}
	first := (*lane)[0]
	(*lane)[0] = nil
	*lane = (*lane)[1:]
	return first
}

// answered remembers an answer. A question that the API server did not answer is asked again when somebody comes with the token.
func (q *tokenReviews) answered(a *tokenReview, answer authenticationv1.TokenReviewStatus, err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer close(a.done)
	a.token = ""
	if err != nil {
		a.err = fmt.Errorf("review token: %w: %w", discovery.ErrUndecided, err)
		delete(q.about, a.hash)
		return
	}
	a.answer, a.until = answer, now.Add(acceptedTTL)
	if !answer.Authenticated {
		a.until = now.Add(rejectedTTL)
		q.suspect(a.source, now)
	}
	if a.expiry.Before(a.until) {
		a.until = a.expiry
	}
}

// suspect notes that a source has sent a bad token. It needs the lock.
func (q *tokenReviews) suspect(source netip.Addr, now time.Time) {
	if len(q.suspects) >= maxSuspects {
		maps.DeleteFunc(q.suspects, func(_ netip.Addr, until time.Time) bool { return now.After(until) })
	}
	if len(q.suspects) < maxSuspects {
		q.suspects[source] = now.Add(suspectTTL)
	}
}
