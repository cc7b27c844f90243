package kube

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const (
	// maxCoreShare is the share of a CPU core that the translations of one object take, unless maxDelay gives them
	// more.
	maxCoreShare = 0.05
	// maxDelay bounds the delay of a change. Together with the longest translation, about 100 ms, it stays well below
	// the second within which a change of one tenant reaches a Gateway that other tenants have filled to its budget.
	maxDelay = 250 * time.Millisecond
	// unlimitedBelow is the duration below which translations are not limited.
	unlimitedBelow = 2 * time.Millisecond
)

// rateLimiter delays further translations of an object whose translation takes long. The first change is translated at
// once, and all changes during the delay together at its end. Other objects are not delayed.
type rateLimiter struct {
	states map[translate.ObjectRef]limiterState
	// delayed are the changed objects whose delay has not ended.
	delayed map[translate.ObjectRef]struct{}
}

// limiterState is the duration of the last translation of an object, and the earliest time of the next one.
type limiterState struct {
	took time.Duration
	next time.Time
}

func newRateLimiter() rateLimiter {
	return rateLimiter{states: map[translate.ObjectRef]limiterState{}, delayed: map[translate.ObjectRef]struct{}{}}
}

// allows reports whether an object may be translated now. If not, it counts as delayed.
func (l rateLimiter) allows(ref translate.ObjectRef, now time.Time) bool {
	if now.Before(l.states[ref].next) {
		l.delayed[ref] = struct{}{}
		return false
	}
	delete(l.delayed, ref)
	return true
}

// record records the duration of a translation that ended at now. The shorter one of the last two durations counts,
// because a suspended process makes single translations appear long.
func (l rateLimiter) record(ref translate.ObjectRef, took time.Duration, now time.Time) {
	cost := min(took, l.states[ref].took)
	if took < unlimitedBelow {
		delete(l.states, ref)
		return
	}
	next := limiterState{took: took}
	if cost >= unlimitedBelow {
		next.next = now.Add(min(discovery.Cooldown(cost, maxCoreShare), maxDelay))
	}
	l.states[ref] = next
}

// forget removes a deleted object.
func (l rateLimiter) forget(ref translate.ObjectRef) {
	delete(l.states, ref)
	delete(l.delayed, ref)
}

// addDue adds the delayed objects whose delay has ended.
func (l rateLimiter) addDue(affected map[translate.ObjectRef]struct{}, now time.Time) {
	for ref := range l.delayed {
		if !now.Before(l.states[ref].next) {
			affected[ref] = struct{}{}
		}
	}
}

// timer returns a channel that receives a value when the next delay ends; nil if no object is delayed.
func (l rateLimiter) timer(now time.Time) <-chan time.Time {
	var first time.Time
	for ref := range l.delayed {
		if next := l.states[ref].next; first.IsZero() || next.Before(first) {
			first = next
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(first.Sub(now))
}
