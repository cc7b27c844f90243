// Package resource is the input of the translation: a View of all objects that affect a Gateway, with the indexes that
// the translation needs. A View records which facts a translation looked up, see Fact, so that a provider repeats only
// the translations that a change affects.
//
// The package does no I/O: a provider puts objects from a folder or from a cluster into the View. The View never
// modifies these objects.
//
// # Files
//
//	view.go lookup.go list.go  objects, lookups and indexes
//	change.go same.go          which facts a changed object changes
//	fact.go readers.go         facts, and the translations that depend on them
//	users.go                   which objects refer to an object
//	operatorobject.go          state of the operator that translations read
//	host.go                    the host of the file provider
//	revocation.go              Revocations, and the budget of their namespaces
//	nodeprovider.go            cloud providers of the nodes
//	secret.go certificate.go   content of Secrets
//	unread.go                  objects that the operator has not read
package resource

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// View is an indexed set of objects. Callers must not modify the objects and lists that it returns. Put and Delete must
// not run concurrently with any other method.
type View struct {
	classes        table[*gwapiv1.GatewayClass]
	gateways       table[*gwapiv1.Gateway]
	configs        table[*stunnerv1.GatewayConfig]
	dataplanes     table[*stunnerv1.Dataplane]
	staticServices table[*stunnerv1.StaticService]
	revocations    table[*stunnerv1.Revocation]
	services       table[*corev1.Service]
	secrets        table[*corev1.Secret]
	namespaces     table[*corev1.Namespace]
	endpointSlices table[*discoveryv1.EndpointSlice]
	nodes          table[*corev1.Node]
	grants         table[*gwapiv1.ReferenceGrant]
	routes         map[RouteRef]*Route
	trust          table[*Trust]
	scaling        table[*Scaling]
	installations  table[*Installations]
	rollouts       table[*Rollout]
	rejections     table[*Rejection]
	nodePorts      table[*NodePorts]
	overBudget     table[*OverBudget]
	// certificates are the parsed certificates of Secrets in the view.
	certificates map[types.NamespacedName]*Certificate

	allNodes            lists[*corev1.Node]
	nodeAddresses       lists[netip.Addr] // node addresses by AddressBlock
	networks            networks
	nodeProviders       nodeProviders
	gatewaysOfNamespace lists[types.NamespacedName]
	routesOfGateway     lists[*Route]
	servicesOfGateway   lists[*corev1.Service]
	systemServices      lists[*corev1.Service]
	slicesOfService     lists[*discoveryv1.EndpointSlice]
	grantsOfNamespace   lists[*gwapiv1.ReferenceGrant]

	revocationsOfNamespace lists[*stunnerv1.Revocation]
	// roomyRevocations are the Revocations that fit into the budget of their namespace, by namespace and name.
	roomyRevocations map[string]map[string]*stunnerv1.Revocation

	users users

	host *Host
	// recorded receives the facts that translations look up; nil if the view does not record.
	recorded Facts
}

// Recording returns a view of the same objects that adds each fact that a caller looks up to facts. It is valid until
// the next Put or Delete.
func (v *View) Recording(facts Facts) *View {
	w := *v
	w.recorded = facts
	return &w
}

// record adds a looked-up fact, if the view records.
func (v *View) record(s subject, key types.NamespacedName) {
	if v.recorded != nil {
		v.recorded.add(s, key)
	}
}

// find returns an object or nil, and records the lookup.
func find[T Object](v *View, t table[T], s subject, key types.NamespacedName) T {
	v.record(s, key)
	return t[key]
}

// list returns a list, and records the lookup.
func list[T any](v *View, l lists[T], s subject, key types.NamespacedName) []T {
	v.record(s, key)
	return l.of[key]
}
