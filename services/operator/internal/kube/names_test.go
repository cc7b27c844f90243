package kube

import (
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// namesakes returns objects with the same name of every kind that the operator reads, generates or sends to itself.
func namesakes() (all []resource.Object) {
	add := func(o resource.Object) {
		o.SetNamespace(gatewayKey.Namespace)
		o.SetName(gatewayKey.Name)
		all = append(all, o)
	}
	known := map[reflect.Type]bool{}
	typed := append(generatedKinds(), &resource.Trust{}, &resource.Scaling{}, &resource.Rollout{}, &resource.Rejection{})
	for _, k := range watchedKinds() {
		typed = append(typed, k.variants...)
	}
	for _, o := range typed {
		if kind := reflect.TypeOf(o); !known[kind] {
			known[kind] = true
			add(o)
		}
	}
	for _, like := range kedaKinds() {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(like.GetObjectKind().GroupVersionKind())
		add(o)
	}
	for _, kind := range []string{"Pod", "ConfigMap"} {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		add(o)
	}
	return all
}

// Objects of different kinds with one name and namespace are kept apart in the inbox and in the pending writes.
func TestObjectsAreDistinguishedByKind(t *testing.T) {
	objects := namesakes()
	for range 20 {
		in := newInbox()
		rand.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		for _, o := range objects {
			in.put(objectChange{object: o})
		}
		drained := in.drain()
		for _, o := range objects {
			if !slices.ContainsFunc(drained, func(c objectChange) bool { return c.object == o }) {
				t.Fatalf("a change of %T is lost: %d changes are left of %d", o, len(drained), len(objects))
			}
		}
	}
	for _, o := range objects {
		a, patch := pendingWrites{}, &unstructured.Unstructured{}
		patch.SetAnnotations(map[string]string{appliedAnnotation: "mark"})
		a.add(o, patch)
		for _, other := range objects {
			if a.contains(other, patch) != (other == o) {
				t.Errorf("%T counts as written when %T is", other, o)
			}
		}
	}
}

// Of two UDPRoutes with one name, the UDPRoute of stunner.l7mp.io is used with its port range. The status of the other
// UDPRoute reports that. The order in which the watches deliver them has no effect.
func TestTwoRoutesOfOneNameAtEveryStart(t *testing.T) {
	const starts = 100
	right := 0
	for range starts {
		l := startWith(t, collision()...)
		c := l.published.current(gatewayKey)
		if c == nil {
			t.Fatal("no config is published")
		}
		if len(c.Clusters) == 1 && slices.Equal(c.Clusters[0].Endpoints, []string{"10.244.0.7:<10000-10010>"}) {
			right++
		} else {
			t.Errorf("clusters %+v", c.Clusters)
		}
		for spelling, want := range map[string]metav1.ConditionStatus{
			stunnerv1.GroupName: metav1.ConditionTrue, gwapiv1.GroupName: metav1.ConditionFalse,
		} {
			u := translate.ObjectRef{Kind: translate.KindRoute, NamespacedName: gatewayKey}
			u.GroupVersion.Group, u.GroupVersion.Version = spelling, "v1"
			status, _ := l.writer.desired[u].status.(gwapiv1.RouteStatus)
			if len(status.Parents) != 1 || status.Parents[0].Conditions[0].Status != want {
				t.Errorf("the route of %s has the status %+v, want Accepted=%s", spelling, status, want)
			}
		}
	}
	t.Logf("port ranges are right in %d of %d starts", right, starts)
}

// startWith returns a loop that has processed objects in random order.
func startWith(t *testing.T, objects ...resource.Object) *loop {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	m, log := newMeters(), slog.New(slog.DiscardHandler)
	l := newLoop(translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), m, &tasks{}, log)
	l.secrets, l.writer = newSecretFetcher(nil, l.inbox, l.intake, log), newWriter(nil, nil, s, l.inbox, m, l.tasks, log)
	l.published.previous = func(types.NamespacedName) []string { return nil }
	l.published.standby = func(types.NamespacedName) *corev1.Secret { return nil }
	for _, i := range rand.Perm(len(objects)) {
		l.inbox.OnAdd(objects[i], true)
	}
	l.applyAll(l.inbox.drain(), &task{})
	return l
}

// collision returns a Gateway with a route of each API group to one Service, all with the same name.
func collision() []resource.Object {
	meta := metav1.ObjectMeta{Namespace: gatewayKey.Namespace, Name: gatewayKey.Name}
	cluster := metav1.ObjectMeta{Name: gatewayKey.Name}
	parents := gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(meta.Name)}}}
	backend := gwapiv1.BackendRef{BackendObjectReference: gwapiv1.BackendObjectReference{
		Name: gwapiv1.ObjectName(meta.Name), Port: new(gwapiv1.PortNumber(1)),
	}}
	return []resource.Object{
		&gwapiv1.GatewayClass{ObjectMeta: cluster, Spec: gwapiv1.GatewayClassSpec{
			ControllerName: translate.DefaultControllerName,
			ParametersRef: &gwapiv1.ParametersReference{
				Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: meta.Name,
				Namespace: new(gwapiv1.Namespace(meta.Namespace)),
			},
		}},
		&stunnerv1.GatewayConfig{ObjectMeta: meta, Spec: stunnerv1.GatewayConfigSpec{
			Dataplane: meta.Name, AuthType: "static", UserName: stunnerv1.InlineSecret("user"),
			Password: stunnerv1.InlineSecret("pass"),
		}},
		&stunnerv1.Dataplane{ObjectMeta: cluster},
		&gwapiv1.Gateway{ObjectMeta: meta, Spec: gwapiv1.GatewaySpec{
			GatewayClassName: gwapiv1.ObjectName(meta.Name),
			Listeners:        []gwapiv1.Listener{{Name: "udp", Port: 3478, Protocol: "TURN-UDP"}},
		}},
		&stunnerv1.UDPRoute{ObjectMeta: meta, Spec: stunnerv1.UDPRouteSpec{CommonRouteSpec: parents, Rules: []stunnerv1.UDPRouteRule{{
			BackendRefs: []stunnerv1.BackendRef{{
				Name: gwapiv1.ObjectName(meta.Name), Port: new(gwapiv1.PortNumber(10000)),
				EndPort: new(gwapiv1.PortNumber(10010)),
			}},
		}}}},
		&gwapiv1.UDPRoute{ObjectMeta: meta, Spec: gwapiv1.UDPRouteSpec{
			CommonRouteSpec: parents, Rules: []gwapiv1.UDPRouteRule{{BackendRefs: []gwapiv1.BackendRef{backend}}},
		}},
		&stunnerv1.StaticService{
			ObjectMeta: meta, Spec: stunnerv1.StaticServiceSpec{Prefixes: []string{"192.0.2.0/24"}},
		},
		&corev1.Service{ObjectMeta: meta},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: meta.Namespace, Name: meta.Name,
				Labels: map[string]string{discoveryv1.LabelServiceName: meta.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.7"}}},
		},
		&corev1.Namespace{ObjectMeta: cluster}, &corev1.Node{ObjectMeta: cluster},
	}
}
