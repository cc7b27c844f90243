package kube

import (
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Objects are written in this order:
//
//  1. Missing Services and workloads of all Gateways, because calls depend on them.
//  2. Everything else, including statuses, after the Gateway was translated with the result of the first step: a new
//     Service gets its cluster IP on creation.
//  3. Changed endpoints in standby Secrets, some minutes later.
const (
	priorityRest  = 0
	priorityFirst = 1
)

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

// writeQueue is the queue of the objects that the writer must compare with the cluster. The lock of the writer guards
// it.
type writeQueue struct {
	// PriorityQueue is nil while this process is not the leader.
	priorityqueue.PriorityQueue[translate.ObjectRef]
	progress map[translate.ObjectRef]progress
}

// progress is how far the writer has got with a Gateway since this process became the leader. The steps of writing are
// described at priorityRest.
type progress struct {
	// created is the UID of the Gateway whose missing Services and workloads were created.
	created types.UID
	// settled is the earliest time of the second step.
	settled time.Time
	// standby is the time at which changed endpoints must be written to the standby Secret; zero if no endpoints have
	// changed.
	standby time.Time
}

func newPriorityQueue() priorityqueue.PriorityQueue[translate.ObjectRef] {
	return priorityqueue.New("writes", func(o *priorityqueue.Opts[translate.ObjectRef]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[translate.ObjectRef](100*time.Millisecond,
			30*time.Second)
	})
}

// enqueue adds an object to the queue with the priority that its desired state requires, if this process is the leader.
func (q *writeQueue) enqueue(ref translate.ObjectRef, want desired) {
	if q.PriorityQueue == nil {
		return
	}
	priority := priorityRest
	if want.hasObjects(ref) && q.progress[ref].created != want.uid {
		priority = priorityFirst
	}
	q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, ref)
}

// enqueueStandby adds a Gateway to the queue with a delay, after which the endpoints in its standby Secret are written.
// Further calls during the delay have no effect.
func (q *writeQueue) enqueueStandby(ref translate.ObjectRef) {
	p := q.progress[ref]
	if q.PriorityQueue == nil || !p.standby.IsZero() {
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
// The writer adds the object again with this delay after each step, because an immediate enqueue replaces a delayed one
// of the same object.
func (q *writeQueue) standbyWait(ref translate.ObjectRef) time.Duration {
	if due := q.progress[ref].standby; !due.IsZero() {
		return max(time.Until(due), time.Millisecond)
	}
	return 0
}

// retryWrite adds an object to the queue again, with backoff, after its write has failed.
func retryWrite(queue priorityqueue.PriorityQueue[translate.ObjectRef], ref translate.ObjectRef, err error) {
	if errors.Is(err, errStatusRejected) && queue.NumRequeues(ref) >= quickRetries {
		queue.AddAfter(ref, rejectionRetry)
		return
	}
	queue.AddRateLimited(ref)
}
