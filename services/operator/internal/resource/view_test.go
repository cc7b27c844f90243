package resource_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func TestAbsentObjectsAreNil(t *testing.T) {
	v := resource.NewView(nil)
	if v.Gateway(key("a", "b")) != nil || v.Secret(key("a", "b")) != nil || v.Class("c") != nil ||
		v.Route(resource.RouteRef{}) != nil || v.Host() != nil {
		t.Error("an empty view holds something")
	}
	if len(v.Gateways())+len(v.Routes())+len(v.Nodes())+len(v.RoutesOf(key("a", "b"))) != 0 {
		t.Error("an empty view lists something")
	}
}

func TestARouteIsFoundFromEachOfItsGateways(t *testing.T) {
	parents := gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{
		{Name: "north"},
		{Name: "north", SectionName: new(gwapiv1.SectionName("tls"))},
		{Name: "south", Namespace: new(gwapiv1.Namespace("pier"))},
		{Name: "mesh", Kind: new(gwapiv1.Kind("Service")), Group: new(gwapiv1.Group(""))},
		{Name: "mesh", Kind: new(gwapiv1.Kind("ListenerSet"))},
	}}
	v := resource.NewView([]resource.Object{
		&stunnerv1.UDPRoute{ObjectMeta: named("quay", "ferry"), Spec: stunnerv1.UDPRouteSpec{CommonRouteSpec: parents}},
	})
	want := []types.NamespacedName{key("pier", "south"), key("quay", "north")}
	if got := v.Route(v.Routes()[0]).Gateways(); !slices.Equal(got, want) {
		t.Errorf("gateways %v, want %v", got, want)
	}
	for _, gateway := range want {
		if routes := v.RoutesOf(gateway); len(routes) != 1 {
			t.Errorf("%s has %d routes, want 1", gateway, len(routes))
		}
	}
	if routes := v.RoutesOf(key("quay", "mesh")); len(routes) != 0 {
		t.Errorf("a parent that is no Gateway has %d routes", len(routes))
	}
}

func TestOfRoutesWithOneNameTheFirstSpellingCounts(t *testing.T) {
	own := &stunnerv1.UDPRoute{ObjectMeta: named("quay", "ferry")}
	gatewayAPI := &gwapiv1.UDPRoute{ObjectMeta: named("quay", "ferry")}
	alpha := &gwapiv1a2.UDPRoute{ObjectMeta: named("quay", "ferry")}
	elsewhere := &gwapiv1a2.UDPRoute{ObjectMeta: named("pier", "ferry")}
	for _, test := range []struct {
		name    string
		objects []resource.Object
		masked  []string // by spelling of the mask, in the order of Routes
	}{
		{"all", []resource.Object{alpha, gatewayAPI, own}, []string{"", "stunner.l7mp.io/v1", "stunner.l7mp.io/v1"}},
		{"gatewayAPI", []resource.Object{alpha, gatewayAPI}, []string{"", "gateway.networking.k8s.io/v1"}},
		{"other namespace", []resource.Object{elsewhere, own}, []string{"", ""}},
	} {
		v := resource.NewView(test.objects)
		var masked []string
		for _, ref := range v.Routes() {
			by := ""
			if mask := v.Route(ref).MaskedBy; mask != nil {
				by = mask.GroupVersion.String()
			}
			masked = append(masked, by)
		}
		if !slices.Equal(masked, test.masked) {
			t.Errorf("%s: masked by %q, want %q", test.name, masked, test.masked)
		}
	}
}

