package kube

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Whatever there is, right or wrong: an operator that starts over what the one before it has written writes nothing.
func TestSecondOperatorWritesNothing(t *testing.T) {
	const snapshots, seed = 50, 20
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for n := range uint64(snapshots) {
		random := rand.New(rand.NewPCG(seed, n))
		objects := snapshot(random)
		c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(objects...).Build()
		made += reconcile(t, c, s)
		if again := reconcile(t, c, s); again != 0 {
			t.Errorf("snapshot %d of seed %d: %d writes over what has been written", n, seed, again)
		}
	}
	if made < 10*snapshots {
		t.Errorf("%d writes for %d snapshots: there was little to do", made, snapshots)
	}
}

// reconcile has a new loop and a new writer take in all that there is and do all that there is to do. It returns the number of writes.
func reconcile(t *testing.T, c client.Client, s *runtime.Scheme) (writes int) {
	t.Helper()
	m, log := newMeters(), slog.New(slog.DiscardHandler)
	l := newLoop(translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), m, &tasks{}, log)
	l.secrets, l.writer = newSecrets(c, l.inbox, log), newWriter(c, s, m, l.tasks, log)
	l.shown = func(gateway types.NamespacedName) []string { return shown(t.Context(), c, gateway) }
	var changes []change
	for _, list := range []client.ObjectList{
		&gwapiv1.GatewayClassList{}, &gwapiv1.GatewayList{}, &stunnerv1.GatewayConfigList{}, &stunnerv1.DataplaneList{}, &stunnerv1.StaticServiceList{},
		&stunnerv1.UDPRouteList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.SecretList{},
	} {
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		err := eachItem(list, func(o client.Object) {
			if secret, ok := o.(*corev1.Secret); ok {
				l.secrets.noted(resource.KeyOf(secret), secret.ResourceVersion)
			}
			changes = append(changes, change{object: o})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l.take(changes, &task{})
	for u := range l.writer.jobs {
		if err := l.writer.write(t.Context(), u); err != nil {
			t.Fatalf("%s: %v", u, err)
		}
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "stunner_operator_writes_total" {
			for _, series := range f.GetMetric() {
				writes += int(series.GetCounter().GetValue())
			}
		}
	}
	return writes
}

// snapshot is a class with Gateways, routes and backends, of which any may be wrong or missing.
func snapshot(random *rand.Rand) (objects []client.Object) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "media", Name: name, UID: types.UID(name), Generation: 1}
	}
	mostly := func(o client.Object) {
		if random.IntN(8) > 0 {
			objects = append(objects, o)
		}
	}
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "turn", Generation: 1}}
	class.Spec.ControllerName = translate.DefaultControllerName
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "turn", Namespace: new(gwapiv1.Namespace("media"))}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: meta("turn")}
	gc.Spec.AuthRef = &gwapiv1.SecretObjectReference{Name: "turn"}
	secret := &corev1.Secret{ObjectMeta: meta("turn"), Data: map[string][]byte{"type": []byte("static"), "username": []byte("user"), "password": []byte("pass")}}
	objects = append(objects, class)
	mostly(gc)
	mostly(secret)
	mostly(&stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default", Generation: 1}})
	protocols := []gwapiv1.ProtocolType{"TURN-UDP", "TURN-TCP", "TURN-TLS", "UDP", "HTTP"}
	for g := range 1 + random.IntN(3) {
		gw := &gwapiv1.Gateway{ObjectMeta: meta(fmt.Sprintf("gw-%d", g))}
		gw.Spec.GatewayClassName = "turn"
		if random.IntN(2) == 0 {
			types := []string{"ClusterIP", "NodePort", "LoadBalancer", "nonsense"}
			gw.Annotations = map[string]string{"stunner.l7mp.io/service-type": types[random.IntN(len(types))], "stunner.l7mp.io/enable-mixed-protocol-lb": fmt.Sprint(random.IntN(2) == 0)}
		}
		for i := range 1 + random.IntN(3) {
			gw.Spec.Listeners = append(gw.Spec.Listeners, gwapiv1.Listener{
				Name: gwapiv1.SectionName(fmt.Sprintf("l-%d", i)), Port: gwapiv1.PortNumber(3478 + random.IntN(3)), Protocol: protocols[random.IntN(len(protocols))],
			})
		}
		objects = append(objects, gw)
	}
	for r := range 1 + random.IntN(4) {
		route := &stunnerv1.UDPRoute{ObjectMeta: meta(fmt.Sprintf("route-%d", r))}
		route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(fmt.Sprintf("gw-%d", random.IntN(4)))}}
		backend := stunnerv1.BackendRef{Name: gwapiv1.ObjectName(fmt.Sprintf("media-%d", random.IntN(3)))}
		if random.IntN(3) == 0 {
			backend.Group, backend.Kind = new(gwapiv1.Group(stunnerv1.GroupName)), new(gwapiv1.Kind("StaticService"))
		}
		route.Spec.Rules = []stunnerv1.UDPRouteRule{{BackendRefs: []stunnerv1.BackendRef{backend}}}
		objects = append(objects, route)
	}
	for b := range 3 {
		name := fmt.Sprintf("media-%d", b)
		mostly(&corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{ClusterIP: "None"}})
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.0.0.%d", b+1)}}}}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: name}
		mostly(slice)
		prefixes := []string{"10.1.0.0/16", "nonsense"}
		mostly(&stunnerv1.StaticService{ObjectMeta: meta(name), Spec: stunnerv1.StaticServiceSpec{Prefixes: prefixes[:1+random.IntN(2)]}})
	}
	return objects
}
