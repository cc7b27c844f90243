package condition

import "fmt"

// What may be wrong with a route and its backends.

// Masked says that a route of the same name, in another spelling, counts in the place of this one.
func Masked(by string) Finding {
	return finding(ReasonPending, "UDPRoute %s has the same name and counts in the place of this one: rename or remove one of them", by)
}

// GatewayMissing says that the parent does not exist.
func GatewayMissing(key string) Finding {
	return finding(ReasonNoMatchingParent, "Gateway %s does not exist", key)
}

// NoListener says that no listener has the section name and port of the parent reference.
func NoListener(gateway, section string, port int32) Finding {
	wanted := "listener"
	if section != "" {
		wanted += fmt.Sprintf(" %q", section)
	}
	if port != 0 {
		wanted += fmt.Sprintf(" on port %d", port)
	}
	return finding(ReasonNoMatchingParent, "Gateway %s has no %s", gateway, wanted)
}

// NamespaceNotAllowed says that the listener takes no routes from this namespace.
func NamespaceNotAllowed(listener, namespace, from string) Finding {
	return finding(ReasonNotAllowed, "listener %q takes no routes from namespace %s: its allowedRoutes.namespaces.from is %s", listener, namespace, from)
}

// KindNotAllowed says that the listener takes no routes of this spelling.
func KindNotAllowed(listener, group string) Finding {
	return finding(ReasonNotAllowed, "listener %q takes no UDPRoutes of group %s: its allowedRoutes.kinds names others", listener, group)
}

// BackendKind says that a backend is neither a Service nor a StaticService.
func BackendKind(backend, group, kind string) Finding {
	return finding(ReasonInvalidKind, "backend %s: kind %s of group %q is not supported: use a Service, or a StaticService of group stunner.l7mp.io", backend, kind, group)
}

// BackendMissing says that the backend does not exist.
func BackendMissing(kind, backend string) Finding {
	return finding(ReasonBackendNotFound, "backend %s: there is no such %s", backend, kind)
}

// BackendExternalName says that a Service stands for a name outside the cluster.
func BackendExternalName(backend string) Finding {
	return finding(ReasonInvalidKind, "backend %s: a Service of type ExternalName has no endpoints: use a StaticService", backend)
}

// BackendPorts says that a port range is none.
func BackendPorts(backend string, port, endPort int32) Finding {
	return finding(ReasonUnsupportedValue, "backend %s: port %d with endPort %d is no port range: use 1 <= port <= endPort <= 65535", backend, port, endPort)
}

// BackendDenied says that no route may reach the backend.
func BackendDenied(backend string) Finding {
	return finding(ReasonRefNotPermitted, "backend %s: spec.deniedBackends of the GatewayConfig denies it: name another Service, or have it taken off that list", backend)
}

// BackendIsAPIServer says that no route may reach the API servers.
func BackendIsAPIServer(backend string) Finding {
	return finding(ReasonRefNotPermitted, "backend %s: it is the API server: name another Service; only spec.clusterAccess of the GatewayConfig of the GatewayClass opens it", backend)
}

// PrefixDenied says that an entry of a StaticService is the address of a part of the cluster.
func PrefixDenied(service, prefix string) Finding {
	return finding(ReasonRefNotPermitted, "StaticService %s: prefix %q belongs to a node, to the API server, to a Service of kube-system, or to the host of a pod: it is left out; "+
		"only spec.clusterAccess of the GatewayConfig of the GatewayClass opens it", service, prefix)
}

// BackendMixed says that one route cannot name addresses and DNS names.
func BackendMixed(backend string) Finding {
	return finding(ReasonUnsupportedValue, "backend %s: a route cannot mix Services, which are DNS names while endpoint discovery is off, with StaticServices: use two routes", backend)
}

// PrefixInvalid says that an entry of a StaticService is no prefix.
func PrefixInvalid(service, prefix string) Finding {
	return finding(ReasonInvalidPrefix, "StaticService %s: prefix %q is neither an IP address nor a CIDR prefix: it is left out", service, prefix)
}

// RouteTooWide says that a route alone leads to more endpoints than a route may.
func RouteTooWide(endpoints, limit int) Finding {
	return finding(ReasonBudgetExceeded, "the route leads to %d endpoints, spec.budget.endpointsPerRoute of the GatewayConfig allows %d: name fewer backends or ports, "+
		"use shorter prefixes, or have the budget raised; until then it keeps those endpoints that it had", endpoints, limit)
}

// GatewayFull says that a route does not fit beside the others. It says nothing of these: they may belong to somebody else.
func GatewayFull(gateway, budget string, asks int, noun string) Finding {
	return finding(ReasonBudgetExceeded, "Gateway %s has no room for the route, which asks for at least %d %s: %s; name fewer backends or ports, "+
		"use shorter prefixes or another Gateway, or have the budget raised; until then it keeps those endpoints that it had, as far as there is room", gateway, asks, noun, budget)
}

// RoutesWait is a remark on a Gateway that does not serve all of its routes.
const RoutesWait = "some routes wait because they exceed a budget: see their conditions"
