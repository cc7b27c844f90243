package kube

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const (
	// maxCoreShare is the fraction of a CPU core that the translations of one object may use. maxDelay takes
	// precedence.
	maxCoreShare = 0.05
	// maxDelay is the maximum delay of the translation of a changed object. A change must reach its Gateway within a
	// second, even if other tenants have filled the Gateway to its budget. A translation takes up to about 100 ms, so
	// this leaves some margin.
	maxDelay = 250 * time.Millisecond
	// unlimitedBelow is the duration below which translations of an object are not delayed.
	unlimitedBelow = 2 * time.Millisecond
)

// rateLimiter delays repeated translations of an object whose translation takes long. The first change of the object is
// translated at once. All changes that follow during the delay are translated together at its end. Other objects are
// not delayed.
type rateLimiter struct {
	states map[translate.ObjectRef]limiterState
	// delayed are the objects that have changed and whose delay has not ended.
	delayed map[translate.ObjectRef]struct{}
}

// limiterState is the state of one object.
type limiterState struct {
	// took is the duration of the last translation.
	took time.Duration
	// next is the earliest time of the next translation.
	next time.Time
}

func newRateLimiter() rateLimiter {
	return rateLimiter{states: map[translate.ObjectRef]limiterState{}, delayed: map[translate.ObjectRef]struct{}{}}
}

// allows reports whether an object may be translated now. If not, the object is added to delayed.
func (l rateLimiter) allows(ref translate.ObjectRef, now time.Time) bool {
	if now.Before(l.states[ref].next) {
		l.delayed[ref] = struct{}{}
		return false
	}
	delete(l.delayed, ref)
	return true
}

// record records the duration of a translation that ended at now. The delay depends on the shorter of the last two
// durations, because a single long duration may be a suspension of the process.
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
