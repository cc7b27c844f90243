package kube

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// agenda lists the units that are to be translated. The namespaces take turns: whoever changes a thousand objects of one namespace delays the next
// change in another by one translation.
type agenda struct {
	// gateways come first while the operator starts, so that all configs are published as soon as possible; afterwards they take turns with others.
	gateways, others ring
	listed           map[translate.ObjectRef]struct{}
	turn             bool
}

func newAgenda() *agenda {
	return &agenda{gateways: newRing(), others: newRing(), listed: map[translate.ObjectRef]struct{}{}}
}

// add lists units; what is listed already stays where it is. The order of the units makes no difference.
func (a *agenda) add(units map[translate.ObjectRef]struct{}) {
	var fresh []translate.ObjectRef
	for u := range units {
		if _, known := a.listed[u]; !known {
			a.listed[u] = struct{}{}
			fresh = append(fresh, u)
		}
	}
	slices.SortFunc(fresh, translate.ObjectRef.Compare)
	for _, u := range fresh {
		if u.Kind == translate.KindGateway {
			a.gateways.push(u)
		} else {
			a.others.push(u)
		}
	}
}

// next takes out the unit whose turn it is; false if there is none.
func (a *agenda) next(starting bool) (u translate.ObjectRef, ok bool) {
	first, second := &a.gateways, &a.others
	if a.turn = !a.turn; !starting && a.turn {
		first, second = second, first
	}
	if u, ok = first.pop(); !ok {
		u, ok = second.pop()
	}
	delete(a.listed, u)
	return u, ok
}

// ring is one queue for each namespace.
type ring struct {
	queues map[string][]translate.ObjectRef
	// turns are the namespaces that have something in their queue, the next one first.
	turns []string
}

func newRing() ring { return ring{queues: map[string][]translate.ObjectRef{}} }

func (r *ring) push(u translate.ObjectRef) {
	queue := r.queues[u.Namespace]
	if len(queue) == 0 {
		r.turns = append(r.turns, u.Namespace)
	}
	r.queues[u.Namespace] = append(queue, u)
}

func (r *ring) pop() (u translate.ObjectRef, ok bool) {
	if len(r.turns) == 0 {
		return u, false
	}
	namespace := r.turns[0]
	queue := r.queues[namespace]
	u, r.turns = queue[0], r.turns[1:]
	if len(queue) == 1 {
		delete(r.queues, namespace)
	} else {
		r.queues[namespace], r.turns = queue[1:], append(r.turns, namespace)
	}
	return u, true
}
