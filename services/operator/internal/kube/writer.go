package kube

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// writer makes the cluster equal to the desired state, on the leader. It queues objects, writes the objects that a
// Gateway owns, and then the status, which reports the result.
type writer struct {
	objects  objectWriter
	statuses statusWriter
	meters   *meters
	tasks    *tasks
	log      *slog.Logger

	mu         sync.Mutex
	desired    map[translate.ObjectRef]desired
	rejections rejectionStore
	queue      writeQueue
}

// newWriter returns a writer. c reads from the cache, direct reads from the API server.
func newWriter(c, direct client.Client, s *runtime.Scheme, in *inbox, m *meters, ts *tasks, log *slog.Logger) *writer {
	return &writer{
		objects:  objectWriter{client: c, direct: direct, scheme: s, meters: m, log: log},
		statuses: statusWriter{client: c, scheme: s, meters: m},
		meters:   m, tasks: ts, log: log,
		desired:    map[translate.ObjectRef]desired{},
		rejections: rejectionStore{inbox: in, of: map[translate.ObjectRef]rejections{}},
		queue:      writeQueue{progress: map[translate.ObjectRef]progress{}},
	}
}

// set replaces the desired state of an object and queues the object if the state changed. The objects of a deleted
// Gateway are garbage-collected by Kubernetes.
func (w *writer) set(ref translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.desired[ref]
	if before.givenAway() && !want.ours && want.uid == before.uid {
		return // its generated objects are deleted first
	}
	if !want.ours && !want.complete {
		delete(w.desired, ref)
		delete(w.queue.progress, ref)
		w.rejections.set(ref, rejections{})
		return
	}
	if before.uid != want.uid {
		w.rejections.set(ref, rejections{})
	}
	if want.ours && !want.complete && before.uid == want.uid { // without a new config the previous objects stay desired
		want.objects, want.complete, want.standby = before.objects, before.complete, before.standby
		want.keepReplicas = before.keepReplicas
	}
	if known && reflect.DeepEqual(before, want) {
		return // written, or queued
	}
	w.desired[ref] = want
	if known && reflect.DeepEqual(before.withoutEndpoints(), want.withoutEndpoints()) {
		w.queue.enqueueStandby(ref) // most changes of endpoints end here
		return
	}
	w.queue.enqueue(ref, want)
}

// countProblems returns the number of objects whose status reports a problem.
func (w *writer) countProblems() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, want := range w.desired {
		wrong := func(c fieldCondition) bool { return condition.Wrong(c.Condition) }
		if slices.ContainsFunc(fieldConditions(want.status), wrong) {
			n++
		}
	}
	return n
}

// setVersion replaces the resource version for which a status was made, after a change that does not affect the
// translation.
func (w *writer) setVersion(ref translate.ObjectRef, before, now string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want, ok := w.desired[ref]; ok && want.version == before {
		want.version = now
		w.desired[ref] = want
		w.queue.enqueue(ref, want)
	}
}

// setKEDA sets the client of the KEDA kinds; nil if they cannot be written. All objects are compared once they can.
func (w *writer) setKEDA(c client.Client) {
	if !w.objects.setKEDA(c) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref, want := range w.desired {
		w.queue.enqueue(ref, want)
	}
}

// workers is the number of objects that are written concurrently.
const workers = 4

// lead writes until ctx ends, and returns when no write is in progress.
func (w *writer) lead(ctx context.Context) {
	queue := newPriorityQueue()
	w.mu.Lock()
	w.queue = writeQueue{queue, map[translate.ObjectRef]progress{}}
	for ref, want := range w.desired {
		if want.givenAway() { // the objects may belong to the other controller by now
			delete(w.desired, ref)
			continue
		}
		w.queue.enqueue(ref, want)
	}
	w.mu.Unlock()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { w.tasks.do("writing", func(t *task) { w.work(ctx, queue, t) }) })
	}
	<-ctx.Done()
	w.mu.Lock()
	w.queue.PriorityQueue = nil
	w.mu.Unlock()
	queue.ShutDown()
	group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref := range w.rejections.of { // only the leader learns when a rejection ends
		w.rejections.set(ref, rejections{})
	}
}

