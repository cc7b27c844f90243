package translate

import (
	"cmp"
	"strings"

	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// boundPort returns the port that the dataplane process binds for a listener.
func boundPort(v *resource.View, gw *gwapiv1.Gateway, l *listener) int32 {
	if port, ok := v.Host().Port(resource.KeyOf(gw), l.name()); ok {
		return int32(port)
	}
	return l.target
}

// protocolOf returns the protocol with this name, or "". The short names UDP, TCP, TLS and DTLS are read as TURN-UDP,
// TURN-TCP, TURN-TLS and TURN-DTLS, as the existing system does. The finding says which name to write instead.
func protocolOf(name gwapiv1.ProtocolType) (config.Protocol, condition.Finding) {
	p, _ := config.ParseProtocol(string(name))
	if p == "" || strings.EqualFold(string(p), string(name)) {
		return p, condition.Finding{}
	}
	return p, condition.ProtocolWarning(string(name), string(p))
}

// listener is a listener of a Gateway with the results of its translation.
type listener struct {
	spec     gwapiv1.Listener
	protocol config.Protocol
	// target is the listener's port in the pod.
	target int32

	// accepted, conflict and unresolved are the findings for the conditions Accepted, Conflicted and ResolvedRefs.
	accepted   condition.Finding
	conflict   condition.Finding
	unresolved condition.Finding
	// deprecated are the findings of condition DeprecatedInput. The listener is served in spite of them.
	deprecated []condition.Finding

	certificates []*resource.Certificate
	// revoked means that a reference to a certificate is not permitted any more, for example because its ReferenceGrant
	// was removed. Even the published config of the listener must then not stay in use.
	revoked bool
	// kinds are the route kinds that the listener allows.
	kinds []gwapiv1.RouteGroupKind
	// routes are the served routes that attach to the listener.
	routes []*resource.Route
	// keptRoutes are the names of the routes that exceed a budget and keep some of their published endpoints.
	keptRoutes []string
	// exposed means that a Service has a port for the listener.
	exposed bool
	// announced are the endpoints in the URLs that clients receive.
	announced announced

	// published is the published config of a held listener, see held.go; nil if the listener is not held, was never
	// published, or lost its port to a served listener.
	published *heldListener
}

func (l *listener) name() string { return string(l.spec.Name) }

// network returns the network of the listener's port, "udp" or "tcp". For a held listener, it is the network in the
// published config.
func (l *listener) network() string {
	if l.published != nil {
		return l.published.config.Protocol.Network()
	}
	return l.protocol.Network()
}

// served reports whether the listener can be served as specified.
func (l *listener) served() bool {
	return l.accepted.OK() && (!l.protocol.Secure() || len(l.certificates) > 0)
}

// listenersOf translates the listeners of a Gateway. It ignores the field hostname, because TURN has nothing like the
// Host header of HTTP.
func listenersOf(
	v *resource.View, gw *gwapiv1.Gateway, a annotations, p parameters, onNodes hostPorts,
) []*listener {
	var listeners []*listener
	taken := processPorts(v, a, p)
	for _, spec := range gw.Spec.Listeners {
		protocol, shortName := protocolOf(spec.Protocol)
		l := &listener{spec: spec, protocol: protocol, deprecated: []condition.Finding{shortName}}
		l.target = cmp.Or(a.targetPorts[l.name()], int32(spec.Port))
		l.conflict = conflictRules.firstFinding(conflictCheck{l, listeners})
		conflict := l.conflict.As(condition.ReasonPortUnavailable)
		l.accepted = first(listenerRules.firstFinding(l), l.avoidsProcessPorts(taken), l.avoidsHostPorts(onNodes), conflict)

		var unroutable condition.Finding
		var certs certificates
		if l.protocol.Secure() || l.protocol == "" && spec.TLS != nil {
			// Certificates are checked even if the protocol is misspelt: such a listener keeps its published config,
			// but not with a revoked certificate.
			certs = certificatesOf(v, gw, spec, p.legacyGrants())
			l.certificates, l.revoked = certs.all, certs.revoked
			l.deprecated = append(l.deprecated, certs.ungranted...)
		}
		if l.kinds, unroutable = kindsOf(spec); l.protocol == "" {
			l.kinds = []gwapiv1.RouteGroupKind{} // shown in the status; its routes still attach
		}
		l.unresolved = first(certs.finding, unroutable)
		listeners = append(listeners, l)
	}
	return listeners
}

// listenerRules check a listener without regard to the other listeners.
var listenerRules = rules[*listener]{protocolKnown, portValid, tlsTerminated, selectorParses}

func protocolKnown(l *listener) condition.Finding {
	if l.protocol == "" {
		return condition.ProtocolUnknown(string(l.spec.Protocol), config.ProtocolNames())
	}
	return condition.Finding{}
}

func portValid(l *listener) condition.Finding {
	if l.spec.Port < 1 || l.spec.Port > 65535 {
		return condition.PortInvalid(int32(l.spec.Port))
	}
	return condition.Finding{}
}

func tlsTerminated(l *listener) condition.Finding {
	if l.protocol.Secure() && l.spec.TLS != nil && l.spec.TLS.Mode != nil &&
		*l.spec.TLS.Mode != gwapiv1.TLSModeTerminate {
		return condition.PassthroughUnsupported(string(*l.spec.TLS.Mode))
	}
	return condition.Finding{}
}

func selectorParses(l *listener) condition.Finding {
	if _, err := selectorOf(l.spec); err != nil {
		return condition.RouteSelectorInvalid(err)
	}
	return condition.Finding{}
}

// processPorts returns the TCP ports of the health check and metrics endpoints in a pod, with their purpose for
// messages. It returns none for the file provider, which assigns different ports to endpoints and listeners.
func processPorts(v *resource.View, a annotations, p parameters) map[int32]string {
	if v.Host() != nil || p.dataplane == nil {
		return nil
	}
	taken := map[int32]string{}
	if !p.dataplane.Spec.DisableHealthCheck {
		taken[a.processPorts.Health] = "probes"
	}
	if p.dataplane.Spec.EnableMetricsEndpoint {
		taken[a.processPorts.Metrics] = "metrics"
	}
	return taken
}

// avoidsProcessPorts rejects a TCP listener on the port of a health check or metrics endpoint: the two would collide in
// the pod.
func (l *listener) avoidsProcessPorts(taken map[int32]string) condition.Finding {
	if use, clash := taken[l.target]; clash && l.protocol.Stream() {
		return condition.PortOfProcess(l.target, use)
	}
	return condition.Finding{}
}

// conflictCheck is a listener together with the listeners before it in the spec. If two listeners conflict, the earlier
// one is served.
type conflictCheck struct {
	*listener
	earlier []*listener
}

var conflictRules = rules[conflictCheck]{
	conflictCheck.nameUnique, conflictCheck.portUnique, conflictCheck.targetPortUnique,
}

func (n conflictCheck) nameUnique() condition.Finding {
	for _, e := range n.earlier {
		if e.name() == n.name() {
			return condition.NameConflict(n.name())
		}
	}
	return condition.Finding{}
}

func (n conflictCheck) portUnique() condition.Finding {
	for _, e := range n.sameNetwork() {
		if e.spec.Port == n.spec.Port {
			return condition.PortConflict(n.network(), int32(n.spec.Port), e.name())
		}
	}
	return condition.Finding{}
}

// targetPortUnique finds listeners that have different Service ports but the same port in the pod.
func (n conflictCheck) targetPortUnique() condition.Finding {
	for _, e := range n.sameNetwork() {
		if e.target == n.target {
			return condition.PortConflict(n.network(), n.target, e.name())
		}
	}
	return condition.Finding{}
}

// sameNetwork returns the earlier listeners that are accepted and use the same network.
func (n conflictCheck) sameNetwork() []*listener {
	var same []*listener
	for _, e := range n.earlier {
		if n.protocol != "" && e.accepted.OK() && e.network() == n.network() {
			same = append(same, e)
		}
	}
	return same
}

// kindsOf returns the route kinds that a listener supports: UDPRoutes of both API groups, or those that
// allowedRoutes.kinds selects. The finding names the unsupported kinds in allowedRoutes.kinds.
func kindsOf(spec gwapiv1.Listener) ([]gwapiv1.RouteGroupKind, condition.Finding) {
	all := []gwapiv1.RouteGroupKind{routeKind(stunnerv1.GroupName), routeKind(gwapiv1.GroupName)}
	if spec.AllowedRoutes == nil || len(spec.AllowedRoutes.Kinds) == 0 {
		return all, condition.Finding{}
	}
	allowed := []gwapiv1.RouteGroupKind{}
	var refused []string
	for _, wanted := range spec.AllowedRoutes.Kinds {
		known := false
		for _, kind := range all {
			if wanted.Kind == kind.Kind && ptr.Deref(wanted.Group, gwapiv1.GroupName) == *kind.Group {
				allowed, known = append(allowed, kind), true
			}
		}
		if !known {
			refused = append(refused, string(wanted.Kind))
		}
	}
	if len(refused) > 0 {
		return allowed, condition.RouteKinds(refused)
	}
	return allowed, condition.Finding{}
}

func routeKind(group gwapiv1.Group) gwapiv1.RouteGroupKind {
	return gwapiv1.RouteGroupKind{Group: &group, Kind: resource.KindUDPRoute}
}
