package resource

import (
	"cmp"
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
// same kind and name, the last one is used.
func NewView(objects []Object) *View {
	v := &View{
		classes:        table[*gwapiv1.GatewayClass]{},
		gateways:       table[*gwapiv1.Gateway]{},
		configs:        table[*stunnerv1.GatewayConfig]{},
		dataplanes:     table[*stunnerv1.Dataplane]{},
		staticServices: table[*stunnerv1.StaticService]{},
		revocations:    table[*stunnerv1.Revocation]{},
		services:       table[*corev1.Service]{},
		endpointSlices: table[*discoveryv1.EndpointSlice]{},
		secrets:        table[*corev1.Secret]{},
		namespaces:     table[*corev1.Namespace]{},
		nodes:          table[*corev1.Node]{},
		grants:         table[*gwapiv1.ReferenceGrant]{},
		routes:         map[RouteRef]*Route{},
		trust:          table[*Trust]{},
		scaling:        table[*Scaling]{},
		installations:  table[*Installations]{},
		rollouts:       table[*Rollout]{},
		rejections:     table[*Rejection]{},
		nodePorts:      table[*NodePorts]{},
		overBudget:     table[*OverBudget]{},
		certificates:   map[types.NamespacedName]*Certificate{},

		allNodes:            newLists(byKey[*corev1.Node]),
		nodeAddresses:       newLists(netip.Addr.Compare),
		networks:            networks{},
		nodeProviders:       nodeProviders{},
		gatewaysOfNamespace: newLists(compareKeys),
		routesOfGateway:     newLists(func(a, b *Route) int { return compareRoutes(a.Ref, b.Ref) }),
		servicesOfGateway:   newLists(byKey[*corev1.Service]),
		systemServices:      newLists(byKey[*corev1.Service]),
		slicesOfService:     newLists(byKey[*discoveryv1.EndpointSlice]),
		grantsOfNamespace:   newLists(byKey[*gwapiv1.ReferenceGrant]),
		users:               newUsers(),

		revocationsOfNamespace: newLists(byAge),
		roomyRevocations:       map[string]map[string]*stunnerv1.Revocation{},
	}
	for _, o := range objects {
		v.Put(o)
	}
	return v
}

// Put adds or replaces an object and returns the facts that changed, see Fact. It returns no facts if no translation
// reads the kind or the changed fields. The caller must not modify the object afterwards.
func (v *View) Put(o Object) Facts { return v.set(o, false) }

// Delete removes the object with the kind and name of o, and returns the facts that changed.
func (v *View) Delete(o Object) Facts { return v.set(o, true) }

func (v *View) set(o Object, del bool) Facts {
	key, changed := KeyOf(o), Facts{}
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		before := configOf(v.classes[key])
		replace(v.classes, aClass, key, o, del, changed)
		setUsers(v.users.classesOfConfig, allClassesOfConfig, key, before, configOf(v.classes[key]), changed)
	case *gwapiv1.Gateway:
		v.setGateway(key, o, del, changed)
	case *stunnerv1.GatewayConfig:
		before := dataplaneOf(v.configs[key])
		replace(v.configs, aGatewayConfig, key, o, del, changed)
		setUsers(v.users.configsOfDataplane, allConfigsOfDataplane, key, before, dataplaneOf(v.configs[key]), changed)
	case *stunnerv1.Dataplane:
		before := workloadOf(v.dataplanes[key])
		replace(v.dataplanes, aDataplane, key, o, del, changed)
		setUsers(v.users.dataplanesOfWorkload, allDataplanesOfWorkload, key, before, workloadOf(v.dataplanes[key]), changed)
	case *stunnerv1.StaticService:
		replace(v.staticServices, aStaticService, key, o, del, changed)
	case *stunnerv1.Revocation:
		v.setRevocation(key, o, del, changed)
	case *stunnerv1.UDPRoute:
		v.setRoute(fromStunner(o), del, changed)
	case *gwapiv1.UDPRoute:
		v.setRoute(fromGatewayAPI(o, o.Spec, o.Status.Parents, gatewayAPI), del, changed)
	case *gwapiv1a2.UDPRoute:
		v.setRoute(fromAlpha(o), del, changed)
	case *corev1.Service:
		v.setService(key, o, del, changed)
	case *discoveryv1.EndpointSlice:
		v.setSlice(key, o, del, changed)
	case *corev1.Secret:
		delete(v.certificates, key)
		replace(v.secrets, aSecret, key, o, del, changed)
	case *corev1.Namespace:
		replace(v.namespaces, aNamespace, key, o, del, changed)
	case *corev1.Node:
		v.setNode(key, o, del, changed)
	case *Trust:
		replace(v.trust, theTrust, key, o, del, changed)
	case *Scaling:
		replace(v.scaling, theScaling, key, o, del, changed)
	case *Installations:
		replace(v.installations, theInstallations, key, o, del, changed)
	case *Rollout:
		replace(v.rollouts, aRollout, key, o, del, changed)
	case *Rejection:
		replace(v.rejections, aRejection, key, o, del, changed)
	case *NodePorts:
		if own := (Facts{}); replace(v.nodePorts, theNodePorts, key, o, del, own) {
			changed.add(theNodePorts, types.NamespacedName{})
		}
	case *OverBudget:
		v.setOverBudget(key, o, del, changed)
	case *gwapiv1.ReferenceGrant:
		v.setGrant(key, o, del, changed)
	case *gwapiv1b1.ReferenceGrant:
		v.setGrant(key, (*gwapiv1.ReferenceGrant)(o), del, changed)
	}
	return changed
}

