package resource

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// NewView returns a view of objects. Objects of kinds that no translation reads are ignored. If two objects have the
// same kind and name, which is only possible in a folder, the last one is used.
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
		nodeAddresses:       newLists(netip.Addr.Compare),
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

// Put adds or replaces an object and returns the facts that changed, see Fact. There are none if no translation reads
// the kind or the changed fields. The caller must not modify the object afterwards.
func (v *View) Put(o Object) Facts { return v.set(o, false) }

// Delete removes the object with the kind and name of o, and returns the facts that changed.
func (v *View) Delete(o Object) Facts { return v.set(o, true) }

func (v *View) set(o Object, gone bool) Facts {
	key, changed := KeyOf(o), Facts{}
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		before := configOf(v.classes[key])
		swap(v.classes, aClass, key, o, gone, changed)
		refer(v.users.classesOfConfig, allClassesOfConfig, key, before, configOf(v.classes[key]), changed)
	case *gwapiv1.Gateway:
		v.setGateway(key, o, gone, changed)
	case *stunnerv1.GatewayConfig:
		before := dataplaneOf(v.configs[key])
		swap(v.configs, aGatewayConfig, key, o, gone, changed)
		refer(v.users.configsOfDataplane, allConfigsOfDataplane, key, before, dataplaneOf(v.configs[key]), changed)
	case *stunnerv1.Dataplane:
		swap(v.dataplanes, aDataplane, key, o, gone, changed)
	case *stunnerv1.StaticService:
		swap(v.staticServices, aStaticService, key, o, gone, changed)
	case *stunnerv1.UDPRoute:
		v.setRoute(fromStunner(o), gone, changed)
	case *gwapiv1.UDPRoute:
		v.setRoute(fromOfficial(o, o.Spec, o.Status.Parents, official), gone, changed)
	case *gwapiv1a2.UDPRoute:
		v.setRoute(fromAlpha(o), gone, changed)
	case *corev1.Service:
		v.setService(key, o, gone, changed)
	case *discoveryv1.EndpointSlice:
		v.setSlice(key, o, gone, changed)
	case *corev1.Secret:
		swap(v.secrets, aSecret, key, o, gone, changed)
	case *corev1.Namespace:
		swap(v.namespaces, aNamespace, key, o, gone, changed)
	case *corev1.Node:
		v.setNode(key, o, gone, changed)
	case *Trust:
		swap(v.trust, theTrust, key, o, gone, changed)
	case *Scaling:
		swap(v.scaling, theScaling, key, o, gone, changed)
	case *Fleet:
		swap(v.fleets, aFleet, key, o, gone, changed)
	case *Refusal:
		swap(v.refusals, aRefusal, key, o, gone, changed)
	case *OverBudget:
		v.setOverBudget(key, o, gone, changed)
	case *gwapiv1.ReferenceGrant:
		v.setGrant(key, o, gone, changed)
	case *gwapiv1b1.ReferenceGrant:
		v.setGrant(key, (*gwapiv1.ReferenceGrant)(o), gone, changed)
	}
	return changed
}

// swap replaces an object of a table, or deletes it if gone is true, and adds its fact to changed. It reports whether
// the object differs in anything that a translation may read.
func swap[T Object](t table[T], s subject, key types.NamespacedName, o T, gone bool, changed Facts) bool {
	old, known := t[key]
	if gone {
		delete(t, key)
	} else {
		t[key] = o
	}
	if gone && !known {
		return false
	}
	if status := statusOf(o); status != nil && (gone || !known || !reflect.DeepEqual(statusOf(old), status)) {
		changed.add(s|itsStatus, key)
	}
	if !gone && known && same(old, o) {
		return false
	}
	changed.add(s, key)
	return true
}

