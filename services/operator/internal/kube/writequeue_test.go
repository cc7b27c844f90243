package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// leads runs the writer as the leader until the returned function is called.
func (e *edge) leads() (ends func()) {
	ctx, cancel := context.WithCancel(e.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.writer.lead(ctx) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// wantsOf sets the desired state of one of many Gateways.
func (e *edge) wantsOf(name string, objects int) {
	key := types.NamespacedName{Namespace: gatewayKey.Namespace, Name: name}
	owner := manifest.OwnerOf(
		&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name, UID: types.UID(name)}},
		nil,
	)
	shown := manifest.ConfigMap(owner, published(), "")
	meta := func() metav1.ObjectMeta { return *shown.ObjectMeta.DeepCopy() }
	all := []resource.Object{
		shown,
		&corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta()},
		&appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta()},
	}
	e.writer.set(translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}, desired{
		ours: true, complete: true, uid: types.UID(name), objects: all[:objects], standby: new(published()),
	})
}

// Services and workloads of all Gateways are created first. Everything else is written once, after the next
// translation.
func TestServicesAndWorkloadsAreCreatedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		var order []string
		e.refuse = func(o runtime.ApplyConfiguration) error {
			time.Sleep(10 * time.Millisecond) // a request takes this long
			e.writer.mu.Lock()
			defer e.writer.mu.Unlock()
			order = append(order, o.(interface{ GetKind() string }).GetKind())
			return nil
		}
		defer e.leads()()
		const gateways = 50
		for i := range gateways {
			e.wantsOf(fmt.Sprint("g", i), 3)
		}
		time.Sleep(settleTime / 2)
		for i := range gateways { // each Gateway is translated again
			e.wantsOf(fmt.Sprint("g", i), 3)
		}
		time.Sleep(time.Minute)
		synctest.Wait() // makes the writes to order visible here; Sleep does not
		count, firstOther, lastFirst := map[string]int{}, len(order), 0
		for i, kind := range order {
			count[kind]++
			if kind == "Service" || kind == "Deployment" {
				lastFirst = i
			} else {
				firstOther = min(firstOther, i)
			}
		}
		if firstOther < lastFirst {
			t.Errorf(
				"write %d makes no call possible, and %d does: %s", firstOther, lastFirst, strings.Join(order, " "),
			)
		}
		for _, kind := range []string{"Service", "Deployment", "ConfigMap", "Secret"} {
			if count[kind] != gateways {
				t.Errorf("%d writes of a %s, want %d", count[kind], kind, gateways)
			}
		}
	})
}

// Namespaces take turns: however many Gateways another namespace has and creates, a write waits for a few others only.
func TestWritesOfNamespacesTakeTurns(t *testing.T) {
	turns := newWriteTurns()
	add := func(namespace string, i int, urgent bool) translate.ObjectRef {
		ref := translate.ObjectRef{Kind: translate.KindGateway}
		ref.Namespace, ref.Name = namespace, fmt.Sprint("g", i)
		if urgent {
			turns.setUrgent(ref)
		}
		if _, known := turns.queued[ref]; known {
			turns.Touch(ref)
		} else {
			turns.Push(ref)
		}
		return ref
	}
	for i := range 1000 {
		add("flood", i, i%2 == 0)
	}
	add("quiet", 1, false)
	last := add("quiet", 2, false)
	add("quiet", 2, true) // the Service of the Gateway was deleted
	pop := func() translate.ObjectRef {
		ref := turns.Pop()
		turns.done(ref)
		return ref
	}
	for i, want := range []string{"flood/g0", "quiet/g2", "flood/g2", "quiet/g1", "flood/g4"} {
		if got := pop(); got.NamespacedName.String() != want {
			t.Errorf("write %d is for %s, want %s", i, got.NamespacedName, want)
		}
	}
	add("quiet", 2, false)
	if pop(); pop() != last {
		t.Error("the namespace has lost its turn")
	}
	for turns.Len() > 0 {
		pop()
	}
	if len(turns.queues)+len(turns.order)+len(turns.urgent)+len(turns.writing)+turns.busy > 0 {
		t.Errorf("an empty queue has %d namespaces, %d turns, %d urgent objects and %d writes",
			len(turns.queues), len(turns.order), len(turns.urgent), turns.busy)
	}
}

