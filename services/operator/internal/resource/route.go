package resource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// KindUDPRoute is the kind of a route in each API group.
const KindUDPRoute gwapiv1.Kind = "UDPRoute"

// The API groups and versions of UDPRoute in the Gateway API.
var (
	gatewayAPI      = schema.GroupVersion(gwapiv1.GroupVersion)
	gatewayAPIAlpha = schema.GroupVersion(gwapiv1a2.GroupVersion)
)

// RouteRef names a UDPRoute. A namespace may have UDPRoutes of the same name in several API groups and versions.
type RouteRef struct {
	types.NamespacedName
	GroupVersion schema.GroupVersion
}

// String returns NAMESPACE/NAME (GROUP/VERSION), for logs and messages.
func (r RouteRef) String() string {
	return r.NamespacedName.String() + " (" + r.GroupVersion.String() + ")"
}

// Route is a UDPRoute of any API group and version.
type Route struct {
	Ref RouteRef
	// Origin is the original object.
	Origin Object
	// Parents is spec.parentRefs.
	Parents []gwapiv1.ParentReference
	// Backends are the backends of all rules, in the order of the spec.
	Backends []Backend
	// refs are the numbers of backendRefs of the rules.
	refs []int
	// Status is the current status.parents, including the entries of other controllers.
	Status []gwapiv1.RouteParentStatus
	// MaskedBy is the route that is used instead of this route because it has the same name and a higher precedence;
	// nil if this route is used.
	MaskedBy *RouteRef
}

// Backend is a backend of a route, with defaults filled in.
type Backend struct {
	Group     string
	Kind      string
	Namespace string
	Name      string
	// Port and EndPort are 0 if they are unset.
	Port    int32
	EndPort int32
}

// Key returns the namespace and name of the backend.
func (b Backend) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// BackendField returns the path of the backendRef of an element of Backends.
func (r *Route) BackendField(i int) string {
	rule := 0
	for rule < len(r.refs)-1 && i >= r.refs[rule] {
		i -= r.refs[rule]
		rule++
	}
	return fmt.Sprintf("spec.rules[%d].backendRefs[%d]", rule, i)
}

// Gateways returns the Gateways among the parents of the route, sorted and without duplicates.
func (r *Route) Gateways() []types.NamespacedName {
	var keys []types.NamespacedName
	for _, p := range r.Parents {
		if key, ok := r.GatewayOf(p); ok {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}

// GatewayOf returns the Gateway to which a parent reference refers. The result is false if the parent is not a Gateway.
func (r *Route) GatewayOf(p gwapiv1.ParentReference) (types.NamespacedName, bool) {
	if deref(p.Group, gwapiv1.GroupName) != gwapiv1.GroupName || deref(p.Kind, KindGateway) != KindGateway {
		return types.NamespacedName{}, false
	}
	namespace := string(deref(p.Namespace, gwapiv1.Namespace(r.Ref.Namespace)))
	return types.NamespacedName{Namespace: namespace, Name: string(p.Name)}, true
}

func compareRoutes(a, b RouteRef) int {
	return cmp.Or(compareKeys(a.NamespacedName, b.NamespacedName), cmp.Compare(precedence(a), precedence(b)))
}

// routeVersions returns the API groups and versions of UDPRoute in order of precedence. If routes of several groups or
// versions have the same name, the first one in this order is used.
func routeVersions() []schema.GroupVersion {
	return []schema.GroupVersion{stunnerv1.GroupVersion, gatewayAPI, gatewayAPIAlpha}
}

func precedence(ref RouteRef) int { return slices.Index(routeVersions(), ref.GroupVersion) }

func fromStunner(o *stunnerv1.UDPRoute) *Route {
	r := &Route{
		Ref:     RouteRef{NamespacedName: KeyOf(o), GroupVersion: stunnerv1.GroupVersion},
		Origin:  o,
		Parents: o.Spec.ParentRefs,
		Status:  o.Status.Parents,
	}
	for _, rule := range o.Spec.Rules {
		r.refs = append(r.refs, len(rule.BackendRefs))
		for _, b := range rule.BackendRefs {
			backend := r.backend(b.Group, b.Kind, b.Namespace, b.Name)
			backend.Port, backend.EndPort = int32(deref(b.Port, 0)), int32(deref(b.EndPort, 0))
			r.Backends = append(r.Backends, backend)
		}
	}
	return r
}

// fromGatewayAPI converts a UDPRoute of the Gateway API. It ignores the port of a backend, which is mandatory in the
// Gateway API, so that the route allows all ports of the backend.
func fromGatewayAPI(
	o Object, spec gwapiv1.UDPRouteSpec, status []gwapiv1.RouteParentStatus, version schema.GroupVersion,
) *Route {
	r := &Route{
		Ref:     RouteRef{NamespacedName: KeyOf(o), GroupVersion: version},
		Origin:  o,
		Parents: spec.ParentRefs,
		Status:  status,
	}
	for _, rule := range spec.Rules {
		r.refs = append(r.refs, len(rule.BackendRefs))
		for _, b := range rule.BackendRefs {
			r.Backends = append(r.Backends, r.backend(b.Group, b.Kind, b.Namespace, b.Name))
		}
	}
	return r
}

func fromAlpha(o *gwapiv1a2.UDPRoute) *Route {
	spec := gwapiv1.UDPRouteSpec{CommonRouteSpec: o.Spec.CommonRouteSpec}
	for _, rule := range o.Spec.Rules {
		spec.Rules = append(spec.Rules, gwapiv1.UDPRouteRule(rule))
	}
	return fromGatewayAPI(o, spec, o.Status.Parents, gatewayAPIAlpha)
}

func (r *Route) backend(
	group *gwapiv1.Group, kind *gwapiv1.Kind, namespace *gwapiv1.Namespace, name gwapiv1.ObjectName,
) Backend {
	return Backend{
		Group:     strings.TrimSpace(string(deref(group, ""))),
		Kind:      string(deref(kind, stunnerv1.KindService)),
		Namespace: string(deref(namespace, gwapiv1.Namespace(r.Ref.Namespace))),
		Name:      string(name),
	}
}
