package server

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// SetLocalAddresses puts the addresses that this host has now in the place of those that it had. Listeners on them are no peers, and relays
// speak from them.
func (s *Server) SetLocalAddresses(addrs []netip.Addr) {
	now := sorted(addrs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(*now, *s.local.Load()) {
		return
	}
	s.local.Store(now)
	s.spare(func(config.Listener) bool { return false })
}

// spare finds out anew which sockets are the gateway's own. Those listeners get another view whose routes lead elsewhere than before, and all
// do if the gateway's own sockets are others.
func (s *Server) spare(rerouted func(config.Listener) bool) {
	was := s.self
	s.self = s.selfOf(s.wanted)
	same := s.self.Equal(was)
	for _, l := range s.wanted.Listeners {
		again := rerouted(l)
		if r := s.listeners[l.Name]; r != nil && (again || !same) {
			if again {
				s.allowed[l.Name] = s.book.View(l.Routes)
			}
			r.obey(s.policy(s.wanted, l), s.allowed[l.Name].WithoutSelf(s.self))
		}
	}
}

// isLocal tells whether an address is one of this host. It needs no lock: relay sockets are opened while the server applies a config.
func (s *Server) isLocal(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(*s.local.Load(), addr, netip.Addr.Compare)
	return found || addr.IsLoopback()
}

// selfOf returns the sockets of a config's listeners and of those that are still open, which are no peers of anybody.
func (s *Server) selfOf(c config.Config) *cluster.Self {
	var ports []uint16
	var sockets []netip.AddrPort
	answers := s.names.Answers()
	for _, l := range c.Listeners {
		ports = append(ports, uint16(l.Port))
		sockets = append(sockets, l.ReachedAt(answers[l.PublicAddress]...)...)
	}
	for _, r := range s.listeners {
		ports = append(ports, uint16(r.spec.Port))
		for _, form := range r.before {
			ports = append(ports, uint16(form.spec.Port))
		}
	}
	return cluster.NewSelf(*s.local.Load(), ports, sockets)
}

// publicNames are the host names that clients are told in the place of addresses, as those of load balancers.
func publicNames(listeners []config.Listener) (names []string) {
	for _, l := range listeners {
		if _, err := netip.ParseAddr(l.PublicAddress); err != nil && l.PublicAddress != "" {
			names = append(names, l.PublicAddress)
		}
	}
	return names
}

// view is what a listener's clients may reach: what its routes allow, without the sockets of the gateway itself.
func (s *Server) view(l config.Listener) *cluster.View {
	s.allowed[l.Name] = s.book.View(l.Routes)
	return s.allowed[l.Name].WithoutSelf(s.self)
}

func sorted(addrs []netip.Addr) *[]netip.Addr {
	addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return &addrs
}