// Writes that take long keep only some of the workers busy, for example statuses that the API server does not answer in
// time. A write of another namespace begins at once, and all objects are written in the end.
func TestSlowWritesOfANamespaceDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairWrites()
		refOf := func(namespace string, i int) translate.ObjectRef {
			ref := translate.ObjectRef{Kind: translate.KindRoute}
			ref.Namespace, ref.Name = namespace, fmt.Sprint(i)
			return ref
		}
		const slow, others = 5 * time.Second, 4
		var mu sync.Mutex
		begun, written := map[string]time.Time{}, map[string]int{}
		var group sync.WaitGroup
		for range workers {
			group.Go(func() {
				for {
					ref, down := queue.Get()
					if down {
						return
					}
					mu.Lock()
					begun[ref.Namespace] = time.Now()
					mu.Unlock()
					if strings.HasPrefix(ref.Namespace, "slow") {
						time.Sleep(slow)
					}
					mu.Lock()
					written[ref.Namespace]++
					mu.Unlock()
					queue.Done(ref)
				}
			})
		}
		for i := range 10 * workers {
			queue.Add(refOf("slow", i))
			queue.Add(refOf("slow-too", i))
		}
		synctest.Wait()
		for i := range others {
			start, namespace := time.Now(), fmt.Sprint("other-", i)
			queue.Add(refOf(namespace, 0))
			synctest.Wait()
			mu.Lock()
			if waited := begun[namespace].Sub(start); written[namespace] != 1 || waited > 0 {
				t.Errorf("the write of %s has waited for %s, and is done: %d", namespace, waited, written[namespace])
			}
			mu.Unlock()
		}
		time.Sleep(slow * 10 * workers)
		synctest.Wait()
		queue.ShutDown()
		group.Wait()
		if written["slow"] != 10*workers || written["slow-too"] != 10*workers {
			t.Errorf("written %v", written)
		}
	})
}

// The first retry of slow writes is made soon, because other clients may have occupied the API server. Later retries
// leave the API server most of the time.
func TestRetriesOfSlowWritesPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		start := time.Now()
		var begun []time.Duration
		e.refuse = func(runtime.ApplyConfiguration) error {
			e.writer.mu.Lock()
			begun = append(begun, time.Since(start))
			e.writer.mu.Unlock()
			time.Sleep(callTime)
			return context.DeadlineExceeded
		}
		defer e.leads()()
		e.wantsOf("g", 1)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		busy := func(from, to time.Duration) (share float64) {
			for _, at := range begun {
				if at >= from && at < to {
					share += callTime.Seconds() / (to - from).Seconds()
				}
			}
			return share
		}
		if first := busy(0, 20*time.Second); first < 0.9 {
			t.Errorf("writes take %.0f %% of the first 20 s, so the first retry does not come soon", 100*first)
		}
		if early, late := busy(0, 2*time.Minute), busy(5*time.Minute, 10*time.Minute); early > 0.5 || late > 0.25 || late == 0 {
			t.Errorf("retries occupy the API server for %.0f %% of the first two minutes and %.0f %% of the last five", 100*early, 100*late)
		}
	})
}

// A namespace that is the only one with writes has half of the workers.
func TestOneNamespaceWritesWithHalfOfTheWorkers(t *testing.T) {
	turns := newWriteTurns()
	for i := range 2 * workers {
		ref := translate.ObjectRef{Kind: translate.KindRoute}
		ref.Namespace, ref.Name = "media", fmt.Sprint(i)
		turns.Push(ref)
	}
	taken := 0
	var last translate.ObjectRef
	for ; turns.Len() > 0; taken++ {
		last = turns.Pop()
	}
	if taken != workers/2 {
		t.Errorf("%d writes in progress, want %d", taken, workers/2)
	}
	if turns.done(last); turns.Len() == 0 {
		t.Error("a completed write makes room for none")
	}
}

// adds records the objects that are added to a work queue.
type adds struct {
	workqueue.TypedRateLimitingInterface[translate.ObjectRef]
	refs []translate.ObjectRef
}

func (a *adds) Add(ref translate.ObjectRef) { a.refs = append(a.refs, ref) }

// Writes begin while all objects are added to the queue, so the first steps of Gateways are added first.
func TestFirstStepsAreQueuedFirst(t *testing.T) {
	recorded, all := &adds{}, map[translate.ObjectRef]desired{}
	for i := range 100 {
		for _, kind := range []string{translate.KindGateway, translate.KindRoute} {
			ref := translate.ObjectRef{Kind: kind}
			ref.Namespace, ref.Name = "media", fmt.Sprint(i)
			all[ref] = desired{ours: true, complete: true, uid: "1"}
		}
	}
	q := writeQueue{
		fairWrites: &fairWrites{TypedRateLimitingInterface: recorded, turns: newWriteTurns()}, progress: map[translate.ObjectRef]progress{},
	}
	q.enqueueAll(all)
	for i, ref := range recorded.refs {
		if first := i < len(all)/2; (ref.Kind == translate.KindGateway) != first {
			t.Fatalf("the object %d of %d is %v", i, len(recorded.refs), ref)
		}
	}
	if len(recorded.refs) != len(all) {
		t.Errorf("%d of %d objects are queued", len(recorded.refs), len(all))
	}
}

