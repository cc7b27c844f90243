package kube

import (
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// plainEndpoints is the number of endpoints of a Gateway of newPlainLoop. plainGateways is the number of Gateways of a
// namespace.
const plainEndpoints, plainGateways = 50, 50

// plainObjects returns a Gateway with its route, Service and endpoints.
func plainObjects(gateway int) []client.Object {
	meta := func() metav1.ObjectMeta {
		name := fmt.Sprintf("gw-%d", gateway)
		return metav1.ObjectMeta{
			Namespace: fmt.Sprintf("plain-%d", gateway/plainGateways), Name: name, UID: types.UID(name), Generation: 1,
			ResourceVersion: "1",
		}
	}
	gw := &gwapiv1.Gateway{ObjectMeta: meta(), Spec: gwapiv1.GatewaySpec{
		GatewayClassName: "plain",
		Listeners:        []gwapiv1.Listener{{Name: "udp", Protocol: "TURN-UDP", Port: 3478}},
	}}
	route := &stunnerv1.UDPRoute{ObjectMeta: meta()}
	route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(gw.Name)}}
	route.Spec.Rules = []stunnerv1.UDPRouteRule{
		{BackendRefs: []stunnerv1.BackendRef{{Name: gwapiv1.ObjectName("media-" + gw.Name)}}},
	}
	service := &corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ClusterIP: "None"}}
	service.Name = "media-" + gw.Name
	return []client.Object{gw, route, service, plainSlice(gateway, 0)}
}

// plainSlice returns the endpoints of a Gateway. The first one differs in each turn.
func plainSlice(gateway, turn int) client.Object {
	service := fmt.Sprintf("media-gw-%d", gateway)
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("plain-%d", gateway/plainGateways), Name: service,
		Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	for e := range plainEndpoints {
		address := fmt.Sprintf("10.%d.%d.%d", gateway>>8&255, gateway&255, e)
		if e == 0 && turn > 0 {
			address = fmt.Sprintf("172.16.%d.%d", turn>>8&255, turn&255)
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("media-%d-6f7d9c5b8d-x%04d", gateway, e)},
		})
	}
	return s
}

// newPlainLoop returns a loop that has translated and published many Gateways, and a writer that does not lead.
func newPlainLoop(b *testing.B, gateways int) *loop {
	b.Helper()
	s, err := newScheme()
	if err != nil {
		b.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(s).Build()
	m, log := newMeters(), slog.New(slog.DiscardHandler)
	l := newLoop(translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), m, &tasks{}, log)
	l.secrets, l.writer = newSecretFetcher(c, l.inbox, l.intake, log), newWriter(c, c, s, l.inbox, m, l.tasks, log)
	l.published.previous = func(types.NamespacedName) []string { return nil }
	l.published.standby = func(types.NamespacedName) *corev1.Secret { return nil }
	const home = gwapiv1.Namespace("plain-0")
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}
	class.Spec.ControllerName = translate.DefaultControllerName
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{
		Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "plain", Namespace: new(home),
	}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: string(home), Name: "plain"}}
	gc.Spec.AuthRef = &gwapiv1.SecretObjectReference{Name: "plain"}
	secret := &corev1.Secret{ObjectMeta: gc.ObjectMeta, Data: map[string][]byte{
		"type": []byte("static"), "username": []byte("user"), "password": []byte("pass"),
	}}
	secret.ResourceVersion = "1"
	l.secrets.observe(resource.KeyOf(secret), secret.ResourceVersion)
	objects := []client.Object{class, gc, secret, &stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	for g := range gateways {
		objects = append(objects, plainObjects(g)...)
	}
	var changes []objectChange
	for _, o := range objects {
		if o != client.Object(secret) {
			if _, err := trimForCache(o); err != nil {
				b.Fatal(err)
			}
		}
		changes = append(changes, objectChange{object: o})
	}
	l.applyAll(changes, &task{})
	if len(l.published.configs) != gateways {
		b.Fatalf("%d of %d Gateways have a config", len(l.published.configs), gateways)
	}
	return l
}

// BenchmarkGateways measures a process with many Gateways of 50 endpoints each: the CPU time to publish all of them, a
// change of one endpoint until the config is published, and the memory. The memory does not include connections and the
// cache of generated objects.
func BenchmarkGateways(b *testing.B) {
	live := func() uint64 {
		var m goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, gateways := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("gateways=%d", gateways), func(b *testing.B) {
			before, begun := live(), processorTime(b)
			l := newPlainLoop(b, gateways)
			started := processorTime(b) - begun
			heap := live() - before
			var latencies []time.Duration
			b.ReportAllocs()
			for turn := 1; b.Loop(); turn++ {
				gateway := turn * 7919 % gateways
				change := []objectChange{{object: plainSlice(gateway, turn)}}
				_, old, _ := l.published.server.Published(fmt.Sprintf("plain-%d/gw-%d", gateway/plainGateways, gateway))
				begun := time.Now()
				l.applyAll(change, &task{})
				latencies = append(latencies, time.Since(begun))
				_, now, _ := l.published.server.Published(fmt.Sprintf("plain-%d/gw-%d", gateway/plainGateways, gateway))
				if now == old {
					b.Fatalf("change %d is not published", turn)
				}
			}
			slices.Sort(latencies)
			b.ReportMetric(started.Seconds(), "cpu-s-to-publish-all")
			b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "µs-median")
			b.ReportMetric(float64(heap)/float64(gateways), "B/gateway")
			b.ReportMetric(float64(heap)/(1<<20), "MiB")
			goruntime.KeepAlive(l)
		})
	}
}
