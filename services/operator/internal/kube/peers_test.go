package kube

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The peers are the other endpoints of config discovery, each once, at the port of the EndpointSlice.
func TestPeersAreTheOtherEndpoints(t *testing.T) {
	slice := func(port int32, addresses ...[]string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: new(port)}, {}}}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: a})
		}
		return s
	}
	pods := func(addresses ...string) *discoveryv1.EndpointSlice {
		s := slice(1)
		for i, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprint("operator-", i)},
			})
		}
		return s
	}
	for name, c := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   []string
	}{
		"none":    {nil, nil},
		"oneself": {[]*discoveryv1.EndpointSlice{slice(13478, []string{"10.0.0.1"})}, nil},
		"two": {[]*discoveryv1.EndpointSlice{
			slice(13478, []string{"10.0.0.3"}, []string{"10.0.0.1"}), slice(13478, []string{"10.0.0.2"}),
		}, []string{"10.0.0.2:13478", "10.0.0.3:13478"}},
		"one twice": {
			[]*discoveryv1.EndpointSlice{slice(1, []string{"10.0.0.2"}), slice(1, []string{"10.0.0.2"})},
			[]string{"10.0.0.2:1"},
		},
		"one of IPv6": {[]*discoveryv1.EndpointSlice{slice(1, []string{"2001:db8::2"})}, []string{"[2001:db8::2]:1"}},
		"a name":      {[]*discoveryv1.EndpointSlice{slice(1, []string{"example.net"})}, nil},
		"another port": {[]*discoveryv1.EndpointSlice{{
			Ports: []discoveryv1.EndpointPort{
				{Name: new("scaler"), Port: new(int32(13480))}, {Name: new("cds"), Port: new(int32(13478))},
			},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}}},
		}}, []string{"10.0.0.2:13478"}},
		"two addresses": {
			[]*discoveryv1.EndpointSlice{slice(1, []string{"10.0.0.2", "10.0.0.4"}, nil)}, []string{"10.0.0.2:1"},
		},
		"both families": {
			[]*discoveryv1.EndpointSlice{pods("2001:db8::1", "2001:db8::2"), pods("10.0.0.1", "10.0.0.2")},
			[]string{"10.0.0.2:1"},
		},
		"both families, the other first": {
			[]*discoveryv1.EndpointSlice{pods("10.0.0.1", "10.0.0.2"), pods("2001:db8::1", "2001:db8::2")},
			[]string{"10.0.0.2:1"},
		},
	} {
		if got := addressesOf(c.slices, "10.0.0.1"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	p := &peerReplicas{service: types.NamespacedName{Namespace: "stunner-system", Name: discoveryService}}
	for name, c := range map[string]struct {
		namespace, service string
		want               bool
	}{
		"ours":      {"stunner-system", discoveryService, true},
		"elsewhere": {"media", discoveryService, false},
		"another":   {"stunner-system", "other", false},
	} {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace, Labels: map[string]string{discoveryv1.LabelServiceName: c.service},
		}}
		if p.include(s) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
	if (*peerReplicas)(nil).include(&discoveryv1.EndpointSlice{}) {
		t.Error("a nil set includes an EndpointSlice")
	}
}
