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

// A listener is held while it cannot be served as it is written: it stays as it is published, because a mistake must
// not end calls.
//
//   - holdListeners finds the published form of each held listener, with the Service ports that lead to it.
//   - update puts the current routes into the published form, which stays in the config; exposure.go keeps the
//     Service ports.
//   - Result.HeldListeners names the held listeners. An operator that has just started has no published config: its
//     provider publishes nothing while a held listener may be in use at the dataplanes.
//   - Result.ObjectsWith adapts the objects to the config that the provider publishes after all.
//
// The other listeners of the Gateway are served as they are written. A problem of the whole Gateway sets Result.Hold
// instead.

// heldListener is the published form of a held listener.
type heldListener struct {
	config config.Listener
	ports  []heldPort
}

// heldPort is a port of a Service that leads to a held listener. Without a Service name, it belongs to the Service of
// its transport.
type heldPort struct {
	service string
	port    manifest.Port
}

// held reports whether the listener must stay as it is published. A listener with a revoked certificate is not held: it
// must not be used.
func (l *listener) held() bool { return !l.served() && !l.revoked }

// heldListenerNames returns the names of the held listeners, without duplicates.
func (d draft) heldListenerNames() []string {
	var names []string
	for i, l := range d.listeners {
		if l.held() && d.firstOfName(i) {
			names = append(names, d.listenerName(l))
		}
	}
	return names
}

// firstOfName reports whether no earlier listener has the same name. Of several listeners with one name, the first one
// is translated.
func (d draft) firstOfName(at int) bool {
	named := func(other *listener) bool { return other.name() == d.listeners[at].name() }
	return slices.IndexFunc(d.listeners, named) == at
}

// holdListeners gives each held listener its published form. A listener that conflicts with a published form becomes
// held as well, because it is unknown which of the two is meant to have the port; hence the loop.
func (d draft) holdListeners() {
	if d.opt.Published == nil {
		return
	}
	for again := true; again; {
		again = false
		for i, l := range d.listeners {
			if l.published != nil || !l.held() || !d.firstOfName(i) {
				continue
			}
			if l.published = publishedListener(d.opt.Published, d.listenerName(l)); l.published != nil {
				l.published.ports = d.heldPorts(l)
			}
		}
		for _, l := range d.listeners {
			if found := d.heldPortConflict(l); l.served() && !found.OK() {
				l.conflict, l.accepted, again = found, found.As(condition.ReasonPortUnavailable), true
			}
		}
	}
}

// publishedListener returns a listener of the published config, or nil.
func publishedListener(c *config.Config, name string) *heldListener {
	i := slices.IndexFunc(c.Listeners, func(l config.Listener) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &heldListener{config: c.Listeners[i]}
}

// heldPortConflict finds a held listener that has the port of this listener, in the pod or in a Service. The file
// provider gives every listener its own port, whatever its Service port is.
func (d draft) heldPortConflict(l *listener) condition.Finding {
	for _, other := range d.listeners {
		if other.published == nil || other == l || other.network() != l.network() {
			continue
		}
		samePort := func(p heldPort) bool { return p.port.Port == int32(l.spec.Port) }
		inService := slices.ContainsFunc(other.published.ports, samePort)
		switch inPod := boundPort(d.view, d.gateway, l); {
		case int(inPod) == other.published.config.Port:
			return condition.PortHeld(l.network(), inPod, other.name())
		case inService && d.view.Host() == nil:
			return condition.PortHeld(l.network(), int32(l.spec.Port), other.name())
		}
	}
	return condition.Finding{}
}

// heldPorts returns the ports of the Gateway's Services that lead to a held listener. If a Service was deleted and
// there are none, the port is that of the spec if it is valid and free, and otherwise the published public port.
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
	if d.view.Host() != nil { // the file provider renders Services as they would be in a cluster
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

// onlyOneOnPort reports whether no other listener of the spec has the port of this listener on the same network.
func (d draft) onlyOneOnPort(l *listener) bool {
	return !slices.ContainsFunc(d.listeners, func(other *listener) bool {
		return other != l && other.spec.Port == l.spec.Port && other.network() == l.network()
	})
}

// update returns the published form with the current routes. The current public address is used only if the public port
// and the network are unchanged.
func (h *heldListener) update(now config.Listener) config.Listener {
	c := h.config
	c.Routes = now.Routes
	if now.PublicAddress != "" && now.PublicPort == c.PublicPort && now.Protocol.Network() == c.Protocol.Network() {
		c.PublicAddress, c.ServiceAddresses = now.PublicAddress, now.ServiceAddresses
	}
	return c
}

// noteHeld adds to the finding of a held listener that the published form stays.
func (l *listener) noteHeld(found condition.Finding) condition.Finding {
	if found.OK() || !l.held() {
		return found
	}
	return condition.Kept(found)
}

// ObjectsWith returns Objects adapted to the config that the provider publishes, which may differ from r.Config: the
// ConfigMap shows that config, and the NetworkPolicy opens the ports of its listeners.
func (r Result) ObjectsWith(published *config.Config) []resource.Object {
	objects := slices.Clone(r.Objects)
	if published == nil {
		return objects
	}
	for i, o := range objects {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			objects[i] = manifest.Show(o, withServiceNames(*published, r.Named))
		case *networkingv1.NetworkPolicy:
			objects[i] = manifest.Admit(o, *published, r.RelayPorts)
		}
	}
	return objects
}
