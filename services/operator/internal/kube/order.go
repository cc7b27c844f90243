package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// What is written comes in this order:
//
//  1. Services and workloads that are missing, of all Gateways: they make calls possible.
//  2. Everything else, statuses included, once the config of the Gateway has what came of the first: a new Service gets its cluster IP when it is made.
//  3. Endpoints in the Secrets with which pods start while the operator is away, some minutes later: most changes end with the second step.
const (
	priorityRest  = 0
	priorityFirst = 1
)

// settleTime is how long the second step waits for what comes of the first: for the watch to show a Service and for its Gateway to be translated again.
const settleTime = time.Second

// standbyPause is by how much the endpoints in the Secrets for a start without the operator may be behind: of what changes meanwhile only the newest is
// written. A change of endpoints is to cost the API server next to nothing, and after a restart of the operator it costs no more: what the Secrets lack then is
// written within the same time. Each Gateway has a moment of its own in the second half of it.
const standbyPause = 10 * time.Minute

// progress is how far the writing of a Gateway has come since this process leads.
type progress struct {
	// begun is the Gateway whose missing Services and workloads have been made.
	begun types.UID
	// settled is when the second step may begin.
	settled time.Time
	// standby is when the endpoints in the Secret are due; zero while none are.
	standby time.Time
}

// newQueue returns the units to compare with the cluster.
func newQueue() priorityqueue.PriorityQueue[translate.ObjectRef] {
	return priorityqueue.New("writes", func(o *priorityqueue.Opts[translate.ObjectRef]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[translate.ObjectRef](100*time.Millisecond, 30*time.Second)
	})
}

// look has a unit compared with the cluster. It needs the lock.
func (w *writer) look(u translate.ObjectRef) {
	if w.queue == nil {
		return
	}
	priority := priorityRest
	if w.desired[u].begins(u) && w.progress[u].begun != w.desired[u].uid {
		priority = priorityFirst
	}
	w.queue.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, u)
}

// begins tells whether a unit has objects that make calls possible.
func (want desired) begins(u translate.ObjectRef) bool {
	return u.Kind == translate.KindGateway && want.ours && want.complete
}

// step does the next step for a unit, and returns after which time there is another one.
func (w *writer) step(ctx context.Context, u translate.ObjectRef) (wait time.Duration, err error) {
	w.mu.Lock()
	want, p := w.desired[u], w.progress[u]
	w.mu.Unlock()
	if want.begins(u) && p.begun != want.uid {
		p.begun = want.uid
		if w.begin(ctx, u, want) {
			p.settled = time.Now().Add(settleTime)
		}
		w.mu.Lock()
		w.progress[u] = p
		w.mu.Unlock()
	}
	if wait := time.Until(p.settled); wait > 0 {
		return wait, nil
	}
	err = w.write(ctx, u)
	w.mu.Lock()
	defer w.mu.Unlock()
	if due := w.progress[u].standby; !due.IsZero() { // to look now has taken the place of looking then
		return max(time.Until(due), time.Millisecond), err
	}
	return 0, err
}

// begin makes the Services and workloads of a Gateway that are missing, and reports whether it has made any. What the API server refuses is for the second
// step to tell.
func (w *writer) begin(ctx context.Context, u translate.ObjectRef, want desired) (made bool) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if w.ends(ctx, u.Namespace) {
		return false
	}
	var found rejection
	for _, o := range want.objects {
		if _, service := o.(*corev1.Service); !service && !isWorkload(o) {
			continue
		}
		there := o.DeepCopyObject().(client.Object)
		if err := w.client.Get(ctx, resource.KeyOf(o), there); apierrors.IsNotFound(err) && w.writeOrSpare(ctx, o, want, rejection{}, &found) == nil {
			made = true
		}
	}
	return made
}

// lookLater has the endpoints in the Secret of a Gateway written in a while, however often it is called until then. It needs the lock.
func (w *writer) lookLater(u translate.ObjectRef) {
	p := w.progress[u]
	if w.queue == nil || !p.standby.IsZero() {
		return
	}
	wait := standbyPause/2 + rand.N(standbyPause/2)
	p.standby = time.Now().Add(wait)
	w.progress[u] = p
	w.queue.AddAfter(u, wait)
}

// rests tells whether a Secret with which pods start stays as it is for now: it differs from the wanted one in endpoints only, and those are not due.
func (w *writer) rests(ctx context.Context, u translate.ObjectRef, wanted resource.Object) bool {
	next, ok := wanted.(*corev1.Secret)
	if !ok {
		return false
	}
	has := &corev1.Secret{}
	err := w.client.Get(ctx, resource.KeyOf(next), has)
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.progress[u]
	if err != nil || !onlyEndpointsDiffer(has, next) || !p.standby.IsZero() && !time.Now().Before(p.standby) {
		p.standby = time.Time{}
		w.progress[u] = p
		return false
	}
	w.lookLater(u)
	return true
}

// onlyEndpointsDiffer tells whether a Secret is as the operator has written it, with another config than the wanted one, and one that differs in its clusters
// alone.
func onlyEndpointsDiffer(has, wanted *corev1.Secret) bool {
	said := func(s *corev1.Secret, annotation string) string { return s.Annotations[annotation] }
	rest, sum := said(wanted, manifest.StandbyRestAnnotation), sumOf(has)
	return said(has, manifest.StandbyRestAnnotation) == rest && said(has, manifest.StandbySumAnnotation) == sum && sumOf(wanted) != sum
}

// sumOf is the SHA-256 of the packed config in a Secret. A cache may hold the sum in the place of the config.
func sumOf(s *corev1.Secret) string {
	data := s.Data[manifest.StandbyDataKey]
	if sum, condensed := strings.CutPrefix(string(data), condensedPrefix); condensed {
		return sum
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
