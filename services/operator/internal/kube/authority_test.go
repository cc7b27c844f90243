package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// replicas are the authorities of several replicas in one namespace, with a fake clock.
type replicas struct {
	*testing.T
	client client.Client
	now    time.Time
}

func newReplicas(t *testing.T) *replicas {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return &replicas{
		T: t, client: clientfake.NewClientBuilder().WithScheme(s).Build(),
		now: time.Date(2031, 5, 4, 3, 2, 1, 0, time.UTC),
	}
}

func (r *replicas) add() *authority {
	id := &trust.Identity{Names: []string{"discovery"}}
	a := newAuthority("stunner-system", r.client, id, newInbox(), newMeters(), slog.New(slog.DiscardHandler))
	a.now = func() time.Time { return r.now }
	return a
}

// step calls step on the replicas until nothing changes, and returns the bundle that all of them have sent.
func (r *replicas) step(all ...*authority) string {
	r.Helper()
	for range 3 {
		for _, a := range all {
			if err := a.step(r.Context()); err != nil {
				r.Fatal(err)
			}
		}
	}
	for _, a := range all[1:] {
		if a.sent != all[0].sent {
			r.Errorf("one replica has sent\n%s\nanother\n%s", all[0].sent, a.sent)
		}
	}
	return all[0].sent
}

// stored returns the Secret, empty if it does not exist.
func (r *replicas) stored() *corev1.Secret {
	r.Helper()
	s := &corev1.Secret{}
	if err := r.client.Get(
		r.Context(), client.ObjectKey{Namespace: "stunner-system", Name: AuthorityName}, s,
	); client.IgnoreNotFound(err) != nil {
		r.Fatal(err)
	}
	return s
}

func TestTheLeaderKeepsTheCA(t *testing.T) {
	r := newReplicas(t)
	leader, other := r.add(), r.add()
	if r.step(leader, other) != "" || r.stored().Name != "" {
		t.Fatal("a replica that is not the leader has created a CA")
	}
	leader.leading.Store(true)
	first := r.step(leader, other)
	if first == "" || string(r.stored().Data[trust.CertificatesKey]) != first {
		t.Fatalf("sent %q, stored %q", first, r.stored().Data[trust.CertificatesKey])
	}
	shown := &corev1.ConfigMap{}
	if err := r.client.Get(
		t.Context(), client.ObjectKey{Namespace: "stunner-system", Name: AuthorityName}, shown,
	); err != nil || shown.Data[trust.CertificatesKey] != first {
		t.Errorf("shown %q: %v", shown.Data, err)
	}
	if told := other.inbox.drain(); len(told) != 1 || told[0].object.(*resource.Trust).Bundle != first {
		t.Errorf("the loop receives %v", told)
	}
	version := r.stored().ResourceVersion
	if r.step(leader, other); r.stored().ResourceVersion != version || len(other.inbox.drain()) != 0 {
		t.Error("an unchanged CA is written, or sent, again")
	}
	key := string(r.stored().Data[trust.PrivateKey])
	for name, harm := range map[string]func() error{
		"deleted": func() error { return r.client.Delete(t.Context(), r.stored()) },
		"damaged": func() error {
			s := r.stored()
			s.Data[trust.PrivateKey] = []byte("nonsense")
			return r.client.Update(t.Context(), s)
		},
		"emptied": func() error {
			s := r.stored()
			s.Data = nil
			return r.client.Update(t.Context(), s)
		},
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		if r.step(other); other.sent != first {
			t.Errorf("%s: a replica has lost what it knew", name)
		}
		if r.step(leader, other) != first || string(r.stored().Data[trust.PrivateKey]) != key {
			t.Errorf("%s: the Secret is not what it was", name)
		}
	}
	r.now = r.now.Add(trust.Lifetime * 2 / 3)
	leader.leading.Store(false)
	if r.step(other); other.sent != first {
		t.Error("a replica sends a CA that is not in the Secret")
	}
	leader.leading.Store(true)
	if both := r.step(leader, other); len(both) < 2*len(first)-10 {
		t.Errorf("after two thirds of its life the CA has no successor:\n%s", both)
	}
	// A process without a CA of its own trusts the certificates that remain in a damaged Secret.
	s := r.stored()
	certificates := string(s.Data[trust.CertificatesKey])
	s.Data = map[string][]byte{trust.CertificatesKey: s.Data[trust.CertificatesKey]}
	if err := r.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	restarted := r.add()
	restarted.leading.Store(true)
	if all := r.step(restarted); len(all) <= len(certificates) || all[:len(certificates)] != certificates {
		t.Errorf("after a restart\n%s\nare sent, which should begin with\n%s", all, certificates)
	}
}

// A replica without a CA is not ready and names the missing Secret.
func TestReplicaWithoutACAIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(t)
		a := r.add()
		var notReadyReason atomic.Pointer[string]
		done := make(chan error, 1)
		go func() { done <- a.await(t.Context(), &notReadyReason) }()
		r.step(a)
		synctest.Wait()
		if len(done) > 0 || notReadyReason.Load() == nil ||
			!strings.Contains(*notReadyReason.Load(), "stunner-system/"+AuthorityName) {
			t.Fatal("it is ready without a CA, or does not name the Secret")
		}
		a.leading.Store(true)
		r.step(a)
		if err := <-done; err != nil || notReadyReason.Load() != nil {
			t.Errorf("%v", err)
		}
	})
}

// If the API server is unavailable at the start, the authority retries and config discovery is served meanwhile.
func TestAuthorityRetriesUntilTheAPIServerIsAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := newReplicas(t)
		a, server := r.add(), &growing{failure: errors.New("connection refused")}
		s, err := newScheme()
		if err := errors.Join(err, metav1.AddMetaToScheme(s)); err != nil { // the informers need all kinds
			t.Fatal(err)
		}
		w := watcher{
			cache: &informertest.FakeInformers{Scheme: s}, scheme: s, mapper: server,
			notReadyReason: &atomic.Pointer[string]{}, log: a.log,
		}
		done := make(chan error, 1)
		go func() { done <- a.watch(ctx, w, []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}) }()
		time.Sleep(10 * kindRetry)
		synctest.Wait()
		if len(done) > 0 {
			t.Fatalf("gives up: %v", <-done)
		}
		server.learn()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		server.mu.Lock()
		server.failure = errors.New("connection refused")
		server.mu.Unlock()
		go func() { done <- a.watch(ctx, w, []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the context: %v", err)
		}
	})
}
