package translate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// A listener is held while it cannot be served as specified, for example after its port was changed to an invalid port.
// Its published config, that is its entry in the config that dataplanes run, stays in use, because a mistake must not
// end calls. A listener with a revoked certificate is not held, and a served listener on its port replaces it.
//
//   - holdListeners finds the published config of each held listener, and the Service ports that lead to it.
//   - update sets the current routes in the published config of a listener, which becomes part of the new config.
//     exposure.go keeps the Service ports.
//   - After a restart, the operator takes the published config from where it is stored. If it cannot, it publishes no
//     config that lacks a listener in use, see lostListener.
//   - Result.ObjectsWith adapts the generated objects to the config that is finally published.
//
// The other listeners of the Gateway are served as specified. A problem that affects the whole Gateway is a reason for
// the decision Held instead, and everything published stays.

// heldListener is the published config of a held listener.
type heldListener struct {
	config config.Listener
	ports  []heldPort
}

// heldPort is a Service port that leads to a held listener.
type heldPort struct {
	// service is the name of the existing Service that has the port. If it is empty, no existing Service has the port,
	// and the port is added to the Service for the listener's transport.
	service string
	port    manifest.Port
}

// held reports whether the published config of the listener must stay in use. A listener with a revoked certificate is
// not held, because the certificate must not stay in use.
func (l *listener) held() bool { return !l.served() && !l.revoked }

// lostListener returns the name of a held listener that would be lost if the config were published; "" if there is
// none. This can only happen after a restart, and if the published config cannot be read: the config then lacks the
// held listeners, because Options.Published, from which they are kept, is nil.
func (d draft) lostListener() string {
	if d.opt.Published != nil {
		return ""
	}
	for i, l := range d.listeners {
		if l.held() && d.firstOfName(i) && slices.Contains(d.opt.Previous, d.listenerName(l)) {
			return l.name()
		}
	}
	return ""
}

// firstOfName reports whether no earlier listener has the same name as the listener at this index. If several listeners
// have one name, only the first of them can be served or held.
func (d draft) firstOfName(at int) bool {
	named := func(other *listener) bool { return other.name() == d.listeners[at].name() }
	return slices.IndexFunc(d.listeners, named) == at
}

// holdListeners sets the published config of each held listener.
//
// If the spec gives one port to two listeners, both listeners are held, because the spec does not determine which of
// them gets the port. The other listener may share its published port with further listeners, so the search is repeated
// until nothing changes.
//
// Finally, a listener that is held for another reason is replaced if a served listener uses one of its ports, because
// the spec gives the port to the served listener.
func (d draft) holdListeners() {
	if d.opt.Published == nil {
		return
	}
	for changed := true; changed; {
		changed = false
		for i, l := range d.listeners {
			if l.published != nil || !l.held() || !d.firstOfName(i) {
				continue
			}
			if l.published = publishedListener(d.opt.Published, d.listenerName(l)); l.published != nil {
				l.published.ports = d.heldPorts(l)
			}
		}
		for _, l := range d.listeners {
			for _, held := range d.listeners {
				if l.served() && !held.conflict.OK() && l.spec.Port == held.spec.Port && d.usesPortOf(l, held) {
					l.conflict = condition.PortHeld(l.network(), int32(l.spec.Port), held.name())
					l.accepted, changed = l.conflict.As(condition.ReasonPortUnavailable), true
				}
			}
		}
	}
	for _, held := range d.listeners {
		if slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.served() && d.usesPortOf(l, held) }) {
			held.published = nil
		}
	}
}

