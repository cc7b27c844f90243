package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// writer makes the objects in the cluster equal to the desired state. Every replica stores the desired state, but only
// the leader writes. For each queued object, it first writes the generated objects and then the status, which reports
// errors of those writes.
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

// newWriter returns a writer. The client c reads from the cache, direct reads from the API server.
func newWriter(c, direct client.Client, s *runtime.Scheme, in *inbox, m *meters, ts *tasks, log *slog.Logger) *writer {
	return &writer{
		objects: objectWriter{
			client: c, direct: direct, scheme: s, meters: m, log: log, standbyKeys: &standbyKeys{},
		},
		statuses: statusWriter{client: c, scheme: s, meters: m},
		meters:   m, tasks: ts, log: log,
		desired:    map[translate.ObjectRef]desired{},
		rejections: rejectionStore{inbox: in, of: map[translate.ObjectRef]rejections{}},
		queue:      writeQueue{progress: map[translate.ObjectRef]progress{}},
	}
}

// set replaces the desired state of an object, and queues the object if the state has changed. If a Gateway was
// deleted, Kubernetes garbage-collects its generated objects.
func (w *writer) set(ref translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.desired[ref]
	if before.handedOver() && !want.ours && want.uid == before.uid {
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
		delete(w.queue.progress, ref)
	}
	if want.ours && !want.complete && before.uid == want.uid { // without a new config, the previous objects are kept
		want.objects, want.complete, want.standby = before.objects, before.complete, cmp.Or(want.standby, before.standby)
		want.keepReplicas, want.takeOver, want.frozen = before.keepReplicas, before.takeOver, before.complete
	}
	if known && reflect.DeepEqual(before, want) {
		return // the state is already written or queued
	}
	w.desired[ref] = want
	if known && reflect.DeepEqual(before.withoutEndpoints(), want.withoutEndpoints()) {
		w.queue.enqueueStandby(ref) // most changes of endpoints end here
		return
	}
	w.queue.enqueue(ref, want)
}

// setStandby replaces the config in the desired standby Secret of a Gateway when only endpoints have changed. It
// returns false if the desired state of the Gateway is missing, incomplete or frozen.
func (w *writer) setStandby(ref translate.ObjectRef, c *config.Config) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	want, ok := w.desired[ref]
	if !ok || !want.ours || !want.complete || want.frozen {
		return false
	}
	want.standby = c
	w.desired[ref] = want
	w.queue.enqueueStandby(ref)
	return true
}

// revoke replaces the config in the desired standby Secret of a Gateway whose translation panics. The Secret is written
// with the other objects, which stay as they are.
func (w *writer) revoke(ref translate.ObjectRef, c *config.Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want, ok := w.desired[ref]; ok && want.ours {
		want.standby, want.frozen = c, want.complete
		w.desired[ref] = want
		w.queue.enqueue(ref, want)
	}
}

// countProblems returns the number of objects whose status reports a problem.
func (w *writer) countProblems() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, want := range w.desired {
		if len(want.problems) > 0 {
			n++
		}
	}
	return n
}

// setVersion replaces the resource version of the object for which a status was translated. It is called after a change
// of the object that does not affect the translation.
func (w *writer) setVersion(ref translate.ObjectRef, before, now string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want, ok := w.desired[ref]; ok && want.version == before {
		want.version = now
		w.desired[ref] = want
		w.queue.enqueue(ref, want)
	}
}

// setKEDA sets the client for the KEDA kinds; nil means that KEDA objects cannot be written. When they can be written
// again, all objects are queued.
func (w *writer) setKEDA(c client.Client) {
	if !w.objects.setKEDA(c) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.enqueueAll(w.desired)
}

// setHeld stops all writes except of the statuses of GatewayClasses, or continues them.
func (w *writer) setHeld(held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.queue.held; before == held || held {
		w.queue.held = held
		return
	}
	w.queue.held = false
	w.queue.enqueueAll(w.desired)
}

// setStandbyKeys sets the keys of standby Secrets. If the key for new Secrets has changed, all standby Secrets are
// written again.
func (w *writer) setStandbyKeys(keys [][]byte) {
	if !w.objects.standbyKeys.set(keys) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref, want := range w.desired {
		if want.standby != nil {
			w.queue.enqueueStandby(ref)
		}
	}
}

// workers is the number of objects that are written concurrently, half of them of one namespace. API Priority and
// Fairness by default lets all ServiceAccounts together make some hundred requests at a time.
const workers = 16

