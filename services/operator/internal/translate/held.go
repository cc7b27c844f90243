package translate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// waits tells whether the listener is to stay as it was published: a mistake takes nothing away. A certificate that was taken back does.
func (l *listener) waits() bool { return !l.served() && !l.revoked }

// waiting names the listeners that stay as they were published, each name once.
func (d draft) waiting() []string {
	var names []string
	for i, l := range d.listeners {
		if l.waits() && d.firstOfName(i) {
			names = append(names, d.listenerName(l))
		}
	}
	return names
}

// firstOfName tells whether a listener is the first one of its name, which is the one that counts.
func (d draft) firstOfName(at int) bool {
	named := func(other *listener) bool { return other.name() == d.listeners[at].name() }
	return slices.IndexFunc(d.listeners, named) == at
}

// hold gives each listener that waits the form in which it is published, with its ports. One that cannot be served beside that waits as well: nobody can
// tell which of the two is meant to have the port.
func (d draft) hold() {
	if d.opt.Published == nil {
		return
	}
	for again := true; again; {
		again = false
		for i, l := range d.listeners {
			if l.held == nil && l.waits() && d.firstOfName(i) {
				l.held = publishedListener(d.opt.Published, d.listenerName(l))
				l.doors = d.doorsOf(l)
			}
		}
		for _, l := range d.listeners {
			if found := d.spareHeld(l); l.served() && !found.OK() {
				l.conflict, l.accepted, again = found, found.As(condition.ReasonPortUnavailable), true
			}
		}
	}
}

func publishedListener(c *config.Config, name string) *config.Listener {
	i := slices.IndexFunc(c.Listeners, func(l config.Listener) bool { return l.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Listeners[i]
}

// spareHeld finds a listener that waits and has the port of this one. On a host every listener has a port of its own.
func (d draft) spareHeld(l *listener) condition.Finding {
	for _, other := range d.listeners {
		if other.held == nil || other == l || other.network() != l.network() {
			continue
		}
		inService := slices.ContainsFunc(other.doors, func(door door) bool { return door.port.Port == int32(l.spec.Port) })
		switch inPod := boundPort(d.view, d.gateway, l); {
		case int(inPod) == other.held.Port:
			return condition.PortHeld(l.network(), inPod, other.name())
		case inService && d.view.Host() == nil:
			return condition.PortHeld(l.network(), int32(l.spec.Port), other.name())
		}
	}
	return condition.Finding{}
}

// door is a port of a Service that leads to a listener that waits. Without the name of a Service it is in the one that carries the transport.
type door struct {
	service string
	port    manifest.Port
}

// doorsOf returns the ports that the Services of the Gateway have for a listener as it is published. Where there are none, because a Service is gone, it
// is the port that is written, or else the one that clients were told.
func (d draft) doorsOf(l *listener) (doors []door) {
	if l.held == nil {
		return nil
	}
	kept := manifest.Port{Name: l.name(), Protocol: corev1.Protocol(strings.ToUpper(l.network())), TargetPort: int32(l.held.Port)}
	for _, svc := range d.view.ServicesOf(resource.KeyOf(d.gateway)) {
		for _, p := range svc.Spec.Ports {
			leads := p.Protocol == kept.Protocol && cmp.Or(p.TargetPort.IntVal, p.Port) == kept.TargetPort
			if !leads || !slices.Contains(serviceNames(d.gateway), svc.Name) {
				continue
			}
			if kept.Port, kept.NodePort = p.Port, 0; d.wishes.nodePorts[l.name()] != 0 {
				kept.NodePort = p.NodePort
			}
			doors = append(doors, door{svc.Name, kept})
		}
	}
	if len(doors) > 0 {
		return doors
	}
	if kept.Port = int32(l.held.PublicPort); hasPort(l).OK() && d.onlyOneOn(l) {
		kept.Port = int32(l.spec.Port)
	}
	if d.view.Host() != nil { // a Service that is only rendered has the ports of a pod
		kept.TargetPort = l.target
	}
	if kept.Port == 0 {
		return nil
	}
	return []door{{"", kept}}
}

// onlyOneOn tells whether no other listener is written with the port of this one, on its network.
func (d draft) onlyOneOn(l *listener) bool {
	return !slices.ContainsFunc(d.listeners, func(other *listener) bool {
		return other != l && other.spec.Port == l.spec.Port && other.network() == l.network()
	})
}

// heldListener is a listener that waits, as it was published but for what its clients may reach, and for the address of the port that was published.
func (d draft) heldListener(l *listener) config.Listener {
	c, now := *l.held, d.configListener(l)
	c.Routes = now.Routes
	if now.PublicAddress != "" && now.PublicPort == c.PublicPort && now.Protocol.Network() == c.Protocol.Network() {
		c.PublicAddress, c.ServiceAddresses = now.PublicAddress, now.ServiceAddresses
	}
	return c
}

// keeping adds to what is wrong with a listener that nothing was taken away.
func (l *listener) keeping(found condition.Finding) condition.Finding {
	if found.OK() || !l.waits() {
		return found
	}
	return condition.Kept(found)
}

// ObjectsWith returns the objects that go with the config that is published after all: the ConfigMap shows that one, and a NetworkPolicy
// lets clients in to its listeners.
func (r Result) ObjectsWith(published *config.Config) []resource.Object {
	objects := slices.Clone(r.Objects)
	if published == nil {
		return objects
	}
	for i, o := range objects {
		switch o := o.(type) {
		case *corev1.ConfigMap:
			objects[i] = manifest.Show(o, shown(*published, r.Named))
		case *networkingv1.NetworkPolicy:
			objects[i] = manifest.Admit(o, *published, r.RelayPorts)
		}
	}
	return objects
}
