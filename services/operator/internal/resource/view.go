// Package resource is what the translation may look at: every object that has a meaning for a Gateway, indexed by the questions that the
// translation asks.
//
// The package is pure: a provider hands it objects, from a folder or from a cluster, and it never changes them.
package resource

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// KeyOf returns the namespace and name of an object.
func KeyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

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

// NewView indexes objects. Kinds that have no meaning for a Gateway are left out. The order of the objects does not matter; of two objects
// of one kind with one name, which nothing but a folder can hold, the later one counts.
func NewView(objects []Object) *View {
	v := &View{
		classes:        table[*gwapiv1.GatewayClass]{},
		gateways:       table[*gwapiv1.Gateway]{},
		configs:        table[*stunnerv1.GatewayConfig]{},
		dataplanes:     table[*stunnerv1.Dataplane]{},
		staticServices: table[*stunnerv1.StaticService]{},
		services:       table[*corev1.Service]{},
		endpointSlices: table[*discoveryv1.EndpointSlice]{},
		secrets:        table[*corev1.Secret]{},
		namespaces:     table[*corev1.Namespace]{},
		nodes:          table[*corev1.Node]{},
		grants:         table[*gwapiv1.ReferenceGrant]{},
		routes:         map[RouteRef]*Route{},
		trust:          table[*Trust]{},
		scaling:        table[*Scaling]{},
		fleets:         table[*Fleet]{},
		refusals:       table[*Refusal]{},
		overBudget:     table[*OverBudget]{},

		allNodes:            newLists(byKey[*corev1.Node]),
		gatewaysOfNamespace: newLists(compareKeys),
		routesOfGateway:     newLists(func(a, b *Route) int { return compareRoutes(a.Ref, b.Ref) }),
		servicesOfGateway:   newLists(byKey[*corev1.Service]),
		systemServices:      newLists(byKey[*corev1.Service]),
		slicesOfService:     newLists(byKey[*discoveryv1.EndpointSlice]),
		grantsOfNamespace:   newLists(byKey[*gwapiv1.ReferenceGrant]),
		users:               newUsers(),
	}
	for _, o := range objects {
		v.Put(o)
	}
	return v
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

// Classes returns the names of all GatewayClasses, sorted.
func (v *View) Classes() []string { return v.classes.names() }

// Class returns a GatewayClass, or nil.
func (v *View) Class(name string) *gwapiv1.GatewayClass {
	return find(v, v.classes, aClass, types.NamespacedName{Name: name})
}

// Gateways returns the keys of all Gateways, sorted.
func (v *View) Gateways() []types.NamespacedName { return v.gateways.keys() }

// Gateway returns a Gateway, or nil.
func (v *View) Gateway(key types.NamespacedName) *gwapiv1.Gateway {
	return find(v, v.gateways, aGateway, key)
}

// GatewaysIn returns the keys of the Gateways of a namespace, sorted.
func (v *View) GatewaysIn(namespace string) []types.NamespacedName {
	return list(v, v.gatewaysOfNamespace, allGatewaysOf, types.NamespacedName{Namespace: namespace})
}

// GatewayConfigs returns the keys of all GatewayConfigs, sorted.
func (v *View) GatewayConfigs() []types.NamespacedName { return v.configs.keys() }

// GatewayConfig returns a GatewayConfig, or nil.
func (v *View) GatewayConfig(key types.NamespacedName) *stunnerv1.GatewayConfig {
	return find(v, v.configs, aGatewayConfig, key)
}

// Dataplanes returns the names of all Dataplanes, sorted.
func (v *View) Dataplanes() []string { return v.dataplanes.names() }

// Dataplane returns a Dataplane, or nil.
func (v *View) Dataplane(name string) *stunnerv1.Dataplane {
	return find(v, v.dataplanes, aDataplane, types.NamespacedName{Name: name})
}

// StaticServices returns the keys of all StaticServices, sorted.
func (v *View) StaticServices() []types.NamespacedName { return v.staticServices.keys() }

// StaticService returns a StaticService, or nil.
func (v *View) StaticService(key types.NamespacedName) *stunnerv1.StaticService {
	return find(v, v.staticServices, aStaticService, key)
}

// Service returns a Service, or nil.
func (v *View) Service(key types.NamespacedName) *corev1.Service {
	return find(v, v.services, aService, key)
}

// SystemServices returns the Services of namespace kube-system, sorted by name.
func (v *View) SystemServices() []*corev1.Service {
	return list(v, v.systemServices, allSystemServices, types.NamespacedName{})
}

// EndpointSlicesOf returns the EndpointSlices of a Service, sorted by name.
func (v *View) EndpointSlicesOf(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	return list(v, v.slicesOfService, allSlicesOf, service)
}

// ServicesOf returns the Services that expose a Gateway, sorted by name.
func (v *View) ServicesOf(gateway types.NamespacedName) []*corev1.Service {
	return list(v, v.servicesOfGateway, allServicesOf, gateway)
}

// Secret returns a Secret, or nil.
func (v *View) Secret(key types.NamespacedName) *corev1.Secret {
	return find(v, v.secrets, aSecret, key)
}

// Namespace returns a Namespace, or nil.
func (v *View) Namespace(name string) *corev1.Namespace {
	return find(v, v.namespaces, aNamespace, types.NamespacedName{Name: name})
}

// NamespaceLabels returns the labels of a namespace. Every namespace has the label with its own name, because the API server sets it;
// one that no provider has seen has that one only.
func (v *View) NamespaceLabels(name string) map[string]string {
	all := map[string]string{corev1.LabelMetadataName: name}
	if ns := v.Namespace(name); ns != nil {
		for k, value := range ns.Labels {
			all[k] = value
		}
	}
	return all
}

// Nodes returns all Nodes, sorted by name.
func (v *View) Nodes() []*corev1.Node { return list(v, v.allNodes, allNodes, types.NamespacedName{}) }
