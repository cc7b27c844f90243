package condition

import (
	"fmt"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Problems of a route and its backends. Messages refer to a backend as NAMESPACE/NAME.

// Masked means that the route by, which has the same name in another API group or version, is used instead of this
// route.
func Masked(by string) Finding {
	return finding(ReasonPending, "UDPRoute %s has the same name and counts in the place of this one", by).about("metadata.name").
		remedy("rename or remove one of them")
}

// GatewayMissing means that the Gateway in a parent reference does not exist.
func GatewayMissing(key string) Finding {
	return finding(ReasonNoMatchingParent, "Gateway %s does not exist", key).about("name").dependsOn("Gateway", key)
}

// NoListener means that no listener has the section name and port of the parent reference.
func NoListener(gateway, section string, port int32) Finding {
	wanted, field := "listener", "name"
	if section != "" {
		wanted += fmt.Sprintf(" %q", section)
	}
	if port != 0 {
		wanted, field = wanted+fmt.Sprintf(" on port %d", port), "port"
	}
	if section != "" {
		field = "sectionName"
	}
	return finding(ReasonNoMatchingParent, "Gateway %s has no %s", gateway, wanted).about(field)
}

// NamespaceNotAllowed means that the listener allows no routes from the namespace of the route.
func NamespaceNotAllowed(listener, namespace, from string) Finding {
	refused := finding(ReasonNotAllowed, "listener %q takes no routes from namespace %s: its allowedRoutes.namespaces.from is %s", listener, namespace, from)
	if from == string(gwapiv1.NamespacesFromSelector) {
		return refused.dependsOn("Namespace", namespace)
	}
	return refused
}

// KindNotAllowed means that the listener allows no routes of the API group of the route.
func KindNotAllowed(listener, group string) Finding {
	return finding(ReasonNotAllowed, "listener %q takes no UDPRoutes of group %s: its allowedRoutes.kinds names others", listener, group).
		hint("add the kind to allowedRoutes.kinds of the listener")
}

// BackendKind means that a backend is neither a Service nor a StaticService.
func BackendKind(backend Place, group, kind string) Finding {
	return finding(ReasonInvalidKind, "backend %s: kind %s of group %q is not supported", backend, kind, group).aboutPlace(backend).
		remedy("use a Service, or a StaticService of group stunner.l7mp.io")
}

// BackendMissing means that the backend does not exist.
func BackendMissing(backend Place, kind string) Finding {
	return finding(ReasonBackendNotFound, "backend %s: there is no such %s", backend, kind).aboutPlace(backend).
		dependsOn(kind, backend.Text)
}

// BackendExternalName means that the backend is a Service of type ExternalName.
func BackendExternalName(backend Place) Finding {
	return finding(ReasonInvalidKind, "backend %s: a Service of type ExternalName has no endpoints", backend).aboutPlace(backend).
		remedy("use a StaticService")
}

// BackendPorts means that the port range is invalid.
func BackendPorts(backend Place, port, endPort int32) Finding {
	return finding(ReasonUnsupportedValue, "backend %s: port %d with endPort %d is no port range", backend, port, endPort).aboutPlace(backend).
		remedy("use 1 <= port <= endPort <= 65535")
}

// BackendDenied means that an entry of spec.deniedBackends applies to the backend.
func BackendDenied(backend Place) Finding {
	return finding(ReasonRefNotPermitted, "backend %s: spec.deniedBackends of the GatewayConfig denies it", backend).aboutPlace(backend).
		remedy("name another Service, or have it taken off that list")
}

// BackendIsAPIServer means that the backend is the Kubernetes API server.
func BackendIsAPIServer(backend Place) Finding {
	return finding(ReasonRefNotPermitted, "backend %s: it is the API server", backend).aboutPlace(backend).
		remedy("name another Service; only spec.clusterAccess of the GatewayConfig of the GatewayClass opens it")
}

// prefixField returns the path of a prefix of a StaticService.
func prefixField(i int) string { return fmt.Sprintf("spec.prefixes[%d]", i) }

// PrefixDenied means that routes must not reach a prefix of a StaticService: it is a single address of the cluster, or
// lies within the loopback or cloud metadata addresses.
func PrefixDenied(service string, i int, prefix string) Finding {
	return finding(ReasonRefNotPermitted, "prefix %q belongs to a node, to the API server, to a Service of kube-system, or to the host of a pod: it is left out", prefix).
		about(prefixField(i)).in("StaticService", service).
		advice("only spec.clusterAccess of the GatewayConfig of the GatewayClass opens it")
}

// PrefixNotAllowed means that a prefix of a StaticService contains a part of a network that the GatewayConfig denies.
func PrefixNotAllowed(service string, i int, prefix string) Finding {
	return finding(ReasonRefNotPermitted, "prefix %q contains a part of deniedPrefixes of the GatewayConfig, or of a network of the cluster, which requireReferenceGrants denies: it is left out", prefix).
		about(prefixField(i)).in("StaticService", service).
		advice("use a Service or a prefix outside, or have the prefix added to spec.allowedPrefixes of the GatewayConfig of the GatewayClass")
}

// BackendMixed means that one route has both backends with addresses and backends with DNS names.
func BackendMixed(backend Place) Finding {
	return finding(ReasonUnsupportedValue, "backend %s: a route cannot mix Services, which are DNS names while endpoint discovery is off, with StaticServices", backend).aboutPlace(backend).
		remedy("use two routes")
}

// PrefixInvalid means that a prefix of a StaticService is invalid.
func PrefixInvalid(service string, i int, prefix string) Finding {
	return finding(ReasonInvalidPrefix, "prefix %q is neither an IP address nor a CIDR prefix: it is left out", prefix).
		about(prefixField(i)).in("StaticService", service)
}

// TooManyEndpoints means that a route has more endpoints than spec.budget.endpointsPerRoute.
func TooManyEndpoints(endpoints, limit int) Finding {
	return finding(ReasonBudgetExceeded, "the route leads to %d endpoints, spec.budget.endpointsPerRoute of the GatewayConfig allows %d", endpoints, limit).
		remedy("name fewer backends or ports, use shorter prefixes, or have the budget raised; until then it keeps those endpoints that it had")
}

// GatewayOverBudget means that a route does not fit into a budget of its Gateway. budget describes this budget, and
// asks is the amount of noun (routes, endpoints, bytes or host names) that the route needs. The message does not
// mention other routes, because they may belong to other tenants.
func GatewayOverBudget(gateway, budget string, asks int, noun string) Finding {
	return finding(ReasonBudgetExceeded, "Gateway %s has no room for the route, which asks for at least %d %s: %s", gateway, asks, noun, budget).
		advice("name fewer backends or ports, use shorter prefixes or another Gateway, or have the budget raised; until then it keeps those endpoints that it had, as far as there is room")
}

// RouteBudget describes the limit of routes for GatewayOverBudget.
func RouteBudget(limit int32) string {
	return fmt.Sprintf("spec.budget.routes of the GatewayConfig allows %d", limit)
}

// EndpointBudget describes the maximum number of endpoints of a Gateway, as argument of GatewayOverBudget.
func EndpointBudget(limit int32) string {
	return fmt.Sprintf("spec.budget.endpoints of the GatewayConfig allows %d for all routes", limit)
}

// NamespaceBudget describes the maximum number of endpoints of the routes of a namespace, as argument of
// GatewayOverBudget. elsewhere is the number of their endpoints at older Gateways.
func NamespaceBudget(limit int32, namespace string, elsewhere int) string {
	return fmt.Sprintf("spec.budget.endpointsPerNamespace of the GatewayConfig allows %d for all routes of namespace %s, "+
		"which have %d at older Gateways", limit, namespace, elsewhere)
}

// OperatorBudget describes the maximum number of endpoints of the routes of a namespace that the operator's memory
// allows, as argument of GatewayOverBudget.
func OperatorBudget(limit int, namespace string) string {
	return fmt.Sprintf("the memory of the operator allows %d for all routes of namespace %s", limit, namespace)
}

// ConfigLimit describes a limit of the size of a config, as argument of GatewayOverBudget.
func ConfigLimit(limit int) string { return fmt.Sprintf("a config has at most %d", limit) }

// RoutesOverBudget warns that some routes of a Gateway exceed a budget.
func RoutesOverBudget() Finding {
	return finding(ReasonBudgetExceeded, "some routes wait because they exceed a budget").remedy("see their conditions")
}
