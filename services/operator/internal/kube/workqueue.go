package kube

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// workQueue is the queue of objects to translate. It alternates between namespaces, so that a thousand changes in one
// namespace delay a change in another namespace by only a few translations.
type workQueue struct {
	// Objects are taken from gateways and others alternately. During the start of the operator, gateways is emptied
	// first, so that configs are published as early as possible.
	gateways, others roundRobin
	// queued are all objects in gateways and others.
	queued map[translate.ObjectRef]struct{}
	// othersTurn changes at each call of next. If it is true, others has precedence, except during the start.
	othersTurn bool
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

// next removes and returns the next object; ok is false if the queue is empty. starting is true during the start of the
// operator, when Gateways are translated first.
func (q *workQueue) next(starting bool) (ref translate.ObjectRef, ok bool) {
	first, second := &q.gateways, &q.others
	if q.othersTurn = !q.othersTurn; !starting && q.othersTurn {
		first, second = second, first
	}
	if ref, ok = first.pop(); !ok {
		ref, ok = second.pop()
	}
	delete(q.queued, ref)
	return ref, ok
}

// roundRobin is a queue that returns objects of its namespaces in turn.
type roundRobin struct {
	queues map[string][]translate.ObjectRef
	// namespaces are those with queued objects. The next object is taken from the first namespace.
	namespaces []string
}

func newRoundRobin() roundRobin { return roundRobin{queues: map[string][]translate.ObjectRef{}} }

func (r *roundRobin) push(ref translate.ObjectRef) {
	queue := r.queues[ref.Namespace]
	if len(queue) == 0 {
		r.namespaces = append(r.namespaces, ref.Namespace)
	}
	r.queues[ref.Namespace] = append(queue, ref)
}

func (r *roundRobin) pop() (ref translate.ObjectRef, ok bool) {
	if len(r.namespaces) == 0 {
		return ref, false
	}
	namespace := r.namespaces[0]
	queue := r.queues[namespace]
	ref, r.namespaces = queue[0], r.namespaces[1:]
	if len(queue) == 1 {
		delete(r.queues, namespace)
	} else {
		r.queues[namespace], r.namespaces = queue[1:], append(r.namespaces, namespace)
	}
	return ref, true
}