// replace replaces an object in a table, or deletes it if del is true, and adds the facts of the object that differ to
// changed. It reports whether the object differs in a field that a translation may read.
func replace[T Object](t table[T], s subject, key types.NamespacedName, o T, del bool, changed Facts) bool {
	old, known := t[key]
	if del {
		delete(t, key)
	} else {
		t[key] = o
	}
	if del && !known {
		return false
	}
	if status := statusOf(o); status != nil && (del || !known || !reflect.DeepEqual(statusOf(old), status)) {
		changed.add(s|itsStatus, key)
	}
	if !del && known && same(old, o) {
		return false
	}
	changed.add(s, key)
	return true
}

// reindex replaces an item in the lists of the given keys, or removes it from these lists if del is true.
func reindex[T any](l lists[T], s subject, item T, del bool, changed Facts, keys ...types.NamespacedName) {
	l.remove(item, keys...)
	if !del {
		l.insert(item, keys...)
	}
	for _, key := range keys {
		changed.add(s, key)
	}
}

func (v *View) setGateway(key types.NamespacedName, o *gwapiv1.Gateway, del bool, changed Facts) {
	old := v.gateways[key]
	oldClass, oldConfig := parametersOf(old)
	if replace(v.gateways, aGateway, key, o, del, changed) && (old == nil || del) {
		reindex(v.gatewaysOfNamespace, allGatewaysOf, key, del, changed, types.NamespacedName{Namespace: key.Namespace})
	}
	class, config := parametersOf(v.gateways[key])
	setUsers(v.users.gatewaysOfClass, allGatewaysOfClass, key, oldClass, class, changed)
	setUsers(v.users.gatewaysOfConfig, allGatewaysOfConfig, key, oldConfig, config, changed)
}

func (v *View) setService(key types.NamespacedName, o *corev1.Service, del bool, changed Facts) {
	old := v.services[key]
	if !replace(v.services, aService, key, o, del, changed) {
		return
	}
	v.networks.replace(networksOfService(old), present(networksOfService(o), !del), changed)
	if key.Namespace == metav1.NamespaceSystem {
		if old != nil {
			reindex(v.systemServices, allSystemServices, old, true, changed, types.NamespacedName{})
		}
		if !del {
			reindex(v.systemServices, allSystemServices, o, false, changed, types.NamespacedName{})
		}
	}
	if old != nil {
		if gateway, ok := GatewayOf(old); ok {
			reindex(v.servicesOfGateway, allServicesOf, old, true, changed, gateway)
		}
	}
	if gateway, ok := GatewayOf(o); ok && !del {
		reindex(v.servicesOfGateway, allServicesOf, o, false, changed, gateway)
	}
}

func (v *View) setSlice(key types.NamespacedName, o *discoveryv1.EndpointSlice, del bool, changed Facts) {
	// facts of a single slice are dropped, because nothing looks up a slice by name
	old, own := v.endpointSlices[key], Facts{}
	if !replace(v.endpointSlices, allSlicesOf, key, o, del, own) {
		return
	}
	v.networks.replace(networksOfSlice(old), present(networksOfSlice(o), !del), changed)
	if old != nil {
		reindex(v.slicesOfService, allSlicesOf, old, true, changed, serviceOf(old))
	}
	if !del {
		reindex(v.slicesOfService, allSlicesOf, o, false, changed, serviceOf(o))
	}
}