// lead writes the queued objects until ctx ends. It returns when no write is in progress.
func (w *writer) lead(ctx context.Context) {
	queue := newFairWrites()
	w.mu.Lock()
	w.queue.fairWrites, w.queue.progress = queue, map[translate.ObjectRef]progress{}
	for ref, want := range w.desired {
		if want.handedOver() { // the objects may belong to the other controller by now
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
	w.queue.fairWrites = nil
	w.mu.Unlock()
	queue.ShutDown()
	group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref := range w.rejections.of { // without the lease, this process does not learn when a rejection ends
		w.rejections.set(ref, rejections{})
	}
}

func (w *writer) work(ctx context.Context, queue *fairWrites, t *task) {
	for {
		ref, down := queue.Get()
		if down {
			return
		}
		t.begin()
		began := time.Now()
		wait, err := w.step(ctx, ref)
		t.end()
		switch {
		case err == nil || ctx.Err() != nil:
			queue.Forget(ref)
			if wait > 0 {
				queue.AddAfter(ref, wait)
			}
		default:
			if !apierrors.IsConflict(err) { // a conflict means that the cache was outdated, and is not a failure
				w.log.Warn("write failed, will retry", "object", ref.String(), "error", err)
				w.meters.failures.Inc()
			}
			queue.retry(ref, err, time.Since(began))
		}
		queue.Done(ref)
	}
}

// step executes the next of the steps that writeQueue describes for an object. It returns the delay until the step
// after that, or 0. All requests of a step together end after callTime, so that a slow API server does not make the
// task stuck. The retry continues with the remaining objects, because objects that are up to date are not written
// again.
func (w *writer) step(ctx context.Context, ref translate.ObjectRef) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w.mu.Lock()
	want, p, held := w.desired[ref], w.queue.progress[ref], w.queue.holds(ref)
	w.mu.Unlock()
	if held {
		return 0, nil
	}
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
	wait = w.queue.standbyWait(ref)
	if w.rejections.of[ref].offload.Problem != "" { // an admission policy may have changed
		wait = min(cmp.Or(wait, rejectionRetry), rejectionRetry)
	}
	return wait, err
}

// write writes the objects generated for one translated object, and then its status.
func (w *writer) write(ctx context.Context, ref translate.ObjectRef) error {
	w.mu.Lock()
	want, ok := w.desired[ref]
	w.mu.Unlock()
	if !ok || w.objects.isTerminating(ctx, ref.Namespace) {
		return nil
	}
	rejected, err := w.writeObjects(ctx, ref, want)
	if want.handedOver() && err == nil {
		w.forgetHandedOver(ref, want)
	}
	if want.ours && !rejected { // after a new rejection, the next translation yields another status
		err = errors.Join(err, w.statuses.write(ctx, ref, want))
	}
	return err
}

// writeObjects writes the generated objects of a Gateway. rejected reports whether a new rejection was sent to the
// translation loop.
func (w *writer) writeObjects(ctx context.Context, ref translate.ObjectRef, want desired) (rejected bool, err error) {
	if !want.complete {
		err := w.objects.restore(ctx, ref.NamespacedName, want.skeleton)
		if want.standby == nil {
			return false, err
		}
		// The config was restored after a restart, and revocations may have been added to it.
		if secret := want.standbySecret(ref, w.objects.standbyKeys); !w.postpones(ctx, ref, want, secret) {
			err = errors.Join(err, w.objects.apply(ctx, secret, want))
		}
		return false, err
	}
	w.mu.Lock()
	before := w.rejections.of[ref]
	w.mu.Unlock()
	found, err := w.objects.sync(ctx, ref, want, before,
		func(o resource.Object) bool { return w.postpones(ctx, ref, want, o) })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.desired[ref].uid != want.uid {
		return false, err
	}
	return w.rejections.set(ref, found) && err != nil, err
}

// postpones reports whether an object is a standby Secret whose write is postponed, see writeQueue.postponeStandby. It
// is not postponed while the published config is frozen: after a restart, the operator publishes the config in the
// Secret, and dataplanes may run newer endpoints.
func (w *writer) postpones(ctx context.Context, ref translate.ObjectRef, want desired, o resource.Object) bool {
	wanted, ok := o.(*corev1.Secret)
	if !ok {
		return false
	}
	live := &corev1.Secret{}
	err := w.objects.client.Get(ctx, resource.KeyOf(wanted), live)
	w.mu.Lock()
	defer w.mu.Unlock()
	onlyEndpoints := err == nil && !want.frozen &&
		onlyEndpointsDiffer(live, wanted, ref.NamespacedName, want.uid, w.objects.standbyKeys.all())
	return w.queue.postponeStandby(ref, onlyEndpoints)
}

// forgetHandedOver removes the desired state of a Gateway that belongs to another controller, after its generated
// objects were deleted once. They must not be deleted again: the other controller may create objects with the same
// labels and owner.
func (w *writer) forgetHandedOver(ref translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.desired[ref]; now.handedOver() && now.uid == want.uid {
		delete(w.desired, ref)
		delete(w.queue.progress, ref)
	}
}
