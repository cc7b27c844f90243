package kube

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// workQueue orders the objects to translate. It alternates between namespaces, so that a thousand changes in one
// namespace delay a change in another namespace by only one translation.
type workQueue struct {
	// gateways and others take turns. During the start, gateways comes first, so that configs are published as early as
	// possible.
	gateways, others roundRobin
	// queued are all objects in gateways and others.
	queued map[translate.ObjectRef]struct{}
	// turn is true if others had its turn last.
	turn bool
}

func newWorkQueue() *workQueue {
	return &workQueue{gateways: newRoundRobin(), others: newRoundRobin(), queued: map[translate.ObjectRef]struct{}{}}
}

// add adds objects that are not queued yet.
func (q *workQueue) add(refs map[translate.ObjectRef]struct{}) {
	var fresh []translate.ObjectRef
	for ref := range refs {
		if _, known := q.queued[ref]; !known {
			q.queued[ref] = struct{}{}
			fresh = append(fresh, ref)
		}
	}
	slices.SortFunc(fresh, translate.ObjectRef.Compare)
	for _, ref := range fresh {
		if ref.Kind == translate.KindGateway {
			q.gateways.push(ref)
		} else {
			q.others.push(ref)
		}
	}
}

// next removes and returns the next object; false if the queue is empty. During the start, starting is true.
func (q *workQueue) next(starting bool) (ref translate.ObjectRef, ok bool) {
	first, second := &q.gateways, &q.others
	if q.turn = !q.turn; !starting && q.turn {
		first, second = second, first
	}
	if ref, ok = first.pop(); !ok {
		ref, ok = second.pop()
	}
	delete(q.queued, ref)
	return ref, ok
}

// roundRobin is a queue that takes objects from its namespaces in turn.
type roundRobin struct {
	queues map[string][]translate.ObjectRef
	// turns are the namespaces with objects. The first one comes next.
	turns []string
}

func newRoundRobin() roundRobin { return roundRobin{queues: map[string][]translate.ObjectRef{}} }

func (r *roundRobin) push(ref translate.ObjectRef) {
	queue := r.queues[ref.Namespace]
	if len(queue) == 0 {
		r.turns = append(r.turns, ref.Namespace)
	}
	r.queues[ref.Namespace] = append(queue, ref)
}

func (r *roundRobin) pop() (ref translate.ObjectRef, ok bool) {
	if len(r.turns) == 0 {
		return ref, false
	}
	namespace := r.turns[0]
	queue := r.queues[namespace]
	ref, r.turns = queue[0], r.turns[1:]
	if len(queue) == 1 {
		delete(r.queues, namespace)
	} else {
		r.queues[namespace], r.turns = queue[1:], append(r.turns, namespace)
	}
	return ref, true
}