func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

func (v *View) setNode(key types.NamespacedName, o *corev1.Node, del bool, changed Facts) {
	old := v.nodes[key]
	if !replace(v.nodes, allNodes, key, o, del, Facts{}) { // there is no lookup of a node by name
		return
	}
	reindex(v.allNodes, allNodes, o, del, changed, types.NamespacedName{})
	v.networks.replace(networksOfNode(old), present(networksOfNode(o), !del), changed)
	v.nodeProviders.replace(old, o, del, changed)
	for _, a := range append(addressesOf(old), addressesOf(o)...) {
		if v.networks[AddressBlock(a)] > 0 { // Networks omits blocks with addresses of nodes
			changed.add(theNetworks, types.NamespacedName{})
		}
	}
	for _, a := range addressesOf(old) {
		reindex(v.nodeAddresses, nodeAddressesIn, a, true, changed, blockKey(AddressBlock(a)))
	}
	if del {
		return
	}
	for _, a := range addressesOf(o) {
		reindex(v.nodeAddresses, nodeAddressesIn, a, false, changed, blockKey(AddressBlock(a)))
	}
}

// addressesOf returns the IP addresses of a node without duplicates. For a nil node, it returns no addresses.
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

func (v *View) setGrant(key types.NamespacedName, o *gwapiv1.ReferenceGrant, del bool, changed Facts) {
	if replace(v.grants, allGrantsOf, key, o, del, Facts{}) { // there is no lookup of a grant by name
		reindex(v.grantsOfNamespace, allGrantsOf, o, del, changed, types.NamespacedName{Namespace: key.Namespace})
	}
}

// setRoute replaces a route, or deletes it if del is true. If UDPRoutes of several API groups have the same name,
// only one of them is used, so the change of one may affect the others.
func (v *View) setRoute(r *Route, del bool, changed Facts) {
	old := v.routes[r.Ref]
	if del {
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
		changed.addRoute(ref) // only the translation of the route reads the status of the route
		fallthrough
	default:
		old.Origin, old.Status = r.Origin, r.Status
	}
	for _, version := range routeVersions() {
		other := v.routes[RouteRef{NamespacedName: ref.NamespacedName, GroupVersion: version}]
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
	setUsers(v.users.routesOfStaticService, allRoutesOfStaticService, ref.NamespacedName, used, now, changed)
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
		reindex(v.routesOfGateway, allRoutesOf, old, true, changed, old.Gateways()...)
		delete(v.routes, ref)
	}
	if r != nil {
		v.routes[ref] = r
		reindex(v.routesOfGateway, allRoutesOf, r, false, changed, r.Gateways()...)
	}
}

// setOverBudget replaces the list of the routes that exceed a budget of a Gateway. A fact changes only for a route
// whose entry in the list differs, and for the Revocations if the Gateway begins or ceases to ignore them.
func (v *View) setOverBudget(key types.NamespacedName, h *OverBudget, del bool, changed Facts) {
	var before, now map[string]BudgetRefusal
	old := cmp.Or(v.overBudget[key], &OverBudget{})
	before = old.Routes
	if old.IgnoresRevocations != (h.IgnoresRevocations && !del) {
		changed.add(revocationsAt, key)
	}
	if del || len(h.Routes) == 0 && !h.IgnoresRevocations {
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

// maskOf returns the route that is used instead of the given route because it has the same name and a higher
// precedence; nil if the given route is used.
func (v *View) maskOf(ref RouteRef) *RouteRef {
	for _, version := range routeVersions()[:precedence(ref)] {
		mask := RouteRef{NamespacedName: ref.NamespacedName, GroupVersion: version}
		if v.routes[mask] != nil {
			return &mask
		}
	}
	return nil
}

// staticServicesOf returns the StaticServices to which the routes of this name refer. A route that is not used, because
// another route masks it, is ignored.
func (v *View) staticServicesOf(name types.NamespacedName) Set {
	keys := Set{}
	for _, version := range routeVersions() {
		r := v.routes[RouteRef{NamespacedName: name, GroupVersion: version}]
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