func (w *writer) work(ctx context.Context, queue priorityqueue.PriorityQueue[translate.ObjectRef], t *task) {
	for {
		ref, down := queue.Get()
		if down {
			return
		}
		t.begin()
		wait, err := w.step(ctx, ref)
		t.end()
		switch {
		case err == nil || ctx.Err() != nil:
			queue.Forget(ref)
			if wait > 0 {
				queue.AddAfter(ref, wait)
			}
		default:
			if !apierrors.IsConflict(err) { // after a conflict the cache was outdated, which is no failure
				w.log.Warn("write failed, will retry", "object", ref.String(), "error", err)
				w.meters.failures.Inc()
			}
			retryWrite(queue, ref, err)
		}
		queue.Done(ref)
	}
}

// step makes the next step for an object (see writeQueue). It returns the delay of the step after that, or 0.
func (w *writer) step(ctx context.Context, ref translate.ObjectRef) (wait time.Duration, err error) {
	w.mu.Lock()
	want, p := w.desired[ref], w.queue.progress[ref]
	w.mu.Unlock()
	if want.hasObjects(ref) && p.created != want.uid {
		p.created = want.uid
		if w.objects.createMissing(ctx, ref, want) {
			p.settled = time.Now().Add(settleTime)
		}
		w.mu.Lock()
		w.queue.progress[ref] = p
		w.mu.Unlock()
	}
	if wait := time.Until(p.settled); wait > 0 {
		return wait, nil
	}
	err = w.write(ctx, ref)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.standbyWait(ref), err
}

// write writes one object: first the objects that it owns, then its status. If the time runs out, the retry continues
// with the rest, because objects that are up to date are not written again.
func (w *writer) write(ctx context.Context, ref translate.ObjectRef) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w.mu.Lock()
	want, ok := w.desired[ref]
	w.mu.Unlock()
	if !ok || w.objects.isTerminating(ctx, ref.Namespace) {
		return nil
	}
	rejected, err := w.writeObjects(ctx, ref, want)
	if want.givenAway() && err == nil {
		w.forgetGivenAway(ref, want)
	}
	if want.ours && !rejected { // after a new rejection the next translation makes another status
		err = errors.Join(err, w.statuses.write(ctx, ref, want))
	}
	return err
}

// writeObjects writes the objects that a Gateway owns. It reports whether the loop received a new rejection.
func (w *writer) writeObjects(ctx context.Context, ref translate.ObjectRef, want desired) (rejected bool, err error) {
	if !want.complete {
		return false, w.objects.restore(ctx, ref.NamespacedName, want.skeleton)
	}
	w.mu.Lock()
	before := w.rejections.of[ref]
	w.mu.Unlock()
	found, err := w.objects.sync(
		ctx, ref, want, before, func(o resource.Object) bool { return w.postpones(ctx, ref, o) },
	)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.desired[ref].uid != want.uid {
		return false, err
	}
	return w.rejections.set(ref, found) && err != nil, err
}

// postpones reports whether an object is a standby Secret of which only endpoints differ that are not due yet.
func (w *writer) postpones(ctx context.Context, ref translate.ObjectRef, o resource.Object) bool {
	wanted, ok := o.(*corev1.Secret)
	if !ok {
		return false
	}
	live := &corev1.Secret{}
	err := w.objects.client.Get(ctx, resource.KeyOf(wanted), live)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.postponeStandby(ref, err == nil && onlyEndpointsDiffer(live, wanted))
}

// forgetGivenAway removes a Gateway of another controller. The objects that the other controller creates have the same
// labels and owner, and must not be deleted.
func (w *writer) forgetGivenAway(ref translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.desired[ref]; now.givenAway() && now.uid == want.uid {
		delete(w.desired, ref)
		delete(w.queue.progress, ref)
	}
}
