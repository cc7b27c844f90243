package kube

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const (
	// maxCoreShare is the share of a core that the translation of one unit takes, however often something changes that concerns it.
	maxCoreShare = 0.05
	// maxDelay bounds the delay of a change. Together with the longest translation, about 100 ms, it stays well below
	// the second within which a change of one tenant reaches a Gateway that other tenants have filled to its budget.
	maxDelay = 250 * time.Millisecond
	// unlimitedBelow is the time that a translation may take for which there is no rest.
	unlimitedBelow = 2 * time.Millisecond
)

// pacer lets units whose translation takes long rest after each one. The first change is translated at once, and all that come during the rest
// together at its end. Other units do not wait for them.
type rateLimiter struct {
	states map[translate.ObjectRef]limiterState
	// late are the units that wait for the end of their rest.
	delayed map[translate.ObjectRef]struct{}
}

// pace is how long the last translation of a unit took, and when the next one may be.
type limiterState struct {
	took time.Duration
	next time.Time
}

func newRateLimiter() rateLimiter {
	return rateLimiter{states: map[translate.ObjectRef]limiterState{}, delayed: map[translate.ObjectRef]struct{}{}}
}

// allows tells whether a unit may be translated now. One that may not is late.
func (p rateLimiter) allows(u translate.ObjectRef, now time.Time) bool {
	if now.Before(p.states[u].next) {
		p.delayed[u] = struct{}{}
		return false
	}
	delete(p.delayed, u)
	return true
}

// translated notes how long a translation took that has just ended. A process that stands still for a moment makes one of them seem long: the shorter one
// of the last two counts.
func (p rateLimiter) record(u translate.ObjectRef, took time.Duration, now time.Time) {
	cost := min(took, p.states[u].took)
	if took < unlimitedBelow {
		delete(p.states, u)
		return
	}
	next := limiterState{took: took}
	if cost >= unlimitedBelow {
		next.next = now.Add(min(discovery.Rest(cost, maxCoreShare), maxDelay))
	}
	p.states[u] = next
}

// forget forgets a unit that is gone.
func (p rateLimiter) forget(u translate.ObjectRef) {
	delete(p.states, u)
	delete(p.delayed, u)
}

// due adds the units whose rest is over.
func (p rateLimiter) addDue(concerned map[translate.ObjectRef]struct{}, now time.Time) {
	for u := range p.delayed {
		if !now.Before(p.states[u].next) {
			concerned[u] = struct{}{}
		}
	}
}

// wake returns a channel that tells of the end of the rest that ends first, nil while nothing is late.
func (p rateLimiter) timer(now time.Time) <-chan time.Time {
	var first time.Time
	for u := range p.delayed {
		if next := p.states[u].next; first.IsZero() || next.Before(first) {
			first = next
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(first.Sub(now))
}