func TestAServiceBelongsToTheGatewayThatOwnsIt(t *testing.T) {
	service := func(annotation string, owner metav1.OwnerReference) *corev1.Service {
		meta := named("quay", "north")
		meta.Annotations = map[string]string{resource.RelatedGatewayName: annotation}
		meta.OwnerReferences = []metav1.OwnerReference{owner}
		return &corev1.Service{ObjectMeta: meta}
	}
	gateway := metav1.OwnerReference{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "north"}
	foreign := metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Gateway", Name: "north"}
	other := metav1.OwnerReference{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "south"}
	for _, test := range []struct {
		name string
		svc  *corev1.Service
		want int
	}{
		{"owned", service("quay/north", gateway), 1},
		{"owned by another kind", service("quay/north", foreign), 0},
		{"owned by another Gateway", service("quay/north", other), 0},
		{"of another namespace", service("pier/north", gateway), 0},
		{"unreadable", service("north", gateway), 0},
	} {
		if got := len(
			resource.NewView([]resource.Object{test.svc}).ServicesOf(key("quay", "north")),
		); got != test.want {
			t.Errorf("%s: %d services, want %d", test.name, got, test.want)
		}
	}
}

func TestGrants(t *testing.T) {
	grant := &gwapiv1b1.ReferenceGrant{ObjectMeta: named("pier", "lend"), Spec: gwapiv1.ReferenceGrantSpec{
		From: []gwapiv1.ReferenceGrantFrom{{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "quay"}},
		To:   []gwapiv1.ReferenceGrantTo{{Kind: "Secret", Name: new(gwapiv1.ObjectName("cert"))}, {Kind: "ConfigMap"}},
	}}
	v := resource.NewView([]resource.Object{grant})
	gateway := resource.Referrer{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "quay"}
	for _, test := range []struct {
		name string
		from resource.Referrer
		to   resource.Target
		want bool
	}{
		{"granted by name", gateway, resource.Target{Kind: "Secret", NamespacedName: key("pier", "cert")}, true},
		{"granted without name", gateway, resource.Target{Kind: "ConfigMap", NamespacedName: key("pier", "any")}, true},
		{"wrong name", gateway, resource.Target{Kind: "Secret", NamespacedName: key("pier", "other")}, false},
		{"wrong kind", gateway, resource.Target{Kind: "Service", NamespacedName: key("pier", "cert")}, false},
		{"wrong namespace", gateway, resource.Target{Kind: "Secret", NamespacedName: key("dock", "cert")}, false},
		{"wrong referrer", resource.Referrer{
			Group: "stunner.l7mp.io", Kind: "UDPRoute", Namespace: "quay",
		}, resource.Target{Kind: "Secret", NamespacedName: key("pier", "cert")}, false},
		{"own namespace", gateway, resource.Target{Kind: "Secret", NamespacedName: key("quay", "cert")}, true},
	} {
		if got := v.Granted(test.from, test.to); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

func TestWithHostLeavesTheOriginalViewWithoutAHost(t *testing.T) {
	v := resource.NewView([]resource.Object{&gwapiv1.Gateway{ObjectMeta: named("quay", "north")}})
	hosted := v.WithHost(resource.Host{Addresses: []string{"192.0.2.1"}})
	if v.Host() != nil || hosted.Host() == nil || hosted.Gateway(key("quay", "north")) == nil {
		t.Error("WithHost must return another view of the same objects")
	}
}

// Readers of a fact are found whether they are few or many, and no longer after they recorded other facts.
func TestReadersOfAFactAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	var readers resource.Readers[int]
	told := map[int]resource.Facts{}
	factOf := func(n int) types.NamespacedName { return types.NamespacedName{Namespace: "a", Name: fmt.Sprint(n)} }
	for range 5_000 {
		unit := random.IntN(40)
		if random.IntN(4) == 0 {
			readers.Delete(unit)
			delete(told, unit)
			continue
		}
		facts := resource.Facts{}
		for range random.IntN(6) {
			maps.Copy(facts, resource.SecretFacts(factOf(random.IntN(1+random.IntN(20)))))
		}
		readers.Record(unit, facts)
		told[unit] = facts
		about := resource.SecretFacts(factOf(random.IntN(20)))
		want, got := map[int]struct{}{}, map[int]struct{}{}
		for u, facts := range told {
			if !readers.Has(u) {
				t.Fatalf("unit %d is not known", u)
			}
			for f := range about {
				if _, was := facts[f]; was {
					want[u] = struct{}{}
				}
			}
		}
		readers.Of(about, got)
		if !maps.Equal(got, want) {
			t.Fatalf("%v were told, want %v", got, want)
		}
	}
}
