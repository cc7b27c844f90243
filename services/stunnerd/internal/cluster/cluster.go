// Package cluster decides which peers a listener's clients may reach.
//
// A View is what one listener's routes allow: every address and port range of every cluster that they name. It is
// immutable; a changed config, route or endpoint is a new View, and whoever holds a verdict of an older one asks again. A
// View answers in a number of map lookups that depends on the number of distinct prefix lengths, not of endpoints.
//
// The package is pure.
package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Verdict says whether a peer may be reached.
type Verdict uint8

// The verdicts.
const (
	// Denied: no route allows the address.
	Denied Verdict = iota
	// PortDenied: a route allows the address, but not the port.
	PortDenied
	// Allowed: a route allows address and port.
	Allowed
)

// View is the set of peers that the routes of one listener allow. The zero View allows nobody.
type View struct {
	// hosts holds single addresses, which are nearly all endpoints there are; nets holds the rest by prefix. The values are places in grants.
	hosts map[netip.Addr]int32
	nets  map[netip.Prefix]int32
	// grants[0] ends every list.
	grants []grant
	// lengths are the distinct prefix lengths in nets, by family.
	lengths4, lengths6 []int
	self               *Self
}

// grant is one endpoint's port range and the cluster it came from.
type grant struct {
	cluster *parsed
	ports   config.PortRange
	// next is the place of the next grant of the same address or prefix, 0 for none.
	next int32
}

// NewView returns what the clusters named by routes allow. See Book.
func NewView(clusters []config.Cluster, routes []string) *View {
	b := Book{}
	b.Take(clusters)
	return b.View(routes)
}

// Match says whether a peer may be reached, and through which cluster.
func (v *View) Match(peer netip.AddrPort) (cluster string, verdict Verdict) {
	addr := peer.Addr().Unmap()
	least := leastBits(addr)
	if v == nil || least > addr.BitLen() {
		return "", Denied
	}
	if v.self.at(addr, peer.Port()) {
		return "", PortDenied
	}
	inside := Allowed
	if addr.Is6() {
		if inside = v.matchInside(addr, peer.Port()); inside == Denied {
			return "", Denied
		}
	}
	if cluster, verdict = v.routed(addr, peer.Port(), least); verdict == Allowed && inside != Allowed {
		return "", inside
	}
	return cluster, verdict
}

// routed looks for a route to an address and port whose prefix has at least so many bits.
func (v *View) routed(addr netip.Addr, port uint16, least int) (cluster string, verdict Verdict) {
	if cluster, verdict = v.granted(v.hosts[addr], port, netip.Addr{}); verdict == Allowed {
		return cluster, Allowed
	}
	lengths := v.lengths6
	if addr.Is4() {
		lengths = v.lengths4
	}
	for _, bits := range slices.Backward(lengths) {
		if bits < least {
			break
		}
		prefix, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		if cluster, wider := v.granted(v.nets[prefix], port, addr); wider == Allowed {
			return cluster, Allowed
		} else if wider == PortDenied {
			verdict = PortDenied
		}
	}
	return "", verdict
}

// granted looks for a port in a list of grants. It passes over the grants of clusters that except addr.
func (v *View) granted(list int32, port uint16, addr netip.Addr) (cluster string, verdict Verdict) {
	for ; list != 0; list = v.grants[list].next {
		g := &v.grants[list]
		if _, excepted := g.cluster.except[addr]; excepted {
			continue
		}
		if g.ports.Contains(port) {
			return g.cluster.name, Allowed
		}
		verdict = PortDenied
	}
	return "", verdict
}

// matchInside is the strictest verdict on the IPv4 addresses inside an IPv6 address: it may be translated on the way, and then one of these
// is what is reached. It is Allowed when there are none.
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

// AllowsAddr says whether a peer address may be reached on any port. This is what a TURN permission is about: it names an address, the
// port counts for data only (RFC 8656 §9).
func (v *View) AllowsAddr(addr netip.Addr) bool {
	_, verdict := v.Match(netip.AddrPortFrom(addr, 0))
	return verdict != Denied
}
