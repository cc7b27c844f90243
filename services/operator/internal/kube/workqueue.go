package kube

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// agenda lists the units that are to be translated. The namespaces take turns: whoever changes a thousand objects of one namespace delays the next
// change in another by one translation.
type workQueue struct {
	// gateways come first while the operator starts, so that all configs are published as soon as possible; afterwards they take turns with others.
	gateways, others roundRobin
	listed           map[translate.ObjectRef]struct{}
	turn             bool
}

func newWorkQueue() *workQueue {
	return &workQueue{gateways: newRoundRobin(), others: newRoundRobin(), listed: map[translate.ObjectRef]struct{}{}}
}

// add lists units; what is listed already stays where it is. The order of the units makes no difference.
func (a *workQueue) add(units map[translate.ObjectRef]struct{}) {
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
func (a *workQueue) next(starting bool) (u translate.ObjectRef, ok bool) {
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
type roundRobin struct {
	queues map[string][]translate.ObjectRef
	// turns are the namespaces that have something in their queue, the next one first.
	turns []string
}

func newRoundRobin() roundRobin { return roundRobin{queues: map[string][]translate.ObjectRef{}} }

func (r *roundRobin) push(u translate.ObjectRef) {
	queue := r.queues[u.Namespace]
	if len(queue) == 0 {
		r.turns = append(r.turns, u.Namespace)
	}
	r.queues[u.Namespace] = append(queue, u)
}

func (r *roundRobin) pop() (u translate.ObjectRef, ok bool) {
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
