package kube

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The objects of a Gateway are written in this order:
//
//  1. Missing Services and workloads, because calls depend on them.
//  2. Everything else, including statuses, after the Gateway was translated with the result of the first step: a new
//     Service gets its cluster IP on creation.
//  3. Changed endpoints in the standby Secret, some minutes later.
//
// Namespaces take turns, so that a thousand new Gateways in one namespace delay a write in another namespace by only a
// few writes. Within a namespace, the first step of all Gateways is done before other writes. If the writes of a
// namespace take long, for example statuses of objects of a megabyte, the namespace gets only some of the workers. The
// other workers write for namespaces with fewer writes in progress.

// settleTime is the delay between creating the Services and workloads of a Gateway and writing its other objects.
// During this delay, the watch delivers the created Service, and the Gateway is translated again.
const settleTime = time.Second

// A status that the API server rejects is written again quickRetries times within half a minute, and then every
// rejectionRetry: the API server may accept the status after a change of RBAC or CRDs, which does not change the object
// itself. Rejected capabilities of in-kernel forwarding are tried again every rejectionRetry.
const (
	quickRetries   = 8
	rejectionRetry = 10 * time.Minute
)

// longestPause is the pause before a retry, in multiples of the time that the failed write has taken. Thus the retries
// of an object whose writes always exceed callTime occupy the API server for a fifth of the time. The first retry does
// not wait, and the pause grows with each: a write may also fail because others occupy the API server.
const longestPause = 4

// writeQueue is the queue of the objects that the writer must compare with the cluster. The lock of the writer guards
// it.
type writeQueue struct {
	// fairWrites is nil while this process is not the leader.
	*fairWrites
	progress map[translate.ObjectRef]progress
	// held means that only statuses of GatewayClasses are written, see installations. Other objects are not queued, so
	// that all of them are queued together, in the order described above, when the writer continues.
	held bool
}

// holds reports whether the writer must not write an object, because it is held.
func (q *writeQueue) holds(ref translate.ObjectRef) bool {
	return q.held && ref.Kind != translate.KindClass
}

// progress is the state of the steps above for one Gateway since this process became the leader.
type progress struct {
	// created is the UID of the Gateway whose missing Services and workloads were created.
	created types.UID
	// settled is the earliest time of the second step.
	settled time.Time
	// standby is the time at which changed endpoints must be written to the standby Secret; zero if no endpoints have
	// changed.
	standby time.Time
}

// fairWrites is a work queue that orders writes as described above. Get waits while all queued objects belong to
// namespaces with too many writes in progress. After a write, the worker that has completed it takes the object that
// has become eligible. The workers that wait in Get continue to wait.
type fairWrites struct {
	workqueue.TypedRateLimitingInterface[translate.ObjectRef]
	turns   *writeTurns
	backoff workqueue.TypedRateLimiter[translate.ObjectRef]
}

func newFairWrites() *fairWrites {
	turns := newWriteTurns()
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[translate.ObjectRef]{Name: "writes", Queue: turns})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[translate.ObjectRef]{Queue: queue})
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[translate.ObjectRef](100*time.Millisecond,
		30*time.Second)
	return &fairWrites{workqueue.NewTypedRateLimitingQueueWithConfig(backoff,
		workqueue.TypedRateLimitingQueueConfig[translate.ObjectRef]{DelayingQueue: delaying}), turns, backoff}
}

// Done overrides the method of the interface.
func (q *fairWrites) Done(ref translate.ObjectRef) {
	q.turns.done(ref)
	q.TypedRateLimitingInterface.Done(ref)
}

// writeTurns are the objects to write, by namespace. It implements workqueue.Queue.
type writeTurns struct {
	queues map[string]*namespaceWrites
	// order are the namespaces with queued objects. The next object is taken from the first namespace that may write.
	order []string
	// queued are all objects in queues, with true for those in namespaceWrites.first.
	queued map[translate.ObjectRef]bool

	mu sync.Mutex
	// urgent are the Gateways whose next step is the first one.
	urgent map[translate.ObjectRef]bool
	// writing is the number of objects in progress by namespace, and busy their sum.
	writing map[string]int
	busy    int
}

// namespaceWrites are the queued objects of a namespace: Gateways whose next step is the first one, and all others.
type namespaceWrites struct{ first, rest []translate.ObjectRef }

func newWriteTurns() *writeTurns {
	return &writeTurns{
		queues: map[string]*namespaceWrites{}, queued: map[translate.ObjectRef]bool{},
		urgent: map[translate.ObjectRef]bool{}, writing: map[string]int{},
	}
}

// setUrgent marks a Gateway whose next step is the first one, before it is added to the queue.
func (t *writeTurns) setUrgent(ref translate.ObjectRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.urgent[ref] = true
}

func (t *writeTurns) isUrgent(ref translate.ObjectRef) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.urgent[ref]
}

// Push implements workqueue.Queue.
func (t *writeTurns) Push(ref translate.ObjectRef) {
	q := t.queues[ref.Namespace]
	if q == nil {
		q = &namespaceWrites{}
		t.queues[ref.Namespace], t.order = q, append(t.order, ref.Namespace)
	}
	if t.queued[ref] = t.isUrgent(ref); t.queued[ref] {
		q.first = append(q.first, ref)
	} else {
		q.rest = append(q.rest, ref)
	}
}

