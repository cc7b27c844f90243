package translate_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// sizes are the numbers of Gateways in the view.
var sizes = []int{10, 100, 1_000, 10_000}

// liveEndpoints is the number of endpoints of the media server of a Gateway. All Gateways share a namespace, which
// makes the lists longest.
const liveEndpoints = 50

// liveChanges are changes of objects of one Gateway, with the number of translations that each repeats.
var liveChanges = []struct {
	name   string
	object func(gateway, turn int) resource.Object
	units  int
}{
	{"EndpointSlice", liveSlice, 1}, // the Gateway is translated
	{"UDPRoute", liveRoute, 2},      // the route and the Gateway are translated
	{"Gateway", liveGateway, 2},     // the Gateway and its route are translated
	{"Service", func(gateway, turn int) resource.Object {
		return liveService(gateway, fmt.Sprint("10.96.0.", turn%250+1))
	}, 2}, // the Gateway and the route are translated
}

func liveMeta(kind string, gateway, turn int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "media", Name: fmt.Sprintf("%s-%d", kind, gateway), Generation: int64(turn)}
}

func liveGateway(gateway, turn int) resource.Object {
	listener := gwapiv1.Listener{Name: "udp", Protocol: "TURN-UDP", Port: gwapiv1.PortNumber(3478 + turn%100)}
	return &gwapiv1.Gateway{
		ObjectMeta: liveMeta("gw", gateway, turn),
		Spec:       gwapiv1.GatewaySpec{GatewayClassName: "media", Listeners: []gwapiv1.Listener{listener}},
	}
}

func liveRoute(gateway, turn int) resource.Object {
	r := &stunnerv1.UDPRoute{ObjectMeta: liveMeta("route", gateway, turn)}
	r.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(fmt.Sprintf("gw-%d", gateway))}}
	port := gwapiv1.PortNumber(7000 + turn%100)
	r.Spec.Rules = []stunnerv1.UDPRouteRule{{
		BackendRefs: []stunnerv1.BackendRef{{Name: gwapiv1.ObjectName(fmt.Sprintf("media-%d", gateway)), Port: &port}},
	}}
	return r
}

func liveService(gateway int, address string) resource.Object {
	return &corev1.Service{ObjectMeta: liveMeta("media", gateway, 0), Spec: corev1.ServiceSpec{ClusterIP: address}}
}

func liveSlice(gateway, turn int) resource.Object {
	s := &discoveryv1.EndpointSlice{ObjectMeta: liveMeta("media", gateway, 0), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	for e := range liveEndpoints {
		s.Endpoints = append(
			s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", gateway%250, turn%250, e+1)}},
		)
	}
	return s
}

// liveView is a view of many Gateways that is kept up to date, as the view of an operator is.
type liveView struct {
	view    *resource.View
	readers resource.Readers[translate.ObjectRef]
	options translate.Options
}

func newLiveView(gateways int) *liveView {
	namespace := gwapiv1.Namespace("media")
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "media"}}
	class.Spec.ControllerName = translate.DefaultControllerName
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{
		Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "media", Namespace: &namespace,
	}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: "media"}}
	gc.Spec.AuthRef = &gwapiv1.SecretObjectReference{Name: "media"}
	objects := []resource.Object{class, gc, &stunnerv1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
	}, &corev1.Secret{
		ObjectMeta: gc.ObjectMeta,
		Data:       map[string][]byte{"type": []byte("static"), "username": []byte("user"), "password": []byte("pass")},
	}}
	for g := range gateways {
		objects = append(objects, liveGateway(g, 0), liveRoute(g, 0), liveService(g, "10.96.0.1"), liveSlice(g, 0))
	}
	w := &liveView{view: resource.NewView(objects), options: translate.DefaultOptions()}
	for _, u := range unitsOf(objects) {
		w.translate(u)
	}
	return w
}

func (w *liveView) translate(u translate.ObjectRef) translate.Outcome {
	told := resource.Facts{}
	out := u.Translate(w.view.Recording(told), w.options)
	w.readers.Record(u, told)
	return out
}

// change puts an object, repeats the translations that depend on it, and returns the number of translations.
func (w *liveView) change(o resource.Object) int {
	concerned := map[translate.ObjectRef]struct{}{}
	w.readers.Of(w.view.Put(o), concerned)
	for u := range concerned {
		w.translate(u)
	}
	return len(concerned)
}

// BenchmarkChange measures the translations after a change of one object.
func BenchmarkChange(b *testing.B) {
	for _, c := range liveChanges {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%s/gateways=%d", c.name, size), func(b *testing.B) {
				w := newLiveView(size)
				b.ReportAllocs()
				for turn := 1; b.Loop(); turn++ {
					w.change(c.object(turn%size, turn))
				}
			})
		}
	}
}

// BenchmarkStart measures the translation of all objects.
func BenchmarkStart(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("gateways=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				newLiveView(size)
			}
		})
	}
}

// a change among 1,000 Gateways repeats the same translations as among 10, and allocates as much memory.
func TestChangeTranslatesOnlyAffectedGateways(t *testing.T) {
	few, many := newLiveView(10), newLiveView(1_000)
	if out := many.translate(
		translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: resource.KeyOf(liveGateway(7, 0))},
	); out.Gateway.Config == nil ||
		len(out.Gateway.Config.Clusters) != 1 || len(out.Gateway.Config.Clusters[0].Endpoints) != liveEndpoints+1 {
		t.Fatalf("a Gateway of the view has the config %+v", out.Gateway.Config)
	}
	for _, c := range liveChanges {
		cost := func(w *liveView) float64 {
			turn := 0
			change := func() {
				turn++
				if units := w.change(c.object(7, turn)); units != c.units {
					t.Fatalf("%s: %d units translated, want %d", c.name, units, c.units)
				}
			}
			return bytesOf(change)
		}
		if alone, crowded := cost(few), cost(many); crowded > 1.25*alone { // pools lose some under the race detector
			t.Errorf("%s: takes %.0f bytes among 1000 Gateways, %.0f among 10", c.name, crowded, alone)
		}
	}
}

// bytesOf returns the bytes that a function allocates in each run. The number of allocations would not show a copy of a
// long list.
func bytesOf(do func()) float64 {
	const times = 100
	do()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		do()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / times
}

// A new node translates a Gateway only if one of its endpoints is in the same block of addresses: adding a node does
// not translate all Gateways.
func TestANewNodeAffectsOnlyItsAddressBlock(t *testing.T) {
	w := newLiveView(10)
	for i, c := range []struct {
		address string
		units   int
	}{
		{"192.0.2.7", 0},
		{liveSlice(7, 0).(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0], 1},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("late-", i)}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: c.address}}
		if units := w.change(node); units != c.units {
			t.Errorf("a node with address %s: %d units translated, want %d", c.address, units, c.units)
		}
	}
}
