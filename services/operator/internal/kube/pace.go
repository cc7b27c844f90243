package kube

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const (
	// unitShare is the share of a core that the translations of one object take, unless longestRest gives them more.
	unitShare = 0.05
	// longestRest bounds the delay of a change. Together with the longest translation, about 100 ms, it stays well below the second within which a change
	// of one tenant reaches a Gateway that other tenants have filled to its budget.
	longestRest = 250 * time.Millisecond
	// smallTranslation is the time that a translation may take for which there is no rest.
	smallTranslation = 2 * time.Millisecond
)

// pacer lets units whose translation takes long rest after each one. The first change is translated at once, and all that come during the rest
// together at its end. Other units do not wait for them.
type pacer struct {
	paces map[translate.ObjectRef]pace
	// late are the units that wait for the end of their rest.
	late map[translate.ObjectRef]struct{}
}

// pace is how long the last translation of a unit took, and when the next one may be.
type pace struct {
	took time.Duration
	next time.Time
}

func newPacer() pacer {
	return pacer{paces: map[translate.ObjectRef]pace{}, late: map[translate.ObjectRef]struct{}{}}
}

// allows tells whether a unit may be translated now. One that may not is late.
func (p pacer) allows(u translate.ObjectRef, now time.Time) bool {
	if now.Before(p.paces[u].next) {
		p.late[u] = struct{}{}
		return false
	}
	delete(p.late, u)
	return true
}

// translated notes how long a translation took that has just ended. A process that stands still for a moment makes one of them seem long: the shorter one
// of the last two counts.
func (p pacer) translated(u translate.ObjectRef, took time.Duration, now time.Time) {
	cost := min(took, p.paces[u].took)
	if took < smallTranslation {
		delete(p.paces, u)
		return
	}
	next := pace{took: took}
	if cost >= smallTranslation {
		next.next = now.Add(min(discovery.Rest(cost, unitShare), longestRest))
	}
	p.paces[u] = next
}

// forget forgets a unit that is gone.
func (p pacer) forget(u translate.ObjectRef) {
	delete(p.paces, u)
	delete(p.late, u)
}

// due adds the units whose rest is over.
func (p pacer) due(concerned map[translate.ObjectRef]struct{}, now time.Time) {
	for u := range p.late {
		if !now.Before(p.paces[u].next) {
			concerned[u] = struct{}{}
		}
	}
}

// wake returns a channel that tells of the end of the rest that ends first, nil while nothing is late.
func (p pacer) wake(now time.Time) <-chan time.Time {
	var first time.Time
	for u := range p.late {
		if next := p.paces[u].next; first.IsZero() || next.Before(first) {
			first = next
		}
	}
	if first.IsZero() {
		return nil
	}
	return time.After(first.Sub(now))
}
