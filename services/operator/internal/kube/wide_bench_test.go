package kube

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// sliceSize is the maximum number of endpoints of an EndpointSlice that Kubernetes writes.
const sliceSize = 100

// wideGateway is a Gateway with many routes or endpoints, as the loop translates and publishes it.
type wideGateway struct {
	testing.TB
	view    *resource.View
	memo    translate.Memo
	options translate.Options
	readers resource.Readers[translate.ObjectRef]
	server  *discovery.Server
	ref     translate.ObjectRef
	// whole makes each change a translation of everything, and shares nothing with the config before.
	whole     bool
	endpoints int // endpoints of each route
}

func newWideGateway(tb testing.TB, routes, endpoints int, whole bool) *wideGateway {
	namespace := gwapiv1.Namespace("wide")
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "wide", Name: name} }
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "wide"}}
	class.Spec.ControllerName = translate.DefaultControllerName
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{
		Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "wide", Namespace: &namespace,
	}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: meta("wide")}
	gc.Spec.AuthRef = &gwapiv1.SecretObjectReference{Name: "wide"}
	gc.Spec.Budget = &stunnerv1.Budget{
		Routes: 10_000, Endpoints: 100_000, EndpointsPerRoute: 50_000, EndpointsPerNamespace: 100_000,
	}
	gw := &gwapiv1.Gateway{ObjectMeta: meta("gw")}
	gw.Spec.GatewayClassName = "wide"
	gw.Spec.Listeners = []gwapiv1.Listener{{Name: "udp", Protocol: "TURN-UDP", Port: 3478}}
	w := &wideGateway{TB: tb, options: translate.DefaultOptions(), server: discovery.NewServer(discovery.ServerOptions{}),
		ref:   translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: resource.KeyOf(gw)},
		whole: whole, endpoints: endpoints}
	objects := []resource.Object{class, gc, gw, &stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Secret{ObjectMeta: gc.ObjectMeta, Data: map[string][]byte{
			"type": []byte("static"), "username": []byte("user"), "password": []byte("pass"),
		}}}
	for r := range routes {
		name := fmt.Sprintf("route-%04d", r)
		route := &stunnerv1.UDPRoute{ObjectMeta: meta(name)}
		route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: "gw"}}
		backend := stunnerv1.BackendRef{Name: gwapiv1.ObjectName(name)}
		route.Spec.Rules = []stunnerv1.UDPRouteRule{{BackendRefs: []stunnerv1.BackendRef{backend}}}
		objects = append(objects, route,
			&corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{ClusterIP: "None"}})
		for s := 0; s < endpoints; s += sliceSize {
			objects = append(objects, w.slice(r, s/sliceSize, 0))
		}
	}
	w.view = resource.NewView(objects)
	w.translate()
	return w
}

// slice returns an EndpointSlice of a route. Its first endpoint differs in each turn.
func (w *wideGateway) slice(route, slice, turn int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("route-%04d", route)
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: "wide", Name: fmt.Sprintf("%s-%d", name, slice),
		Labels: map[string]string{discoveryv1.LabelServiceName: name},
	}}
	for e := slice * sliceSize; e < min(w.endpoints, (slice+1)*sliceSize); e++ {
		n := route*w.endpoints + e
		address := fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
		if e == slice*sliceSize && turn > 0 {
			address = fmt.Sprintf("172.16.%d.%d", turn>>8&255, turn&255)
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return s
}

// change replaces an endpoint of a route, and publishes the config.
func (w *wideGateway) change(s *discoveryv1.EndpointSlice) {
	concerned := map[translate.ObjectRef]struct{}{}
	changed := w.view.Put(s)
	w.readers.Of(changed, concerned)
	w.memo.Observe(changed, concerned)
	if _, ok := concerned[w.ref]; !ok || len(concerned) != 1 {
		w.Fatalf("%d objects are concerned", len(concerned))
	}
	w.translate()
}

func (w *wideGateway) translate() {
	facts, opt := resource.Facts{}, w.options
	if !w.whole {
		if out, ok := w.memo.Translate(w.ref, w.view.Recording(facts), opt); ok {
			w.readers.Extend(w.ref, facts)
			w.publish(out)
			return
		}
		opt.Memo = &w.memo
	}
	out := w.ref.Translate(w.view.Recording(facts), opt)
	w.readers.Record(w.ref, facts)
	w.publish(out)
}

func (w *wideGateway) publish(out translate.Outcome) {
	if out.Gateway.Config == nil {
		w.Fatalf("no config: %+v", out.Gateway.Status.Conditions)
	}
	c := *out.Gateway.Config
	if w.whole {
		c = c.Clone()
		w.server.Delete(c.Admin.Name)
	}
	if _, changed := w.server.Publish(c); !changed {
		w.Fatal("the config does not change")
	}
}

var wideGateways = []struct {
	name              string
	routes, endpoints int
}{
	{"1 route of 3 endpoints", 1, 3},
	{"1 route of 10,000 endpoints", 1, 10_000},
	{"1,000 routes of 10 endpoints", 1_000, 10},
	{"5,000 routes of 1 endpoint", 5_000, 1},
}

// processorTime returns the CPU time of the process. Other processes affect it less than the wall-clock time.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkWideChange measures a changed endpoint in the operator, from the EndpointSlice to the published frame: with
// a translation of everything, and with a translation of the changed route only.
func BenchmarkWideChange(b *testing.B) {
	for _, shape := range wideGateways {
		var whole time.Duration // time of one change
		for _, mode := range []string{"whole", "endpoints"} {
			b.Run(shape.name+"/"+mode, func(b *testing.B) {
				w := newWideGateway(b, shape.routes, shape.endpoints, mode == "whole")
				b.ReportAllocs()
				b.ResetTimer()
				begun := processorTime(b)
				for turn := 1; b.Loop(); turn++ {
					w.change(w.slice(turn%shape.routes, 0, turn))
				}
				took := (processorTime(b) - begun) / time.Duration(b.N)
				b.ReportMetric(float64(took), "cpu-ns/op")
				if mode == "whole" {
					whole = took
				} else if whole > 0 {
					b.ReportMetric(float64(whole)/float64(max(took, 1)), "times-cheaper")
				}
			})
		}
	}
}

// A change of one endpoint allocates a fraction of a translation of everything, and yields the same config. The Gateway
// has one route or 1,000 routes, with up to 10,000 endpoints in all.
func TestAChangedEndpointOfAWideGatewayCostsItsRoute(t *testing.T) {
	for _, shape := range wideGateways[:3] {
		cost := func(whole bool) (float64, string) {
			w := newWideGateway(t, shape.routes, shape.endpoints, whole)
			turn := 0
			allocations := testing.AllocsPerRun(5, func() {
				turn++
				w.change(w.slice(turn%shape.routes, 0, turn))
			})
			_, revision, ok := w.server.Published("wide/gw")
			if !ok {
				t.Fatal("no config")
			}
			return allocations, revision
		}
		all, want := cost(true)
		few, got := cost(false)
		if got != want {
			t.Errorf("%s: revision %s, want %s", shape.name, got, want)
		}
		if few > 1_500 || shape.routes*shape.endpoints > 1_000 && few > all/10 {
			t.Errorf("%s: %.0f allocations for a change, %.0f for a whole translation", shape.name, few, all)
		}
	}
}
