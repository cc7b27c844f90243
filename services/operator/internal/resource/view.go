// Package resource is what the translation may look at: every object that has a meaning for a Gateway, indexed by the questions that the
// translation asks.
//
// The package is pure: a provider hands it objects, from a folder or from a cluster, and it never changes them.
package resource

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

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

// View is an immutable, indexed set of objects. What it hands out belongs to it: readers must not write to it.
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

	nodesByName       []*corev1.Node
	gatewaysIn        map[string][]types.NamespacedName
	routesOfGateway   map[types.NamespacedName][]*Route
	servicesOfGateway map[types.NamespacedName][]*corev1.Service
	slicesOfService   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	grantsOfNamespace map[string][]*gwapiv1.ReferenceGrant

	host *Host
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
	}
	for _, o := range objects {
		v.add(KeyOf(o), o)
	}
	v.index()
	return v
}

func (v *View) add(key types.NamespacedName, o Object) {
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		v.classes[key] = o
	case *gwapiv1.Gateway:
		v.gateways[key] = o
	case *stunnerv1.GatewayConfig:
		v.configs[key] = o
	case *stunnerv1.Dataplane:
		v.dataplanes[key] = o
	case *stunnerv1.StaticService:
		v.staticServices[key] = o
	case *stunnerv1.UDPRoute:
		v.addRoute(fromStunner(o))
	case *gwapiv1.UDPRoute:
		v.addRoute(fromOfficial(o, o.Spec, o.Status.Parents, official))
	case *gwapiv1a2.UDPRoute:
		v.addRoute(fromAlpha(o))
	case *corev1.Service:
		v.services[key] = o
	case *discoveryv1.EndpointSlice:
		v.endpointSlices[key] = o
	case *corev1.Secret:
		v.secrets[key] = o
	case *corev1.Namespace:
		v.namespaces[key] = o
	case *corev1.Node:
		v.nodes[key] = o
	case *gwapiv1.ReferenceGrant:
		v.grants[key] = o
	case *gwapiv1b1.ReferenceGrant:
		v.grants[key] = (*gwapiv1.ReferenceGrant)(o)
	}
}

// index answers the questions that go from one object to others. Everything is visited in sorted order, and so every list is sorted.
func (v *View) index() {
	v.nodesByName = v.nodes.sorted()
	v.gatewaysIn = map[string][]types.NamespacedName{}
	for _, gw := range v.gateways.sorted() {
		v.gatewaysIn[gw.Namespace] = append(v.gatewaysIn[gw.Namespace], KeyOf(gw))
	}
	v.routesOfGateway = map[types.NamespacedName][]*Route{}
	for _, ref := range v.Routes() {
		v.routes[ref].MaskedBy = v.maskOf(ref)
		for _, gateway := range v.routes[ref].Gateways() {
			v.routesOfGateway[gateway] = append(v.routesOfGateway[gateway], v.routes[ref])
		}
	}
	v.servicesOfGateway = map[types.NamespacedName][]*corev1.Service{}
	for _, svc := range v.services.sorted() {
		if gateway, ok := gatewayOf(svc); ok {
			v.servicesOfGateway[gateway] = append(v.servicesOfGateway[gateway], svc)
		}
	}
	v.slicesOfService = map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for _, s := range v.endpointSlices.sorted() {
		service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		v.slicesOfService[service] = append(v.slicesOfService[service], s)
	}
	v.grantsOfNamespace = map[string][]*gwapiv1.ReferenceGrant{}
	for _, g := range v.grants.sorted() {
		v.grantsOfNamespace[g.Namespace] = append(v.grantsOfNamespace[g.Namespace], g)
	}
}

// Classes returns the names of all GatewayClasses, sorted.
func (v *View) Classes() []string { return v.classes.names() }

// Class returns a GatewayClass, or nil.
func (v *View) Class(name string) *gwapiv1.GatewayClass {
	return v.classes[types.NamespacedName{Name: name}]
}

// Gateways returns the keys of all Gateways, sorted.
func (v *View) Gateways() []types.NamespacedName { return v.gateways.keys() }

// Gateway returns a Gateway, or nil.
func (v *View) Gateway(key types.NamespacedName) *gwapiv1.Gateway { return v.gateways[key] }

// GatewaysIn returns the keys of the Gateways of a namespace, sorted.
func (v *View) GatewaysIn(namespace string) []types.NamespacedName { return v.gatewaysIn[namespace] }

// GatewayConfigs returns the keys of all GatewayConfigs, sorted.
func (v *View) GatewayConfigs() []types.NamespacedName { return v.configs.keys() }

// GatewayConfig returns a GatewayConfig, or nil.
func (v *View) GatewayConfig(key types.NamespacedName) *stunnerv1.GatewayConfig {
	return v.configs[key]
}

// Dataplanes returns the names of all Dataplanes, sorted.
func (v *View) Dataplanes() []string { return v.dataplanes.names() }

// Dataplane returns a Dataplane, or nil.
func (v *View) Dataplane(name string) *stunnerv1.Dataplane {
	return v.dataplanes[types.NamespacedName{Name: name}]
}

// StaticServices returns the keys of all StaticServices, sorted.
func (v *View) StaticServices() []types.NamespacedName { return v.staticServices.keys() }

// StaticService returns a StaticService, or nil.
func (v *View) StaticService(key types.NamespacedName) *stunnerv1.StaticService {
	return v.staticServices[key]
}

// Service returns a Service, or nil.
func (v *View) Service(key types.NamespacedName) *corev1.Service { return v.services[key] }

// EndpointSlicesOf returns the EndpointSlices of a Service, sorted by name.
func (v *View) EndpointSlicesOf(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	return v.slicesOfService[service]
}

// ServicesOf returns the Services that expose a Gateway, sorted by name.
func (v *View) ServicesOf(gateway types.NamespacedName) []*corev1.Service {
	return v.servicesOfGateway[gateway]
}

// Secret returns a Secret, or nil.
func (v *View) Secret(key types.NamespacedName) *corev1.Secret { return v.secrets[key] }

// Namespace returns a Namespace, or nil.
func (v *View) Namespace(name string) *corev1.Namespace {
	return v.namespaces[types.NamespacedName{Name: name}]
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
func (v *View) Nodes() []*corev1.Node { return v.nodesByName }

// table holds the objects of one kind. Reading a key that is not there gives nil.
type table[T Object] map[types.NamespacedName]T

func (t table[T]) keys() []types.NamespacedName {
	keys := make([]types.NamespacedName, 0, len(t))
	for key := range t {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// names is keys for a kind that has no namespaces.
func (t table[T]) names() []string {
	names := make([]string, 0, len(t))
	for _, key := range t.keys() {
		names = append(names, key.Name)
	}
	return names
}

func (t table[T]) sorted() []T {
	objects := make([]T, 0, len(t))
	for _, key := range t.keys() {
		objects = append(objects, t[key])
	}
	return objects
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
