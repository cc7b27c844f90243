package translate

import (
	"cmp"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// boundPort is the port that the dataplane process binds.
func boundPort(v *resource.View, gw *gwapiv1.Gateway, l *listener) int32 {
	if v.Host() == nil {
		return l.target
	}
	key := resource.ListenerKey{Namespace: gw.Namespace, Gateway: gw.Name, Listener: l.name()}
	if port, ok := v.Host().Ports[key]; ok {
		return int32(port)
	}
	return l.target
}

// protocolOf reads a protocol by its full name, nothing for one that is unknown: short names mean something else in the Gateway API.
func protocolOf(name gwapiv1.ProtocolType) config.Protocol {
	if p, ok := config.ParseProtocol(string(name)); ok && strings.EqualFold(string(p), string(name)) {
		return p
	}
	return ""
}

// listener is a listener of a Gateway and everything that the translation finds out about it.
type listener struct {
	spec     gwapiv1.Listener
	protocol config.Protocol
	// target is the port in the pod.
	target int32

	// accepted, conflict and unresolved are what is wrong with it, each for the condition of its own.
	accepted   condition.Finding
	conflict   condition.Finding
	unresolved condition.Finding

	certificates []certificate
	// revoked is a certificate that must not be used, not even in its last good form.
	revoked bool
	kinds   []gwapiv1.RouteGroupKind
	routes  []*resource.Route
	// kept are the names of routes that wait, and keep something of what they had.
	kept    []string
	exposed bool
	address address

	// held is the form in which a listener that waits is published, and doors are the ports of Services that lead to it; both are empty where it is not
	// published.
	held  *config.Listener
	doors []door
}

func (l *listener) name() string { return string(l.spec.Name) }

// network is "udp" or "tcp": what the listener occupies a port of.
func (l *listener) network() string {
	if l.held != nil {
		return l.held.Protocol.Network()
	}
	return l.protocol.Network()
}

// served tells whether the listener can be part of a config.
func (l *listener) served() bool {
	return l.accepted.OK() && (!l.protocol.Secure() || len(l.certificates) > 0)
}

// listenersOf reads the listeners of a Gateway. A hostname is ignored: TURN has no place for one.
func listenersOf(v *resource.View, gw *gwapiv1.Gateway, w wishes, p parameters) []*listener {
	var listeners []*listener
	taken := portsOfProcess(v, p)
	for _, spec := range gw.Spec.Listeners {
		l := &listener{spec: spec, protocol: protocolOf(spec.Protocol)}
		l.target = cmp.Or(w.targetPorts[l.name()], int32(spec.Port))
		l.conflict = conflictRules.judge(neighbours{l, listeners})
		l.accepted = first(listenerRules.judge(l), l.spares(taken), l.conflict.As(condition.ReasonPortUnavailable))

		var uncertified, unroutable condition.Finding
		if l.protocol.Secure() || l.protocol == "" && spec.TLS != nil {
			// A misspelt protocol must not keep a certificate in use that was taken back.
			l.certificates, uncertified, l.revoked = certificatesOf(v, gw, l)
		}
		if l.kinds, unroutable = kindsOf(spec); l.protocol == "" {
			l.kinds = []gwapiv1.RouteGroupKind{} // the routes that it has stay with it, like the rest of it
		}
		l.unresolved = first(uncertified, unroutable)
		listeners = append(listeners, l)
	}
	return listeners
}

// listenerRules judge a listener alone.
var listenerRules = rules[*listener]{speaksTURN, hasPort, terminatesTLS}

func speaksTURN(l *listener) condition.Finding {
	if l.protocol == "" {
		return condition.ProtocolUnknown(string(l.spec.Protocol), config.ProtocolNames())
	}
	return condition.Finding{}
}

func hasPort(l *listener) condition.Finding {
	if l.spec.Port < 1 || l.spec.Port > 65535 {
		return condition.PortInvalid(int32(l.spec.Port))
	}
	return condition.Finding{}
}

func terminatesTLS(l *listener) condition.Finding {
	if l.protocol.Secure() && l.spec.TLS != nil && l.spec.TLS.Mode != nil && *l.spec.TLS.Mode != gwapiv1.TLSModeTerminate {
		return condition.PassthroughUnsupported(string(*l.spec.TLS.Mode))
	}
	return condition.Finding{}
}

// portsOfProcess are the TCP ports on which the process in a pod answers itself, with what for. On a host it gets others than its listeners.
func portsOfProcess(v *resource.View, p parameters) map[int32]string {
	if v.Host() != nil || p.dataplane == nil {
		return nil
	}
	taken := map[int32]string{}
	if !p.dataplane.Spec.DisableHealthCheck {
		taken[manifest.HealthPort] = "probes"
	}
	if p.dataplane.Spec.EnableMetricsEndpoint {
		taken[manifest.MetricsPort] = "metrics"
	}
	return taken
}

// spares leaves the process its ports: one of the two could not be served, and clients would reach what is not for them.
func (l *listener) spares(taken map[int32]string) condition.Finding {
	if use, clash := taken[l.target]; clash && l.protocol.Stream() {
		return condition.PortOfProcess(l.target, use)
	}
	return condition.Finding{}
}

// neighbours are a listener and those that stand before it. Of two that cannot be served together the earlier one is.
type neighbours struct {
	*listener
	earlier []*listener
}

var conflictRules = rules[neighbours]{neighbours.ownName, neighbours.ownPort, neighbours.ownTarget}

func (n neighbours) ownName() condition.Finding {
	for _, e := range n.earlier {
		if e.name() == n.name() {
			return condition.NameConflict(n.name())
		}
	}
	return condition.Finding{}
}

func (n neighbours) ownPort() condition.Finding {
	for _, e := range n.rivals() {
		if e.spec.Port == n.spec.Port {
			return condition.PortConflict(n.network(), int32(n.spec.Port), e.name())
		}
	}
	return condition.Finding{}
}

// ownTarget sees two listeners that differ outside and meet inside the pod.
func (n neighbours) ownTarget() condition.Finding {
	for _, e := range n.rivals() {
		if e.target == n.target {
			return condition.PortConflict(n.network(), n.target, e.name())
		}
	}
	return condition.Finding{}
}

// rivals are the earlier listeners that occupy ports of the same network.
func (n neighbours) rivals() []*listener {
	var rivals []*listener
	for _, e := range n.earlier {
		if n.protocol != "" && e.accepted.OK() && e.network() == n.network() {
			rivals = append(rivals, e)
		}
	}
	return rivals
}

// kindsOf returns the kinds of routes that a listener takes: UDPRoutes of both groups, unless allowedRoutes narrows them down.
func kindsOf(spec gwapiv1.Listener) ([]gwapiv1.RouteGroupKind, condition.Finding) {
	all := []gwapiv1.RouteGroupKind{routeKind(stunnerv1.GroupName), routeKind(gwapiv1.GroupName)}
	if spec.AllowedRoutes == nil || len(spec.AllowedRoutes.Kinds) == 0 {
		return all, condition.Finding{}
	}
	taken := []gwapiv1.RouteGroupKind{}
	var refused []string
	for _, wanted := range spec.AllowedRoutes.Kinds {
		known := false
		for _, kind := range all {
			if wanted.Kind == kind.Kind && valueOr(wanted.Group, gwapiv1.GroupName) == *kind.Group {
				taken, known = append(taken, kind), true
			}
		}
		if !known {
			refused = append(refused, string(wanted.Kind))
		}
	}
	if len(refused) > 0 {
		return taken, condition.RouteKinds(refused)
	}
	return taken, condition.Finding{}
}

func routeKind(group gwapiv1.Group) gwapiv1.RouteGroupKind {
	return gwapiv1.RouteGroupKind{Group: &group, Kind: resource.KindUDPRoute}
}
