// Package resource is what the translation may look at: every object that has a meaning for a Gateway, indexed by the questions that the
// translation asks.
//
// The package is pure: a provider hands it objects, from a folder or from a cluster, and it never changes them.
package resource

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// View is an indexed set of objects. What it hands out belongs to it: readers must not write to it. Put and Delete change it; nobody may
// read it meanwhile.
type View struct {
	classes        table[*gwapiv1.GatewayClass]
	gateways       table[*gwapiv1.Gateway]
	configs        table[*stunnerv1.GatewayConfig]
	dataplanes     table[*stunnerv1.Dataplane]
	staticServices table[*stunnerv1.StaticService]
	services       table[*corev1.Service]
	secrets        table[*corev1.Secret]
	namespaces     table[*corev1.Namespace]
	endpointSlices table[*discoveryv1.EndpointSlice]
	nodes          table[*corev1.Node]
	grants         table[*gwapiv1.ReferenceGrant]
	routes         map[RouteRef]*Route
	trust          table[*Trust]
	scaling        table[*Scaling]
	fleets         table[*Fleet]
	refusals       table[*Refusal]
	overBudget     table[*OverBudget]

	allNodes            lists[*corev1.Node]
	gatewaysOfNamespace lists[types.NamespacedName]
	routesOfGateway     lists[*Route]
	servicesOfGateway   lists[*corev1.Service]
	systemServices      lists[*corev1.Service]
	slicesOfService     lists[*discoveryv1.EndpointSlice]
	grantsOfNamespace   lists[*gwapiv1.ReferenceGrant]
	users               users

	host *Host
	told Facts
}

// Telling returns a view of the same objects that notes what it is asked. It is good until the next Put or Delete.
func (v *View) Telling(told Facts) *View {
	w := *v
	w.told = told
	return &w
}

// tell notes that a fact was asked for.
func (v *View) tell(s subject, key types.NamespacedName) {
	if v.told != nil {
		v.told.add(s, key)
	}
}

// find returns an object, or nil, and notes that it was asked for.
func find[T Object](v *View, t table[T], s subject, key types.NamespacedName) T {
	v.tell(s, key)
	return t[key]
}

// list returns a list, and notes that it was asked for.
func list[T any](v *View, l lists[T], s subject, key types.NamespacedName) []T {
	v.tell(s, key)
	return l.of[key]
}
