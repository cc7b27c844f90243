// Package cluster decides which peers the clients of a listener may reach.
//
// A View contains the addresses and port ranges of all clusters to which the routes of a listener refer. It is
// immutable: a change of the config, of a route or of an endpoint makes a new View, and verdicts of the earlier View
// are no longer valid. The number of map lookups for a verdict depends on the number of distinct prefix lengths, and
// not on the number of endpoints.
//
// The package does no I/O.
//
// # Files
//
//	viewbuilder.go  Views from the clusters of a config
//	hosts.go        the addresses of a View
//	resolve.go      host names in a config, and their addresses
//	special.go      addresses that are excluded from wide prefixes
//	self.go         addresses of the gateway itself
package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Verdict is the result of a lookup.
type Verdict uint8

// The verdicts, the strictest first.
const (
	// Denied: no route allows the address.
	Denied Verdict = iota
	// Unnamed: a route allows the address, but the view is limited to other routes (see Only).
	Unnamed
	// PortDenied: a route allows the address, but not the port.
	PortDenied
	// Allowed: a route allows address and port.
	Allowed
)

// View is the set of peers that the routes of one listener allow. The zero View allows no peer.
type View struct {
	// hosts contains the grants of addresses of single hosts.
	hosts hostTable
	// nets contains the grants of prefixes. The grants of one prefix are in the order of the clusters in the config.
	nets map[netip.Prefix][]grant
	// lengths4 and lengths6 are the distinct prefix lengths in nets of each family, in ascending order.
	lengths4, lengths6 []int
	self               *Self
	// only are the names of the clusters to which the view is limited, and whole is the view without that limit. Both
	// are nil for a view without a limit.
	only  []string
	whole *View
}

// grant is the port range of one endpoint of a cluster.
type grant struct {
	cluster *owner
	ports   config.PortRange
	// bits is the length of the endpoint's prefix.
	bits uint8
}

// owner describes the cluster of a grant.
type owner struct {
	name string
	// except contains the addresses that the prefixes among the endpoints do not include.
	except map[netip.Addr]struct{}
	// order is the position of the cluster in the config.
	order int
}

// NewView returns a view of the clusters to which the given routes refer. A ViewBuilder makes several views with less
// work.
func NewView(clusters []config.Cluster, routes []string) *View {
	b := ViewBuilder{}
	b.Take(clusters)
	return b.View(routes)
}

// Match returns the verdict on a peer and, if the peer is Allowed, the name of the cluster.
func (v *View) Match(peer netip.AddrPort) (cluster string, verdict Verdict) {
	by, verdict := v.match(peer)
	if verdict != Allowed {
		return "", verdict
	}
	return by.cluster.name, Allowed
}

// Explain returns the result of Match and, if the peer is Allowed, the endpoint of the cluster that allows it.
func (v *View) Explain(peer netip.AddrPort) (cluster string, endpoint config.Endpoint, verdict Verdict) {
	by, verdict := v.match(peer)
	if verdict != Allowed {
		return "", endpoint, verdict
	}
	prefix, _ := peer.Addr().Unmap().Prefix(int(by.bits)) // the prefix with this address and length
	return by.cluster.name, config.Endpoint{Prefix: prefix, Ports: by.ports}, Allowed
}

// Only returns a copy of the view that is limited to the clusters with the given names. It shares the tables of v. The
// caller must not change names.
func (v *View) Only(names []string) *View {
	if v == nil {
		return nil
	}
	limited := *v
	limited.only, limited.whole = names, v
	return &limited
}

// OnlyOthersAllow reports whether a view that Only returned denies an address that a route outside of its limit allows.
func (v *View) OnlyOthersAllow(addr netip.Addr) bool {
	_, verdict := v.Match(netip.AddrPortFrom(addr, 0))
	return verdict == Unnamed
}

// match returns the verdict on a peer and, if the peer is Allowed, the grant.
func (v *View) match(peer netip.AddrPort) (by *grant, verdict Verdict) {
	by, verdict = v.decide(peer)
	if verdict == Denied && v != nil && v.whole != nil {
		if _, whole := v.whole.decide(peer); whole != Denied {
			return nil, Unnamed
		}
	}
	return by, verdict
}

// decide is match, but does not distinguish Unnamed from Denied.
func (v *View) decide(peer netip.AddrPort) (by *grant, verdict Verdict) {
	addr := peer.Addr().Unmap()
	minBits := minRouteBits(addr)
	if v == nil || minBits > addr.BitLen() {
		return nil, Denied
	}
	if v.self.at(addr, peer.Port()) {
		return nil, PortDenied
	}
	inside := Allowed
	if addr.Is6() {
		if inside = v.matchInside(addr, peer.Port()); inside < PortDenied {
			return nil, Denied
		}
	}
	if by, verdict = v.routed(addr, peer.Port(), minBits); verdict == Allowed && inside != Allowed {
		return nil, inside
	}
	return by, verdict
}

// routed returns the verdict of the routes on an address and port, and the grant that allows them. It ignores route
// prefixes shorter than minBits.
func (v *View) routed(addr netip.Addr, port uint16, minBits int) (by *grant, verdict Verdict) {
	bucket := v.hosts.bucket(addr)
	for i := range bucket {
		if bucket[i].addr != addr {
			continue
		}
		if at := v.allows(&bucket[i].grant, port, netip.Addr{}); at == Allowed {
			return &bucket[i].grant, Allowed
		} else if at == PortDenied {
			verdict = PortDenied
		}
	}
	lengths := v.lengths6
	if addr.Is4() {
		lengths = v.lengths4
	}
	for _, bits := range slices.Backward(lengths) {
		if bits < minBits {
			break
		}
		prefix, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		list := v.nets[prefix]
		for i := range list {
			if wider := v.allows(&list[i], port, addr); wider == Allowed {
				return &list[i], Allowed
			} else if wider == PortDenied {
				verdict = PortDenied
			}
		}
	}
	return nil, verdict
}

// allows returns the verdict of a grant on a port. It is Denied for a cluster whose field except contains addr, and for
// a cluster outside the limits of the view.
func (v *View) allows(g *grant, port uint16, addr netip.Addr) Verdict {
	if v.only != nil && !slices.Contains(v.only, g.cluster.name) {
		return Denied
	}
	if _, excepted := g.cluster.except[addr]; excepted {
		return Denied
	}
	if g.ports.Contains(port) {
		return Allowed
	}
	return PortDenied
}

// matchInside returns the strictest verdict on the IPv4 addresses that an IPv6 address contains, because a translator
// on the path may forward to one of them. Without an IPv4 address inside, the verdict is Denied if addresses with this
// prefix must contain one (see embedded), and otherwise Allowed.
func (v *View) matchInside(addr netip.Addr, port uint16) Verdict {
	var room [maxEmbedded]netip.Addr
	inside, possible := embedded(addr, &room)
	if !possible {
		return Denied
	}
	strictest := Allowed
	for _, a := range inside {
		_, verdict := v.Match(netip.AddrPortFrom(a, port))
		strictest = min(strictest, verdict)
	}
	return strictest
}

// AllowsAddr reports whether a peer address is allowed on any port. A TURN permission is for an address, and the port
// is checked only for data (RFC 8656 §9).
func (v *View) AllowsAddr(addr netip.Addr) bool {
	_, verdict := v.Match(netip.AddrPortFrom(addr, 0))
	return verdict >= PortDenied
}
