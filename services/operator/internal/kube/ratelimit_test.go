package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// pacedLoop returns a loop with Gateways, each with a route to the Service of its name.
func pacedLoop(gateways ...string) *loop {
	l := newLoop(
		translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), newMeters(), &tasks{},
		slog.New(slog.DiscardHandler),
	)
	l.secrets, l.writer = newSecretFetcher(nil, l.inbox, l.intake, l.published.log), newWriter(
		nil, nil, nil, l.inbox, l.meters, l.tasks, l.published.log,
	)
	l.published.previous = func(types.NamespacedName) []string { return nil }
	l.published.standby = func(types.NamespacedName) *corev1.Secret { return nil }
	namespace, port := gwapiv1.Namespace("media"), gwapiv1.PortNumber(7000)
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "media"}}
	class.Spec.ControllerName = translate.DefaultControllerName
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{
		Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "media", Namespace: &namespace,
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "media", Name: name} }
	gc := &stunnerv1.GatewayConfig{ObjectMeta: named("media")}
	gc.Spec.AuthType, gc.Spec.UserName, gc.Spec.Password = "plaintext", stunnerv1.InlineSecret(
		"ann",
	), stunnerv1.InlineSecret("correct-horse")
	objects := []resource.Object{class, gc, &stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	for _, name := range gateways {
		gw := &gwapiv1.Gateway{ObjectMeta: named(name)}
		gw.Spec.GatewayClassName = "media"
		gw.Spec.Listeners = []gwapiv1.Listener{{Name: "udp", Protocol: "TURN-UDP", Port: 3478}}
		route := &stunnerv1.UDPRoute{ObjectMeta: named(name)}
		route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(name)}}
		route.Spec.Rules = []stunnerv1.UDPRouteRule{
			{BackendRefs: []stunnerv1.BackendRef{{Name: gwapiv1.ObjectName(name), Port: &port}}},
		}
		objects = append(
			objects, gw, route,
			&corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}},
		)
	}
	for _, o := range objects {
		l.inbox.put(objectChange{object: o})
	}
	return l
}

// moved returns a change of the endpoints of a Gateway.
func moved(gateway string, turn int) objectChange {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: gateway}, AddressType: discoveryv1.AddressTypeIPv4,
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: gateway}
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.0.%d.%d", turn>>8, turn&255)}}}
	return objectChange{object: s}
}

// A Gateway whose translation takes long is translated at once after a quiet time, and then at a rate that takes 5 % of
// a core. Another Gateway is not delayed, and the last change is published soon.
func TestAWideGatewayRestsAndASmallOneDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost, seconds = 10 * time.Millisecond, 20
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l, ts := pacedLoop("wide", "small"), &tasks{}
		defer l.secrets.queue.ShutDown()
		var wide []time.Time
		l.since = func(u translate.ObjectRef, begun time.Time) time.Duration {
			if u.Kind != translate.KindGateway || u.Name != "wide" {
				return time.Millisecond
			}
			wide = append(wide, begun)
			return cost
		}
		go ts.do("translation", func(t *task) { l.run(ctx, t) })
		// The loop is idle after Wait. The lock makes the writes of the loop visible to at.
		look := func(at func()) {
			synctest.Wait()
			l.inbox.mu.Lock()
			defer l.inbox.mu.Unlock()
			at()
		}
		translations := func() (n int) {
			look(func() { n = len(wide) })
			return n
		}
		serves := func(gateway string, turn int) bool {
			var c *config.Config
			look(func() { c = l.published.current(types.NamespacedName{Namespace: "media", Name: gateway}) })
			return c != nil && len(c.Clusters) == 1 &&
				slices.Contains(c.Clusters[0].Endpoints, fmt.Sprintf("10.0.%d.%d:<7000-7000>", turn>>8, turn&255))
		}
		l.inbox.put(moved("wide", 0))
		if !serves("wide", 0) || !l.ready.Load() {
			t.Fatal("the first change is not in the config at once")
		}
		time.Sleep(time.Second)
		turn, before, begun := 0, translations(), time.Now()
		for time.Since(begun) < seconds*time.Second {
			turn++
			l.inbox.put(moved("wide", turn))
			synctest.Wait()
			l.inbox.put(moved("small", turn))
			if !serves("small", turn) {
				t.Fatalf("turn %d: the small Gateway waits", turn)
			}
			if turn == 1 && !serves("wide", turn) {
				t.Error("the first change after a quiet time is not in the config at once")
			}
			time.Sleep(50 * time.Millisecond)
		}
		took := translations() - before
		if used := time.Duration(took) * cost; used > seconds*time.Second*54/1000 || used < seconds*time.Second*4/100 {
			t.Errorf("%d translations of the wide Gateway within %d s took %v", took, seconds, used)
		}
		time.Sleep(min(discovery.Cooldown(cost, maxCoreShare), maxDelay))
		if !serves("wide", turn) {
			t.Error("the last change of the wide Gateway is not in its config")
		}
		l.inbox.put(moved("wide", turn+1))
		l.inbox.put(objectChange{
			object: &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "wide"}}, deleted: true,
		})
		look(func() {
			if l.published.current(types.NamespacedName{Namespace: "media", Name: "wide"}) != nil ||
				len(l.limiter.states)+len(l.limiter.delayed) != 0 {
				t.Errorf("a Gateway that is gone is served until its rest is over: %v", l.limiter)
			}
		})
		cancel()
		synctest.Wait()
	})
}

// A single translation that took long, because the process was suspended, does not limit the rate. Short translations
// do not limit it either.
func TestOneSlowTranslationIsNotRateLimited(t *testing.T) {
	u, now := translate.ObjectRef{Kind: translate.KindGateway}, time.Unix(1_000, 0)
	for _, c := range []struct {
		name string
		took []time.Duration
		want time.Duration
	}{
		{"small", []time.Duration{time.Millisecond, time.Millisecond}, 0},
		{"one stall", []time.Duration{time.Millisecond, time.Second}, 0},
		{"a stall among wide ones", []time.Duration{10 * time.Millisecond, time.Second}, 190 * time.Millisecond},
		{"wide", []time.Duration{time.Second, 10 * time.Millisecond}, 190 * time.Millisecond},
		{"wide, then small", []time.Duration{10 * time.Millisecond, 10 * time.Millisecond, time.Millisecond}, 0},
		{"as slow as can be", []time.Duration{time.Minute, time.Minute}, maxDelay},
	} {
		p := newRateLimiter()
		for _, took := range c.took {
			p.record(u, took, now)
		}
		if p.allows(u, now) != (c.want == 0) || !p.allows(u, now.Add(c.want)) {
			t.Errorf("%s: rests %v, want %v", c.name, p.states[u].next.Sub(now), c.want)
		}
		p.forget(u)
	}
}
