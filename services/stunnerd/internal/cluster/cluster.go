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
	self               Self
}

// Self is where this process itself takes in datagrams. It is nobody's peer: a client that reaches a listener through its own relay
// is a client of itself, and so on, until the packet goes round for ever.
type Self struct {
	// Addrs are the addresses of this host; loopback need not be among them.
	Addrs []netip.Addr
	// Ports are the ports of the listeners.
	Ports []uint16
}

func (s Self) at(peer netip.AddrPort) bool {
	addr := peer.Addr()
	return slices.Contains(s.Ports, peer.Port()) && (addr.IsLoopback() || slices.Contains(s.Addrs, addr))
}

// Sparing returns the view without what this process listens on. Ports of relays stay: two clients of one gateway may meet there, where a
// route says so.
func (v *View) Sparing(self Self) *View {
	v.self = self
	return v
}

// grant is one endpoint's port range and the cluster it came from.
type grant struct {
	ports   config.PortRange
	cluster string
}

// NewView returns what the clusters named by routes allow. The clusters must have passed validation: an endpoint that does not
// parse, and a cluster that is not static, allow nobody. Resolve makes clusters of host names static.
func NewView(clusters []config.Cluster, routes []string) *View {
	v := &View{hosts: map[netip.Addr][]grant{}, nets: map[netip.Prefix][]grant{}}
	for _, c := range clusters {
		if c.Type != config.Static || !slices.Contains(routes, c.Name) {
			continue
		}
		for _, s := range c.Endpoints {
			if e, err := config.ParseEndpoint(s); err == nil {
				v.add(e, c.Name)
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

func (v *View) add(e config.Endpoint, cluster string) {
	g := grant{ports: e.Ports, cluster: cluster}
	if e.Prefix.IsSingleIP() {
		v.hosts[e.Prefix.Addr()] = append(v.hosts[e.Prefix.Addr()], g)
		return
	}
	v.nets[e.Prefix] = append(v.nets[e.Prefix], g)
}

// Match says whether a peer may be reached, and through which cluster.
func (v *View) Match(peer netip.AddrPort) (cluster string, verdict Verdict) {
	addr := peer.Addr().Unmap()
	if v == nil || neverRelayed(addr) {
		return "", Denied
	}
	if v.self.at(netip.AddrPortFrom(addr, peer.Port())) {
		return "", PortDenied
	}
	if inside, ok := embedded(addr); ok {
		// It may be translated on the way: then the address inside is what is reached.
		if _, verdict := v.Match(netip.AddrPortFrom(inside, peer.Port())); verdict != Allowed {
			return "", verdict
		}
	}
	for _, g := range v.hosts[addr] {
		verdict = PortDenied
		if g.ports.Contains(peer.Port()) {
			return g.cluster, Allowed
		}
	}
	lengths := v.lengths6
	if addr.Is4() {
		lengths = v.lengths4
	}
	for _, bits := range slices.Backward(lengths) {
		prefix, err := addr.Prefix(bits)
		if err != nil || !reaches(prefix, addr) {
			continue
		}
		for _, g := range v.nets[prefix] {
			verdict = PortDenied
			if g.ports.Contains(peer.Port()) {
				return g.cluster, Allowed
			}
		}
	}
	return "", verdict
}

// AllowsAddr says whether a peer address may be reached on any port. This is what a TURN permission is about: it names an address, the
// port counts for data only (RFC 8656 §9).
func (v *View) AllowsAddr(addr netip.Addr) bool {
	_, verdict := v.Match(netip.AddrPortFrom(addr, 0))
	return verdict != Denied
}

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")

	// never are addresses at which no media server lives but where a relay does harm: this network, link-local (cloud
	// metadata among them), multicast, reserved, broadcast, and the metadata services outside link-local.
	never = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("224.0.0.0/4"),
		netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("100.100.100.200/32"),
		netip.MustParsePrefix("::/128"),
		netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("ff00::/8"),
		netip.MustParsePrefix("fd00:ec2::254/128"),
	}
)

// neverRelayed names the addresses that no route can open.
func neverRelayed(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return true
	}
	return slices.ContainsFunc(never, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// reaches keeps wide prefixes away from loopback: 0.0.0.0/0 means the world, not this host. Loopback is reached
// through a prefix that lies inside it, which is a deliberate act.
func reaches(prefix netip.Prefix, addr netip.Addr) bool {
	switch {
	case loopback4.Contains(addr):
		return prefix.Bits() >= loopback4.Bits()
	case loopback6.Contains(addr):
		return false
	}
	return true
}

var (
	compatible = netip.MustParsePrefix("::/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// embedded is the IPv4 address inside an IPv6 address that routers or hosts may take for it: IPv4-compatible (RFC 4291 §2.5.5.1), NAT64
// (RFC 6052), 6to4 (RFC 3056).
func embedded(addr netip.Addr) (inside netip.Addr, ok bool) {
	raw := addr.As16()
	switch {
	case addr.Is4(), addr == netip.IPv6Loopback():
		return netip.Addr{}, false
	case compatible.Contains(addr), nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(raw[12:])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(raw[2:6])), true
	}
	return netip.Addr{}, false
}