// relist replaces an item in the lists of the given keys, or removes it if gone is true.
func relist[T any](l lists[T], s subject, item T, gone bool, changed Facts, keys ...types.NamespacedName) {
	l.remove(item, keys...)
	if !gone {
		l.insert(item, keys...)
	}
	for _, key := range keys {
		changed.add(s, key)
	}
}

func (v *View) setGateway(key types.NamespacedName, o *gwapiv1.Gateway, gone bool, changed Facts) {
	old := v.gateways[key]
	oldClass, oldConfig := parametersOf(old)
	if swap(v.gateways, aGateway, key, o, gone, changed) && (old == nil || gone) {
		relist(v.gatewaysOfNamespace, allGatewaysOf, key, gone, changed, types.NamespacedName{Namespace: key.Namespace})
	}
	class, config := parametersOf(v.gateways[key])
	refer(v.users.gatewaysOfClass, allGatewaysOfClass, key, oldClass, class, changed)
	refer(v.users.gatewaysOfConfig, allGatewaysOfConfig, key, oldConfig, config, changed)
}

func (v *View) setService(key types.NamespacedName, o *corev1.Service, gone bool, changed Facts) {
	old := v.services[key]
	if !swap(v.services, aService, key, o, gone, changed) {
		return
	}
	if key.Namespace == metav1.NamespaceSystem {
		if old != nil {
			relist(v.systemServices, allSystemServices, old, true, changed, types.NamespacedName{})
		}
		if !gone {
			relist(v.systemServices, allSystemServices, o, false, changed, types.NamespacedName{})
		}
	}
	if old != nil {
		if gateway, ok := GatewayOf(old); ok {
			relist(v.servicesOfGateway, allServicesOf, old, true, changed, gateway)
		}
	}
	if gateway, ok := GatewayOf(o); ok && !gone {
		relist(v.servicesOfGateway, allServicesOf, o, false, changed, gateway)
	}
}

func (v *View) setSlice(key types.NamespacedName, o *discoveryv1.EndpointSlice, gone bool, changed Facts) {
	old, own := v.endpointSlices[key], Facts{} // there is no lookup of a slice by name
	if !swap(v.endpointSlices, allSlicesOf, key, o, gone, own) {
		return
	}
	if old != nil {
		relist(v.slicesOfService, allSlicesOf, old, true, changed, serviceOf(old))
	}
	if !gone {
		relist(v.slicesOfService, allSlicesOf, o, false, changed, serviceOf(o))
	}
}

func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

func (v *View) setNode(key types.NamespacedName, o *corev1.Node, gone bool, changed Facts) {
	old := v.nodes[key]
	if !swap(v.nodes, allNodes, key, o, gone, Facts{}) { // there is no lookup of a node by name
		return
	}
	relist(v.allNodes, allNodes, o, gone, changed, types.NamespacedName{})
	for _, a := range addressesOf(old) {
		relist(v.nodeAddresses, nodeAddressesIn, a, true, changed, blockKey(AddressBlock(a)))
	}
	if gone {
		return
	}
	for _, a := range addressesOf(o) {
		relist(v.nodeAddresses, nodeAddressesIn, a, false, changed, blockKey(AddressBlock(a)))
	}
}

// addressesOf returns the IP addresses of a node without duplicates; none for nil.
func addressesOf(n *corev1.Node) (addresses []netip.Addr) {
	if n == nil {
		return nil
	}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && ip.Zone() == "" && !ip.IsUnspecified() && !slices.Contains(addresses, ip.Unmap()) {
			addresses = append(addresses, ip.Unmap())
		}
	}
	return addresses
}

func (v *View) setGrant(key types.NamespacedName, o *gwapiv1.ReferenceGrant, gone bool, changed Facts) {
	if swap(v.grants, allGrantsOf, key, o, gone, Facts{}) { // there is no lookup of a grant by name
		relist(v.grantsOfNamespace, allGrantsOf, o, gone, changed, types.NamespacedName{Namespace: key.Namespace})
	}
}

