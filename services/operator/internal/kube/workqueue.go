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
	gateways, others *roundRobin[translate.ObjectRef]
	// queued are all objects in gateways and others.
	queued map[translate.ObjectRef]struct{}
	// othersTurn changes at each call of next. If it is true, others has precedence, except during the start.
	othersTurn bool
}

func newWorkQueue() *workQueue {
	namespaceOf := func(ref translate.ObjectRef) string { return ref.Namespace }
	return &workQueue{
		gateways: newRoundRobin(namespaceOf), others: newRoundRobin(namespaceOf),
		queued: map[translate.ObjectRef]struct{}{},
	}
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
			q.gateways.Push(ref)
		} else {
			q.others.Push(ref)
		}
	}
}

// next removes and returns the next object; ok is false if the queue is empty. starting is true during the start of the
// operator, when Gateways are translated first.
func (q *workQueue) next(starting bool) (ref translate.ObjectRef, ok bool) {
	first, second := q.gateways, q.others
	if q.othersTurn = !q.othersTurn; !starting && q.othersTurn {
		first, second = second, first
	}
	if first.Len() == 0 {
		first = second
	}
	if first.Len() == 0 {
		return ref, false
	}
	ref = first.Pop()
	delete(q.queued, ref)
	return ref, true
}

// roundRobin is a queue that returns items of its namespaces in turn. It implements workqueue.Queue.
type roundRobin[T comparable] struct {
	namespaceOf func(T) string
	queues      map[string][]T
	// namespaces are those with queued items. The next item is taken from the first namespace.
	namespaces []string
	size       int
}

func newRoundRobin[T comparable](namespaceOf func(T) string) *roundRobin[T] {
	return &roundRobin[T]{namespaceOf: namespaceOf, queues: map[string][]T{}}
}

// Touch implements workqueue.Queue.
func (r *roundRobin[T]) Touch(T) {}

// Len implements workqueue.Queue.
func (r *roundRobin[T]) Len() int { return r.size }

// Push implements workqueue.Queue.
func (r *roundRobin[T]) Push(item T) {
	namespace := r.namespaceOf(item)
	queue := r.queues[namespace]
	if len(queue) == 0 {
		r.namespaces = append(r.namespaces, namespace)
	}
	r.queues[namespace] = append(queue, item)
	r.size++
}

// Pop implements workqueue.Queue. The queue must not be empty.
func (r *roundRobin[T]) Pop() (item T) {
	namespace := r.namespaces[0]
	queue := r.queues[namespace]
	item, r.namespaces = queue[0], r.namespaces[1:]
	if len(queue) == 1 {
		delete(r.queues, namespace)
	} else {
		r.queues[namespace], r.namespaces = queue[1:], append(r.namespaces, namespace)
	}
	r.size--
	return item
}