// Touch implements workqueue.Queue. It is called instead of Push for an object that is queued already.
func (t *writeTurns) Touch(ref translate.ObjectRef) {
	if t.queued[ref] || !t.isUrgent(ref) {
		return
	}
	q := t.queues[ref.Namespace]
	q.rest = slices.DeleteFunc(q.rest, func(other translate.ObjectRef) bool { return other == ref })
	q.first, t.queued[ref] = append(q.first, ref), true
}

// Len implements workqueue.Queue. It returns 0 if Pop would return an object of a namespace that may not write.
func (t *writeTurns) Len() int {
	if t.next() < 0 {
		return 0
	}
	return len(t.queued)
}

// next returns the position in order of the next namespace that may write, or -1. A namespace may write as long as it
// has fewer writes in progress than there are idle workers. So the only namespace with writes has half of the workers,
// and a namespace without writes in progress never waits for namespaces that fill their share.
func (t *writeTurns) next() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.IndexFunc(t.order, func(namespace string) bool { return t.writing[namespace] < workers-t.busy })
}

// done ends the write of an object that Pop has returned.
func (t *writeTurns) done(ref translate.ObjectRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	if t.writing[ref.Namespace]--; t.writing[ref.Namespace] == 0 {
		delete(t.writing, ref.Namespace)
	}
}

// Pop implements workqueue.Queue. Len must not be 0.
func (t *writeTurns) Pop() (ref translate.ObjectRef) {
	at := t.next()
	namespace := t.order[at]
	t.order = slices.Delete(t.order, at, at+1)
	q := t.queues[namespace]
	from := &q.rest
	if len(q.first) > 0 {
		from = &q.first
	}
	ref, *from = (*from)[0], (*from)[1:]
	if len(q.first)+len(q.rest) > 0 {
		t.order = append(t.order, namespace)
	} else {
		delete(t.queues, namespace)
	}
	delete(t.queued, ref)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy++
	t.writing[namespace]++
	delete(t.urgent, ref)
	return ref
}

// enqueue adds an object to the queue as its desired state requires, if this process is the leader.
func (q *writeQueue) enqueue(ref translate.ObjectRef, want desired) {
	if q.fairWrites == nil || q.holds(ref) {
		return
	}
	if q.isFirst(ref, want) {
		q.turns.setUrgent(ref)
	}
	q.Add(ref)
}

// enqueueAll adds all objects to the queue, Gateways whose next step is the first one before others, because writes
// begin meanwhile.
func (q *writeQueue) enqueueAll(all map[translate.ObjectRef]desired) {
	for _, first := range []bool{true, false} {
		for ref, want := range all {
			if q.isFirst(ref, want) == first {
				q.enqueue(ref, want)
			}
		}
	}
}

// isFirst reports whether the next step of an object is the first one.
func (q *writeQueue) isFirst(ref translate.ObjectRef, want desired) bool {
	return want.hasObjects(ref) && q.progress[ref].created != want.uid
}

// enqueueStandby adds a Gateway to the queue with a delay, after which the endpoints in its standby Secret are written.
// Further calls during the delay have no effect.
func (q *writeQueue) enqueueStandby(ref translate.ObjectRef) {
	p := q.progress[ref]
	if q.fairWrites == nil || !p.standby.IsZero() {
		return
	}
	wait := standbyPause/2 + rand.N(standbyPause/2)
	p.standby = time.Now().Add(wait)
	q.progress[ref] = p
	q.AddAfter(ref, wait)
}

// postponeStandby reports whether a standby Secret must not be written yet, because only its endpoints have changed and
// the delay of enqueueStandby has not passed. It starts the delay if necessary. If the Secret is to be written now, it
// ends the delay.
func (q *writeQueue) postponeStandby(ref translate.ObjectRef, onlyEndpoints bool) bool {
	p := q.progress[ref]
	if !onlyEndpoints || !p.standby.IsZero() && !time.Now().Before(p.standby) {
		p.standby = time.Time{}
		q.progress[ref] = p
		return false
	}
	q.enqueueStandby(ref)
	return true
}

// standbyWait returns the time until the endpoints in the standby Secret are to be written; 0 if they are up to date.
// The writer adds the object again with this delay after each step.
func (q *writeQueue) standbyWait(ref translate.ObjectRef) time.Duration {
	if due := q.progress[ref].standby; !due.IsZero() {
		return max(time.Until(due), time.Millisecond)
	}
	return 0
}

// retry adds an object to the queue again, with backoff, after a write that has taken some time has failed.
func (q *fairWrites) retry(ref translate.ObjectRef, err error, took time.Duration) {
	failed := q.NumRequeues(ref)
	if errors.Is(err, errStatusRejected) && failed >= quickRetries {
		q.AddAfter(ref, rejectionRetry)
		return
	}
	q.AddAfter(ref, max(q.backoff.When(ref), time.Duration(min(failed, longestPause))*took))
}
