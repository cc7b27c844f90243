package translate_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// T-03: a cluster IP that Kubernetes assigns after the creation of a Service gets into the config of its Gateway. It
// translates no other Gateway and changes no object except the ConfigMap, so that no pod restarts and the Service is
// not written again.
func TestALateClusterIPAffectsOnlyItsGateway(t *testing.T) {
	c := load(t, "testdata/the_addresses_of_services_are_told_to_the_dataplane.txtar")
	var service *corev1.Service
	v := resource.NewView(nil)
	for _, o := range c.objects {
		if s, ok := o.(*corev1.Service); ok && s.Name == "lobby" {
			service = s.DeepCopy()
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.ExternalIPs, s.Status = "", nil, nil, corev1.ServiceStatus{}
		}
		v.Put(o)
	}
	for _, name := range []string{"annex", "other"} {
		gw := v.Gateway(types.NamespacedName{Namespace: "turn", Name: "lobby"}).DeepCopy()
		gw.Name, gw.UID = name, types.UID(name)
		v.Put(gw)
	}
	var readers resource.Readers[types.NamespacedName]
	results := map[types.NamespacedName]translate.Result{}
	translateOne := func(key types.NamespacedName) {
		told := resource.Facts{}
		results[key] = translate.Gateway(v.Recording(told), key, c.options)
		readers.Record(key, told)
	}
	for _, key := range v.Gateways() {
		translateOne(key)
	}
	lobby := types.NamespacedName{Namespace: "turn", Name: "lobby"}
	before := results[lobby]
	if before.Config == nil || len(before.Config.Listeners[0].ServiceAddresses) > 0 {
		t.Fatalf("before: %+v", before.Config)
	}

	change := func(s *corev1.Service) []types.NamespacedName {
		concerned := map[types.NamespacedName]struct{}{}
		readers.Of(v.Put(s), concerned)
		return slices.Collect(maps.Keys(concerned))
	}
	if got := change(service); !slices.Equal(got, []types.NamespacedName{lobby}) {
		t.Errorf("the change concerns %v, want %v alone", got, lobby)
	}
	translateOne(lobby)
	after := results[lobby]
	want := "[10.43.0.9:3478 198.51.100.8:3478 203.0.113.40:3478 [2001:db8::40]:3478 [fd00:43::9]:3478]"
	if got := fmt.Sprint(after.Config.Listeners[0].ServiceAddresses); got != want {
		t.Errorf("addresses %s, want %s", got, want)
	}
	for i, o := range after.Objects {
		if _, shown := o.(*corev1.ConfigMap); !shown && !reflect.DeepEqual(o, before.Objects[i]) {
			t.Errorf("%T %s changes with the address of the Service", o, o.GetName())
		}
	}
	again := service.DeepCopy()
	again.ResourceVersion = "2"
	if got := change(again); len(got) > 0 {
		t.Errorf("the same Service again concerns %v", got)
	}
}

// A Service with very many addresses does not make the config large, and all cluster IPs stay in it.
func TestAddressesOfAServiceAreBounded(t *testing.T) {
	c := load(t, "testdata/the_addresses_of_services_are_told_to_the_dataplane.txtar")
	for _, o := range c.objects {
		if s, ok := o.(*corev1.Service); ok && s.Name == "lobby" {
			for i := range 5_000 {
				s.Status.LoadBalancer.Ingress = append(
					s.Status.LoadBalancer.Ingress,
					corev1.LoadBalancerIngress{IP: fmt.Sprintf("10.9.%d.%d", i/250, i%250)},
				)
			}
		}
	}
	r := translate.Gateway(c.view(), types.NamespacedName{Namespace: "turn", Name: "lobby"}, c.options)
	got := r.Config.Listeners[0].ServiceAddresses
	if len(got) != 64 || !slices.Contains(got, "10.43.0.9:3478") || !slices.Contains(got, "[fd00:43::9]:3478") {
		t.Errorf("%d addresses: %v", len(got), got)
	}
}
