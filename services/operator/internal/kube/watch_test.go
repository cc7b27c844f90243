package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
)

// growing is an API server that serves more kinds over time.
type growing struct {
	meta.RESTMapper
	mu      sync.Mutex
	lacks   map[schema.GroupVersionKind]bool
	failure error
}

func (g *growing) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.failure != nil:
		return nil, g.failure
	case g.lacks[kind.WithVersion(versions[0])]:
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return &meta.RESTMapping{}, nil
}

func (g *growing) learn(kinds ...schema.GroupVersionKind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = nil
	for _, k := range kinds {
		delete(g.lacks, k)
	}
}

// The start waits for required kinds and for the API server. An optional kind is watched when it is served, in the
// served version.
func TestWatchWaitsForRequiredKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := newScheme()
		if err := errors.Join(err, metav1.AddMetaToScheme(s)); err != nil { // the informers need all kinds
			t.Fatal(err)
		}
		gateways := schema.GroupVersion(gwapiv1.GroupVersion).WithKind("Gateway")
		routes, alphaRoutes := schema.GroupVersion(gwapiv1.GroupVersion).WithKind("UDPRoute"), schema.GroupVersion(
			gwapiv1a2.GroupVersion,
		).WithKind("UDPRoute")
		server := &growing{
			failure: errors.New("connection refused"),
			lacks:   map[schema.GroupVersionKind]bool{gateways: true, routes: true, alphaRoutes: true},
		}
		in, informers, notReadyReason := newInbox(), &informertest.FakeInformers{Scheme: s}, &atomic.Pointer[string]{}
		w := watcher{
			cache: informers, scheme: s, mapper: server, notReadyReason: notReadyReason,
			log: slog.New(slog.DiscardHandler),
		}
		done := make(chan error, 1)
		go func() { done <- w.watchAll(ctx, in, newInbox()) }()
		waits := func(want string) {
			t.Helper()
			time.Sleep(2 * kindRetry)
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("done without %s: %v", want, err)
			default:
			}
			if why := notReadyReason.Load(); why == nil || !strings.Contains(*why, want) {
				t.Errorf("it is not said that %s is missing", want)
			}
		}
		waits("connection refused")
		server.learn()
		waits(
			"watch Gateway: no matches for kind \"Gateway\" in version \"gateway.networking.k8s.io/v1\": install the CustomResourceDefinitions",
		)
		server.learn(gateways)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if notReadyReason.Load() != nil {
			t.Error("something is still missing")
		}
		in.drain()
		server.learn(alphaRoutes)
		time.Sleep(2 * kindRetry)
		synctest.Wait()
		informer, err := informers.FakeInformerFor(ctx, &gwapiv1a2.UDPRoute{})
		if err != nil {
			t.Fatal(err)
		}
		informer.Add(&gwapiv1a2.UDPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "calls"}})
		if told := in.drain(); len(told) != 1 || told[0].object.GetName() != "calls" {
			t.Errorf("the loop receives %v", told)
		}
	})
}

// The start ends with its context.
func TestWatchEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s, err := newScheme()
		if err := errors.Join(err, metav1.AddMetaToScheme(s)); err != nil { // the informers need all kinds
			t.Fatal(err)
		}
		w := watcher{
			cache: &informertest.FakeInformers{Scheme: s}, scheme: s,
			mapper:         &growing{failure: errors.New("connection refused")},
			notReadyReason: &atomic.Pointer[string]{}, log: slog.New(slog.DiscardHandler),
		}
		if err := w.watchAll(ctx, newInbox(), newInbox()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