// setRoute replaces a route, or deletes it if gone is true. If routes of several API groups have the same name, only
// one is used, so the change may affect the others.
func (v *View) setRoute(r *Route, gone bool, changed Facts) {
	old := v.routes[r.Ref]
	if gone {
		r = nil
	}
	if old == nil && r == nil {
		return
	}
	ref := old.refOr(r)
	used := v.staticServicesOf(ref.NamespacedName)
	switch {
	case old == nil || r == nil || !same(old.Origin, r.Origin):
		v.replaceRoute(ref, r, changed)
	case !reflect.DeepEqual(old.Status, r.Status):
		changed.addRoute(ref) // only the translation of the route itself reads its status
		fallthrough
	default:
		old.Origin, old.Status = r.Origin, r.Status
	}
	for _, spelling := range spellings() {
		other := v.routes[RouteRef{NamespacedName: ref.NamespacedName, GroupVersion: spelling}]
		if other == nil {
			continue
		}
		if mask := v.maskOf(other.Ref); !reflect.DeepEqual(mask, other.MaskedBy) {
			masked := *other
			masked.MaskedBy = mask
			v.replaceRoute(other.Ref, &masked, changed)
		}
	}
	now := v.staticServicesOf(ref.NamespacedName)
	refer(v.users.routesOfStaticService, allRoutesOfStaticService, ref.NamespacedName, used, now, changed)
}

func (r *Route) refOr(other *Route) RouteRef {
	if r != nil {
		return r.Ref
	}
	return other.Ref
}

// replaceRoute replaces a route; nil deletes it.
func (v *View) replaceRoute(ref RouteRef, r *Route, changed Facts) {
	changed.addRoute(ref)
	if old := v.routes[ref]; old != nil {
		relist(v.routesOfGateway, allRoutesOf, old, true, changed, old.Gateways()...)
		delete(v.routes, ref)
	}
	if r != nil {
		v.routes[ref] = r
		relist(v.routesOfGateway, allRoutesOf, r, false, changed, r.Gateways()...)
	}
}

// setOverBudget replaces the OverBudget of a Gateway. Only the facts of routes whose refusal differs change.
func (v *View) setOverBudget(key types.NamespacedName, h *OverBudget, gone bool, changed Facts) {
	var before, now map[string]BudgetRefusal
	if old := v.overBudget[key]; old != nil {
		before = old.Routes
	}
	if gone || len(h.Routes) == 0 {
		delete(v.overBudget, key)
	} else {
		v.overBudget[key], now = h, h.Routes
	}
	for route, held := range now {
		if before[route] != held {
			changed.add(anOverBudget, nameOf(route))
		}
	}
	for route := range before {
		if _, still := now[route]; !still {
			changed.add(anOverBudget, nameOf(route))
		}
	}
}

func nameOf(route string) types.NamespacedName {
	namespace, name, _ := strings.Cut(route, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// maskOf returns the route that is used instead of the given one because it has the same name and a higher precedence;
// nil if the given one is used.
func (v *View) maskOf(ref RouteRef) *RouteRef {
	for _, spelling := range spellings()[:precedence(ref)] {
		mask := RouteRef{NamespacedName: ref.NamespacedName, GroupVersion: spelling}
		if v.routes[mask] != nil {
			return &mask
		}
	}
	return nil
}

// staticServicesOf returns the StaticServices to which the routes of this name refer. Routes that are not used because
// of MaskedBy do not count.
func (v *View) staticServicesOf(name types.NamespacedName) Set {
	keys := Set{}
	for _, spelling := range spellings() {
		r := v.routes[RouteRef{NamespacedName: name, GroupVersion: spelling}]
		if r == nil || r.MaskedBy != nil {
			continue
		}
		for _, b := range r.Backends {
			if b.Kind == string(stunnerv1.KindStaticService) {
				keys[b.Key()] = struct{}{}
			}
		}
	}
	return keys
}
