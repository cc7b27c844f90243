package resource

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Put takes an object in, or in the place of the one of its kind and name, and returns the facts that have changed by that: none for an
// object of a kind that has no meaning for a Gateway, or that differs in nothing that has one. The object belongs to the view from then on.
func (v *View) Put(o Object) Facts { return v.set(o, false) }

// Delete takes the object of that kind and name out, and returns the facts that have changed by that.
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

// swap replaces an object of a table, notes it when that makes a difference, and reports whether it does.
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

// relist moves an item from lists to others, or into, or out of them.
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
	old, own := v.endpointSlices[key], Facts{} // nobody asks for a slice by its own name
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
	if swap(v.nodes, allNodes, key, o, gone, Facts{}) { // nobody asks for a node by its name
		relist(v.allNodes, allNodes, o, gone, changed, types.NamespacedName{})
	}
}

func (v *View) setGrant(key types.NamespacedName, o *gwapiv1.ReferenceGrant, gone bool, changed Facts) {
	if swap(v.grants, allGrantsOf, key, o, gone, Facts{}) { // nobody asks for a grant by its name
		relist(v.grantsOfNamespace, allGrantsOf, o, gone, changed, types.NamespacedName{Namespace: key.Namespace})
	}
}

// setRoute replaces a route. Which of the routes with one name counts may change with it.
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
		changed.addRoute(ref) // but no Gateway has a use for it
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
	refer(v.users.routesOfStaticService, allRoutesOfStaticService, ref.NamespacedName, used, v.staticServicesOf(ref.NamespacedName), changed)
}

func (r *Route) refOr(other *Route) RouteRef {
	if r != nil {
		return r.Ref
	}
	return other.Ref
}

// replaceRoute puts a route in the place of another; nil takes it out.
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

// same tells whether two forms of an object differ in nothing that has a meaning for a Gateway, its own status excepted. Kubelets write the status of their node
// every few seconds, and every object gets a new version with every write.
func same(a, b Object) bool {
	return reflect.DeepEqual(headOf(a), headOf(b)) && reflect.DeepEqual(bodyOf(a), bodyOf(b))
}

// head is what counts of the metadata.
type head struct {
	uid                 types.UID
	generation          int64
	created             metav1.Time
	deleting            bool
	labels, annotations map[string]string
	owners              []metav1.OwnerReference
}

func headOf(o Object) head {
	switch o.(type) {
	case *corev1.Secret:
		return head{annotations: map[string]string{GeneratedSecret: o.GetAnnotations()[GeneratedSecret], SharedUntil: o.GetAnnotations()[SharedUntil]}}
	case *corev1.Node, *discoveryv1.EndpointSlice:
		return head{labels: serviceLabel(o)}
	case *corev1.Namespace:
		return head{labels: o.GetLabels()}
	}
	return head{
		uid: o.GetUID(), generation: o.GetGeneration(), created: o.GetCreationTimestamp(), deleting: o.GetDeletionTimestamp() != nil,
		labels: o.GetLabels(), annotations: o.GetAnnotations(), owners: o.GetOwnerReferences(),
	}
}

func serviceLabel(o Object) map[string]string {
	return map[string]string{discoveryv1.LabelServiceName: o.GetLabels()[discoveryv1.LabelServiceName]}
}

// bodyOf is what counts of the rest.
func bodyOf(o Object) []any {
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		return []any{o.Spec}
	case *gwapiv1.Gateway:
		return []any{o.Spec}
	case *stunnerv1.GatewayConfig:
		return []any{o.Spec}
	case *stunnerv1.Dataplane:
		return []any{o.Spec}
	case *stunnerv1.StaticService:
		return []any{o.Spec}
	case *stunnerv1.UDPRoute:
		return []any{o.Spec}
	case *gwapiv1.UDPRoute:
		return []any{o.Spec}
	case *gwapiv1a2.UDPRoute:
		return []any{o.Spec}
	case *corev1.Service:
		return []any{o.Spec, o.Status}
	case *discoveryv1.EndpointSlice:
		return []any{o.AddressType, o.Endpoints, o.Ports}
	case *corev1.Secret:
		return []any{o.Type, o.Data}
	case *corev1.Node:
		return []any{o.Status.Addresses}
	case *gwapiv1.ReferenceGrant:
		return []any{o.Spec}
	case *Trust:
		return []any{o.Bundle}
	case *Scaling:
		return []any{o.Missing}
	case *Fleet:
		return []any{o.FleetState}
	case *Refusal:
		return []any{o.RefusalState}
	}
	return nil
}
