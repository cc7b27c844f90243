package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// replicas are authorities of one namespace, with a clock.
type replicas struct {
	*testing.T
	client client.Client
	now    time.Time
}

func newReplicas(t *testing.T) *replicas {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	return &replicas{T: t, client: clientfake.NewClientBuilder().WithScheme(s).Build(), now: time.Date(2031, 5, 4, 3, 2, 1, 0, time.UTC)}
}

func (r *replicas) add() *authority {
	id := &trust.Identity{Names: []string{"discovery"}}
	a := newAuthority("stunner-system", r.client, id, newInbox(), newMeters(), slog.New(slog.DiscardHandler))
	a.now = func() time.Time { return r.now }
	return a
}

// step lets replicas look, again and again until nothing changes any more, and returns the certificates that all of them tell their dataplanes.
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
		if a.told != all[0].told {
			r.Errorf("one replica tells\n%s\nanother\n%s", all[0].told, a.told)
		}
	}
	return all[0].told
}

// stored is the Secret, empty when there is none.
func (r *replicas) stored() *corev1.Secret {
	r.Helper()
	s := &corev1.Secret{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "stunner-system", Name: AuthorityName}, s); client.IgnoreNotFound(err) != nil {
		r.Fatal(err)
	}
	return s
}

func TestTheLeaderKeepsTheCA(t *testing.T) {
	r := newReplicas(t)
	leader, other := r.add(), r.add()
	if r.step(leader, other) != "" || r.stored().Name != "" {
		t.Fatal("somebody who does not lead has made a CA")
	}
	leader.leading.Store(true)
	first := r.step(leader, other)
	if first == "" || string(r.stored().Data[trust.CertificatesKey]) != first {
		t.Fatalf("told %q, stored %q", first, r.stored().Data[trust.CertificatesKey])
	}
	shown := &corev1.ConfigMap{}
	if err := r.client.Get(t.Context(), client.ObjectKey{Namespace: "stunner-system", Name: AuthorityName}, shown); err != nil || shown.Data[trust.CertificatesKey] != first {
		t.Errorf("shown %q: %v", shown.Data, err)
	}
	if told := other.inbox.drain(); len(told) != 1 || told[0].object.(*resource.Trust).Bundle != first {
		t.Errorf("the loop is told %v", told)
	}
	version := r.stored().ResourceVersion
	if r.step(leader, other); r.stored().ResourceVersion != version || len(other.inbox.drain()) != 0 {
		t.Error("what is as it should be is written, or told, again")
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
		if r.step(other); other.told != first {
			t.Errorf("%s: a replica has lost what it knew", name)
		}
		if r.step(leader, other) != first || string(r.stored().Data[trust.PrivateKey]) != key {
			t.Errorf("%s: the Secret is not what it was", name)
		}
	}
	r.now = r.now.Add(trust.Lifetime * 2 / 3)
	leader.leading.Store(false)
	if r.step(other); other.told != first {
		t.Error("who does not lead tells of a CA that no Secret holds")
	}
	leader.leading.Store(true)
	if both := r.step(leader, other); len(both) < 2*len(first)-10 {
		t.Errorf("after two thirds of its life the CA has no successor:\n%s", both)
	}
	// What is left of a damaged Secret is believed still by a process that knows nothing else.
	s := r.stored()
	certificates := string(s.Data[trust.CertificatesKey])
	s.Data = map[string][]byte{trust.CertificatesKey: s.Data[trust.CertificatesKey]}
	if err := r.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	restarted := r.add()
	restarted.leading.Store(true)
	if all := r.step(restarted); len(all) <= len(certificates) || all[:len(certificates)] != certificates {
		t.Errorf("after a restart\n%s\nare told, which should begin with\n%s", all, certificates)
	}
}

// K-01: a reader whose token cannot be reviewed now is asked to come back, and one whose token is bad is refused.
func TestAnAPIServerThatIsAwayRefusesNobody(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "media", Name: "relay", UID: "7d3e",
		Labels: map[string]string{manifest.AppLabel: manifest.AppValue, resource.RelatedGatewayName: "door", resource.RelatedGatewayNamespace: "media"},
	}, Spec: corev1.PodSpec{NodeName: "north"}}
	away := apierrors.NewServiceUnavailable("away")
	for name, c := range map[string]struct {
		review, read error
		uid          string
		audience     string
		want         discovery.Grant
		undecided    bool
		refused      bool
	}{
		"good":                   {uid: "7d3e", audience: manifest.DiscoveryAudience, want: discovery.Grant{ID: "media/door", Pod: "relay", Node: "north"}},
		"another pod, same name": {uid: "8f00", audience: manifest.DiscoveryAudience},
		"another audience":       {uid: "7d3e", audience: "other", refused: true},
		"no review":              {review: away, undecided: true},
		"no pod to be had":       {uid: "7d3e", audience: manifest.DiscoveryAudience, read: away, undecided: true},
		"pod gone":               {uid: "7d3e", audience: manifest.DiscoveryAudience, read: apierrors.NewNotFound(corev1.Resource("pods"), "relay"), refused: true},
	} {
		clients := fake.NewClientset(pod)
		clients.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{c.audience},
				User: authenticationv1.UserInfo{Username: accountPrefix + "media:default", Extra: map[string]authenticationv1.ExtraValue{podName: {"relay"}, podUID: {c.uid}}},
			}}, c.review
		})
		if c.read != nil {
			clients.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.read })
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer token")
		grant, err := reviewer{clients: clients}.authorize(r)
		if grant != c.want || errors.Is(err, discovery.ErrUndecided) != c.undecided || (err != nil) != (c.undecided || c.refused) {
			t.Errorf("%s: %+v, %v", name, grant, err)
		}
	}
}

// A process whose dataplanes could not know it is not ready, and says what is missing.
func TestNobodyIsServedBeforeThereIsACA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(t)
		a := r.add()
		var lack atomic.Pointer[string]
		done := make(chan error, 1)
		go func() { done <- a.await(t.Context(), &lack) }()
		r.step(a)
		synctest.Wait()
		if len(done) > 0 || lack.Load() == nil || !strings.Contains(*lack.Load(), "stunner-system/"+AuthorityName) {
			t.Fatal("it goes on without a CA, or does not say what is missing")
		}
		a.leading.Store(true)
		r.step(a)
		if err := <-done; err != nil || lack.Load() != nil {
			t.Errorf("%v", err)
		}
	})
}

// An API server that cannot say what kinds it has when the operator starts is waited for: config discovery goes on meanwhile.
func TestAnAPIServerThatIsAwayAtTheStartIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := newReplicas(t)
		a, server := r.add(), &growing{failure: errors.New("connection refused")}
		s, err := scheme()
		if err := errors.Join(err, metav1.AddMetaToScheme(s)); err != nil { // the informers ask it for all kinds
			t.Fatal(err)
		}
		w := watcher{cache: &informertest.FakeInformers{Scheme: s}, scheme: s, mapper: server, lack: &atomic.Pointer[string]{}, log: a.log}
		done := make(chan error, 1)
		go func() { done <- a.follow(ctx, w, []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}) }()
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
		go func() { done <- a.follow(ctx, w, []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("told to end, it says %v", err)
		}
	})
}