// Changed endpoints are written to the standby Secret once, some minutes later, also by a new leader and with other
// writes in the queue; all other changes are written at once.
func TestEndpointsInStandbySecretsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		var written []time.Time
		e.refuse = func(o runtime.ApplyConfiguration) error {
			if o.(interface{ GetKind() string }).GetKind() == "Secret" {
				written = append(written, time.Now())
			}
			return nil
		}
		wants := func(endpoint, realm string) {
			c := published()
			c.Auth.Realm = realm
			c.Clusters = []config.Cluster{{Name: "media", Type: "STATIC", Endpoints: []string{endpoint}}}
			e.wants(desired{complete: true, objects: e.objects(deployment()), standby: &c})
		}
		secret := func() *corev1.Secret {
			s := &corev1.Secret{}
			if err := e.client.Get(
				t.Context(),
				types.NamespacedName{Namespace: gatewayKey.Namespace, Name: manifest.StandbyName(gatewayKey.Name)}, s,
			); err != nil {
				t.Fatal(err)
			}
			return s
		}
		wrote := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if len(written) != want {
				t.Errorf("%s: %d writes, want %d", when, len(written), want)
			}
			written = nil
		}
		e.writer.setStandbyKeys([][]byte{[]byte("old")})
		ends := e.leads()
		wants("10.0.0.1", "a")
		time.Sleep(time.Minute)
		wrote("the first", 1)
		ends()

		wants("10.0.0.2", "a") // this process is not the leader
		ends = e.leads()
		for range 10 {
			time.Sleep(standbyPause / 20)
			ownedHandler{e.writer}.OnUpdate(nil, secret())
		}
		wrote("soon after a new leader has begun", 0)
		wants("10.0.0.3", "a")
		time.Sleep(standbyPause / 2)
		wrote("within the pause", 1)
		ownedHandler{e.writer}.OnUpdate(nil, secret()) // the watch delivers the write of this process
		time.Sleep(2 * standbyPause)
		wrote("afterwards", 0)
		if old, _, err := config.Unpack(secret().Data[manifest.StandbyDataKey]); err != nil ||
			old.Clusters[0].Endpoints[0] != "10.0.0.3" {
			t.Errorf("the Secret has %v, %v", old.Clusters, err)
		}
		wants("10.0.0.4", "a")
		time.Sleep(time.Second)
		wrote("other endpoints", 0)
		wants("10.0.0.4", "b")
		time.Sleep(time.Second)
		wrote("another realm", 1)
		time.Sleep(standbyPause)
		wrote("with the endpoints of then", 0)

		changed := secret()
		changed.Data[manifest.StandbyDataKey] = []byte("changed")
		if err := e.client.Update(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		ownedHandler{e.writer}.OnUpdate(nil, changed)
		time.Sleep(time.Second)
		wrote("a modified Secret", 1)

		wants("10.0.0.5", "b")
		time.Sleep(time.Second)
		wrote("other endpoints again", 0)
		e.wants(desired{}) // the next operator publishes the config in the Secret
		time.Sleep(time.Second)
		wrote("the config is frozen", 1)

		revoked := *e.writer.desired[e.unit].standby
		revokes := func(when, user string) {
			t.Helper()
			revoked.Auth.Revocations = []credential.Revocation{{User: user, Until: 1_900_000_000}}
			c := revoked
			e.wants(desired{standby: &c})
			time.Sleep(time.Second)
			wrote(when, 1)
			if got, _, err := config.Unpack(secret().Data[manifest.StandbyDataKey]); err != nil || got.Revision() != c.Revision() {
				t.Errorf("%s: the Secret has %v, %v", when, got, err)
			}
		}
		revokes("a revocation while the config is frozen", "ada")
		delete(e.writer.desired, e.unit) // after a restart there is no desired state
		revokes("a revocation while the config is restored", "bob")

		e.writer.setStandbyKeys([][]byte{[]byte("new"), []byte("old")})
		time.Sleep(standbyPause)
		wrote("another key", 1)
		e.writer.setStandbyKeys([][]byte{[]byte("new")})
		time.Sleep(standbyPause)
		wrote("only the key of new Secrets is left", 0)

		for _, endpoint := range []string{"10.0.0.6", "10.0.0.7"} {
			wants(endpoint, "b")
			time.Sleep(time.Second)
		}
		ends()
		e.writer.set(e.unit, desired{ours: true, uid: "created again"})
		if wait := e.writer.queue.standbyWait(e.unit); wait != 0 {
			t.Errorf("a Gateway without a config is to be written again after %s", wait)
		}
	})
}
