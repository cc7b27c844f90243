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
	// hosts holds single addresses, which are nearly all endpoints there are; nets holds the rest by prefix.
	hosts map[netip.Addr][]grant
	nets  map[netip.Prefix][]grant
	// lengths are the distinct prefix lengths in nets, by family.
	lengths4, lengths6 []int
	self               *Self
}

// grant is one endpoint's port range and the cluster it came from.
type grant struct {
	ports   config.PortRange
	cluster string
	// except are addresses that a prefix does not open.
	except map[netip.Addr]struct{}
}

// NewView returns what the clusters named by routes allow. The clusters must have passed validation: an endpoint that does not
// parse, and a cluster that is not static, allow nobody. Resolve makes clusters of host names static.
func NewView(clusters []config.Cluster, routes []string) *View {
	v := &View{hosts: map[netip.Addr][]grant{}, nets: map[netip.Prefix][]grant{}}
	for _, c := range clusters {
		if c.Type != config.Static || !slices.Contains(routes, c.Name) {
			continue
		}
		except := addressesOf(c.Except)
		for _, s := range c.Endpoints {
			if e, err := config.ParseEndpoint(s); err == nil {
				v.add(e, c.Name, except)
			}
		}
	}
	for p := range v.nets {
		lengths := &v.lengths6
		if p.Addr().Is4() {
			lengths = &v.lengths4
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	slices.Sort(v.lengths4)
	slices.Sort(v.lengths6)
	return v
}

func addressesOf(texts []string) map[netip.Addr]struct{} {
	addrs := make(map[netip.Addr]struct{}, len(texts))
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			addrs[a.Unmap()] = struct{}{}
		}
	}
	return addrs
}

func (v *View) add(e config.Endpoint, cluster string, except map[netip.Addr]struct{}) {
	g := grant{ports: e.Ports, cluster: cluster, except: except}
	if e.Prefix.IsSingleIP() {
		v.hosts[e.Prefix.Addr()] = append(v.hosts[e.Prefix.Addr()], g)
		return
	}
	v.nets[e.Prefix] = append(v.nets[e.Prefix], g)
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
	for _, g := range v.hosts[addr] {
		verdict = PortDenied
		if g.ports.Contains(port) {
			return g.cluster, Allowed
		}
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
		for _, g := range v.nets[prefix] {
			if _, spared := g.except[addr]; spared {
				continue
			}
			verdict = PortDenied
			if g.ports.Contains(port) {
				return g.cluster, Allowed
			}
		}
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
