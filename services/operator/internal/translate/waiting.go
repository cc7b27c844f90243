package translate

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// waiting are the listeners that stay as they were published, each name once.
func (d draft) waiting() []Waiting {
	var waiting []Waiting
	for i, l := range d.listeners {
		named := func(other *listener) bool { return other.name() == l.name() }
		if l.waits() && slices.IndexFunc(d.listeners, named) == i {
			waiting = append(waiting, waitingAs(d.configListener(l)))
		}
	}
	return waiting
}

func waitingAs(l config.Listener) Waiting {
	return Waiting{
		Name: l.Name, Routes: l.Routes, Protocol: l.Protocol, PublicAddress: l.PublicAddress, PublicPort: l.PublicPort,
		ServiceAddresses: l.ServiceAddresses,
	}
}

// ConfigAfter returns the config to publish in the place of the one that is published now, which may be nil: Config, and with it those
// waiting listeners that have been published before. Where these clash with the others, because two listeners want one socket, the others
// wait as well. It is nil when nothing must be published.
func (r Result) ConfigAfter(published *config.Config) *config.Config {
	if r.Config == nil || published == nil || len(r.Waiting) == 0 {
		return r.Config
	}
	next := r.Config.Clone()
	next.Listeners = append(next.Listeners, asPublished(r.Waiting, published.Listeners)...)
	if acceptable(next) != nil {
		all := slices.Clone(r.Waiting)
		for _, l := range r.Config.Listeners {
			all = append(all, waitingAs(l))
		}
		next.Listeners = asPublished(all, published.Listeners)
	}
	slices.SortStableFunc(next.Listeners, func(a, b config.Listener) int { return r.place(a) - r.place(b) })
	return &next
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

// Managed tells whether the dataplanes of the Gateway are made here, and not by somebody else.
func (r Result) Managed() bool {
	return slices.ContainsFunc(r.Objects, func(o resource.Object) bool {
		switch o.(type) {
		case *appsv1.Deployment, *appsv1.DaemonSet:
			return true
		}
		return false
	})
}

// shown is a config with its clusters under the names that people know.
func shown(c config.Config, named []config.Cluster) config.Config {
	c = c.Clone()
	c.Clusters = named
	for _, cluster := range named {
		route, split := strings.CutSuffix(cluster.Name, servicesSuffix)
		for i := range c.Listeners {
			if l := &c.Listeners[i]; split && slices.Contains(l.Routes, route) {
				l.Routes = append(l.Routes, cluster.Name)
			}
		}
	}
	return c
}

// asPublished returns those listeners that have been published, with the routes and the address that they have now.
func asPublished(waiting []Waiting, published []config.Listener) []config.Listener {
	var listeners []config.Listener
	for _, w := range waiting {
		i := slices.IndexFunc(published, func(p config.Listener) bool { return p.Name == w.Name })
		if i >= 0 {
			l := published[i]
			l.Routes = slices.Clone(w.Routes)
			if w.PublicAddress != "" && w.PublicPort == l.PublicPort && w.Protocol.Network() == l.Protocol.Network() {
				l.PublicAddress, l.ServiceAddresses = w.PublicAddress, slices.Clone(w.ServiceAddresses)
			}
			listeners = append(listeners, l)
		}
	}
	return listeners
}

// place is where a listener stands in the Gateway: clients are offered listeners in that order.
func (r Result) place(l config.Listener) int {
	for i, s := range r.Status.Listeners {
		if strings.HasSuffix(l.Name, "/"+string(s.Name)) {
			return i
		}
	}
	return len(r.Status.Listeners)
}

// Socket is what a listener needs of the host that serves it.
type Socket struct {
	Listener string
	// Waits says that the listener keeps what it has, if it has something: Network and Port are not known.
	Waits   bool
	Network string // udp or tcp
	Port    int32
}

// Sockets lists what the listeners of a Gateway need, in their order; ours is false for a Gateway of somebody else's class.
func Sockets(v *resource.View, key types.NamespacedName, opt Options) (sockets []Socket, ours bool) {
	gw := v.Gateway(key)
	class := classOf(v, gw, opt)
	if class == nil {
		return nil, false
	}
	p, _ := parametersOf(v, gw, class, opt)
	w, _ := wishesOf(gw, p.config)
	for _, l := range listenersOf(v, gw, w, p) {
		switch {
		case l.served():
			sockets = append(sockets, Socket{Listener: l.name(), Network: l.network(), Port: int32(l.spec.Port)})
		case l.waits():
			sockets = append(sockets, Socket{Listener: l.name(), Waits: true})
		}
	}
	return sockets, true
}
