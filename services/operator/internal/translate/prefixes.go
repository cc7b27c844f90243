package translate

import (
	"cmp"
	"net/netip"
	"slices"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// prefixRules are the rules of a GatewayConfig on prefixes of StaticServices. A prefix in allowed is never denied. Any
// other prefix must not contain a part of denied or, with networks, of a network of the cluster.
type prefixRules struct {
	allowed, denied []netip.Prefix
	networks        bool
}

func prefixesOf(texts []stunnerv1.CIDR) (prefixes []netip.Prefix) {
	for _, text := range texts {
		if p, ok := parsePrefix(string(text)); ok {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// prefixGuard applies prefixRules. It reads the networks of the cluster only when it needs them.
type prefixGuard struct {
	view  *resource.View
	rules prefixRules
	// denied caches the denied prefixes, sorted and disjoint; known is set when it is filled.
	denied []netip.Prefix
	known  bool
}

// denies reports whether a prefix is denied. A prefix of IPv4-mapped IPv6 addresses must be in its IPv4 form, as
// parsePrefix returns it.
func (g *prefixGuard) denies(p netip.Prefix) bool {
	p = p.Masked()
	for _, a := range g.rules.allowed {
		if a.Bits() <= p.Bits() && a.Contains(p.Addr()) {
			return false
		}
	}
	if !g.known {
		denied := g.rules.denied
		if g.rules.networks {
			denied = append(slices.Clone(denied), g.view.Networks()...)
		}
		g.denied, g.known = disjoint(withEmbedded(denied)), true
	}
	// If prefixes are disjoint, only the last prefix that begins at or before p can contain p, and only the next prefix
	// can begin in p.
	next, found := slices.BinarySearchFunc(g.denied, p.Addr(), func(d netip.Prefix, a netip.Addr) int { return d.Addr().Compare(a) })
	return found || next > 0 && g.denied[next-1].Overlaps(p) || next < len(g.denied) && g.denied[next].Overlaps(p)
}

// disjoint sorts prefixes, and removes each prefix that another one contains.
func disjoint(prefixes []netip.Prefix) (all []netip.Prefix) {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range prefixes {
		if n := len(all); n == 0 || !all[n-1].Overlaps(p) {
			all = append(all, p)
		}
	}
	return all
}

// embedding is a range of IPv6 addresses that contain an IPv4 address. The IPv4 address begins at the same byte in each
// of them.
type embedding struct {
	base netip.Prefix
	at   int
}

// embeddings are the IPv6 addresses by which translators and tunnels reach an IPv4 address.
var embeddings = []embedding{
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible, RFC 4291 §2.5.5.1
	{netip.MustParsePrefix("::ffff:0:0/96"), 12},   // IPv4-mapped, RFC 4291 §2.5.5.2
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated, RFC 2765 §2.1
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64, RFC 6052 §2.1
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4, RFC 3056 §2
}

// anyEmbedding are ranges whose IPv4 addresses have no fixed place: NAT64 with a local prefix (RFC 8215) and Teredo
// (RFC 4380), which obfuscates them.
var anyEmbedding = mustParsePrefixes("64:ff9b:1::/48", "2001::/32")

// withEmbedded returns prefixes in all forms of addresses: an IPv4 prefix also as IPv6 addresses that contain it.
func withEmbedded(prefixes []netip.Prefix) (all []netip.Prefix) {
	for _, p := range prefixes {
		p = p.Masked()
		if all = append(all, p); !p.Addr().Is4() {
			continue
		}
		all = append(all, anyEmbedding...)
		inner := p.Addr().As4()
		for _, e := range embeddings {
			bytes := e.base.Addr().As16()
			copy(bytes[e.at:], inner[:])
			all = append(all, netip.PrefixFrom(netip.AddrFrom16(bytes), e.at*8+p.Bits()))
		}
	}
	return all
}