// publishedListener returns the entry of a listener in the published config, or nil.
func publishedListener(c *config.Config, name string) *heldListener {
	i := slices.IndexFunc(c.Listeners, func(l config.Listener) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &heldListener{config: c.Listeners[i]}
}

// usesPortOf reports whether a listener uses a port of a held listener, in the pod or in a Service. With the file
// provider, ports in Services are ignored, because it assigns a host port to every listener.
func (d draft) usesPortOf(l, held *listener) bool {
	if held.published == nil || l == held || l.network() != held.network() {
		return false
	}
	samePort := func(p heldPort) bool { return d.view.Host() == nil && p.port.Port == int32(l.spec.Port) }
	return int(boundPort(d.view, d.gateway, l)) == held.published.config.Port ||
		slices.ContainsFunc(held.published.ports, samePort)
}

// heldPorts returns the ports of the Gateway's Services that forward to a held listener. If there is no such port
// because the Service was deleted, it returns the port in the listener's spec if this port is valid and unique, and
// otherwise the published public port.
func (d draft) heldPorts(l *listener) (ports []heldPort) {
	published := l.published.config
	protocol := corev1.Protocol(strings.ToUpper(l.network()))
	kept := manifest.Port{Name: l.name(), Protocol: protocol, TargetPort: int32(published.Port)}
	for _, svc := range d.view.ServicesOf(resource.KeyOf(d.gateway)) {
		for _, p := range svc.Spec.Ports {
			leads := p.Protocol == protocol && cmp.Or(p.TargetPort.IntVal, p.Port) == kept.TargetPort
			if !leads || !slices.Contains(serviceNames(d.gateway), svc.Name) {
				continue
			}
			if kept.Port, kept.NodePort = p.Port, 0; d.annotations.nodePorts[l.name()] != 0 {
				kept.NodePort = p.NodePort
			}
			ports = append(ports, heldPort{svc.Name, kept})
		}
	}
	if len(ports) > 0 {
		return ports
	}
	if kept.Port = int32(published.PublicPort); portValid(l).OK() && d.onlyOneOnPort(l) {
		kept.Port = int32(l.spec.Port)
	}
	if d.view.Host() != nil { // with the file provider, the generated Services look as they would in a cluster
		kept.TargetPort = l.target
	}
	if kept.Port == 0 {
		return nil
	}
	return []heldPort{{"", kept}}
}

// serviceNames returns all names that Services of a Gateway may have.
func serviceNames(gw *gwapiv1.Gateway) []string {
	return []string{gw.Name, gw.Name + "-tcp", gw.Name + "-udp"}
}

// onlyOneOnPort reports whether no other listener in the spec has the same port and network as this listener.
func (d draft) onlyOneOnPort(l *listener) bool {
	return !slices.ContainsFunc(d.listeners, func(other *listener) bool {
		return other != l && other.spec.Port == l.spec.Port && other.network() == l.network()
	})
}

// update returns the published config of a held listener with its current routes, and the current prefixes of the load
// balancers that send the PROXY protocol. The current public addresses replace the published ones only if port and
// network did not change: otherwise the current addresses belong to the new spec, which is not served.
func (h *heldListener) update(now config.Listener) config.Listener {
	c := h.config
	c.Routes = now.Routes
	if now.PublicAddress != "" && now.PublicPort == c.PublicPort && now.Protocol.Network() == c.Protocol.Network() {
		c.PublicAddress, c.PublicAddresses, c.PublicHost = now.PublicAddress, now.PublicAddresses, now.PublicHost
		c.ServiceAddresses = now.ServiceAddresses
	}
	if c.Protocol.Network() == now.Protocol.Network() { // load balancers already use the current setting
		c.ProxyProtocol = now.ProxyProtocol
	}
	return c
}

// noteHeld adds to the finding about a held listener that its published config stays in use, if there is one.
func (l *listener) noteHeld(found condition.Finding) condition.Finding {
	if found.OK() || l.published == nil {
		return found
	}
	return condition.Kept(found)
}

// ObjectsWith returns the generated objects for the published config, which may differ from r.Config: the ConfigMap
// shows the published config, and the NetworkPolicy opens the ports of its listeners.
func (r Result) ObjectsWith(published *config.Config) []resource.Object {
	objects := slices.Clone(r.Objects)
	if published == nil {
		return objects
	}
	for i, o := range objects {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			objects[i] = manifest.WithConfig(o, withServiceNames(*published, r.Named))
		case *networkingv1.NetworkPolicy:
			objects[i] = manifest.WithPorts(o, *published, r.RelayPorts)
		}
	}
	return objects
}
