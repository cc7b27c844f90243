package server

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// SetLocalAddresses replaces the addresses of this host. Relay sockets may be bound to them. The sockets of listeners
// on them are denied as peers.
func (s *Server) SetLocalAddresses(addrs []netip.Addr) {
	now := sorted(addrs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(*now, *s.local.Load()) {
		return
	}
	s.depart(*s.local.Load(), *now)
	s.local.Store(now)
	s.refreshViews()
}

// maxDeparted is the maximum number of remembered addresses that the host had and no longer has.
const maxDeparted = 64

// depart records the addresses that the host no longer has. The caller must hold mu.
func (s *Server) depart(old, now []netip.Addr) {
	for _, a := range old {
		if !slices.Contains(s.departed, a) {
			s.departed = append(s.departed, a)
		}
	}
	s.departed = slices.DeleteFunc(s.departed, func(a netip.Addr) bool { return slices.Contains(now, a) })
	s.departed = slices.Delete(s.departed, 0, max(0, len(s.departed)-maxDeparted))
}

// lostAddresses returns the relay addresses that the host has had since the start of the process and no longer has. The
// caller must hold mu.
func (s *Server) lostAddresses() (lost []string) {
	for _, l := range s.running.Listeners {
		for _, a := range s.relayAddrs(l.Address) {
			if slices.Contains(s.departed, a) && !slices.Contains(lost, a.String()) {
				lost = append(lost, a.String())
			}
		}
	}
	return lost
}

// refreshViews sets new views of all listeners if the sockets of the gateway itself have changed. The caller holds mu.
func (s *Server) refreshViews() { s.updateViews(func(config.Listener) bool { return false }) }

// updateViews sets new views of the listeners for which rerouted returns true, because addresses behind their routes
// have changed. If the sockets of the gateway itself have changed, it sets new views of all listeners. The caller holds
// mu.
func (s *Server) updateViews(rerouted func(config.Listener) bool) {
	was := s.self
	s.self = s.selfOf(s.wanted)
	same := s.self.Equal(was)
	for _, l := range s.wanted.Listeners {
		again := rerouted(l)
		if g := s.listeners[l.Name]; g != nil && (again || !same) {
			if again {
				s.allowed[l.Name] = s.viewBuilder.View(l.Routes)
			}
			g.update(s.policy(s.wanted, l), s.allowed[l.Name].WithoutSelf(s.self))
		}
	}
}

// isLocal reports whether an address belongs to this host. It takes no lock, because relay sockets are opened while
// Apply holds mu.
func (s *Server) isLocal(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(*s.local.Load(), addr, netip.Addr.Compare)
	return found || addr.IsLoopback()
}

// selfOf returns the sockets of the listeners of a config, and of the listeners that are still open, in all pods of the
// Gateway. They are denied as peers.
func (s *Server) selfOf(c config.Config) *cluster.Self {
	var ports []uint16
	sockets := s.forwardSockets()
	answers := s.names.Answers()
	for _, l := range c.Listeners {
		ports = append(ports, uint16(l.Port))
		sockets = append(sockets, l.ReachedAt(func(name string) []netip.Addr { return answers[name] })...)
	}
	for g := range s.generations {
		ports = append(ports, uint16(g.spec.Port))
	}
	addrs := slices.Clone(*s.local.Load())
	for _, pod := range s.pods {
		addrs = append(addrs, pod.Address.Addr())
		if pod.Other.IsValid() {
			addrs = append(addrs, pod.Other)
		}
	}
	return cluster.NewSelf(addrs, ports, sockets)
}

// publicNames returns the host names that clients of the listeners receive, for example those of load balancers.
func publicNames(listeners []config.Listener) (names []string) {
	for _, l := range listeners {
		names = append(names, l.PublicNames()...)
	}
	return names
}

// view returns the peers that the clients of a listener may reach: the peers that its routes allow, except the sockets
// of the gateway itself.
func (s *Server) view(l config.Listener) *cluster.View {
	s.allowed[l.Name] = s.viewBuilder.View(l.Routes)
	return s.allowed[l.Name].WithoutSelf(s.self)
}

func sorted(addrs []netip.Addr) *[]netip.Addr {
	addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return &addrs
}
