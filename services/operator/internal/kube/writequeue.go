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

// settleTime is the delay between the first and the second step. During it, the watch delivers the created Service, and
// the Gateway is translated again.
const settleTime = time.Second

// A rejected status is retried quickTries times within half a minute, and then every rejectionRetry: the API server
// may accept it after a change of RBAC or CRDs that does not touch the object.
const (
	quickTries     = 8
	rejectionRetry = 10 * time.Minute
)

// writeQueue orders the objects that the writer must compare with the cluster. The lock of the writer guards it.
type writeQueue struct {
	// PriorityQueue is nil while this process is not the leader.
	priorityqueue.PriorityQueue[translate.ObjectRef]
	progress map[translate.ObjectRef]progress
}

// progress is the progress of writing a Gateway since this process became the leader. The steps are described at
// priorityRest.
type progress struct {
	// created is the UID of the Gateway for which the first step is done.
	created types.UID
	// settled is the earliest time of the second step.
	settled time.Time
	// standby is when changed endpoints must be written to the standby Secret; zero if there are none.
	standby time.Time
}

func newPriorityQueue() priorityqueue.PriorityQueue[translate.ObjectRef] {
	return priorityqueue.New("writes", func(o *priorityqueue.Opts[translate.ObjectRef]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[translate.ObjectRef](100*time.Millisecond,
			30*time.Second)
	})
}

// enqueue adds an object with the priority that its desired state requires, if this process is the leader.
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

// enqueueStandby adds a Gateway with a delay, after which the endpoints in its standby Secret are written. Further
// calls before that have no effect.
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

// postponeStandby reports whether the write of a standby Secret is postponed, because it differs only in endpoints and
// the delay of enqueueStandby has not passed.
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

// standbyWait returns the remaining delay of enqueueStandby; 0 if there is none. The writer adds the object again with
// this delay after each step, because an immediate enqueue replaces a delayed one of the same object.
func (q *writeQueue) standbyWait(ref translate.ObjectRef) time.Duration {
	if due := q.progress[ref].standby; !due.IsZero() {
		return max(time.Until(due), time.Millisecond)
	}
	return 0
}

// retryWrite adds an object again with backoff after its write has failed.
func retryWrite(queue priorityqueue.PriorityQueue[translate.ObjectRef], ref translate.ObjectRef, err error) {
	if errors.Is(err, errStatusRejected) && queue.NumRequeues(ref) >= quickTries {
		queue.AddAfter(ref, rejectionRetry)
		return
	}
	queue.AddRateLimited(ref)
}
