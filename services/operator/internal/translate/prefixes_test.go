package translate

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// randomPrefix returns a prefix near others: with few distinct bits, so that many contain each other.
func randomPrefix(random *rand.Rand) netip.Prefix {
	if random.IntN(2) == 0 {
		a := netip.AddrFrom4([4]byte{10, byte(random.IntN(4)) << 6, byte(random.IntN(4)) << 6, byte(random.IntN(4)) << 6})
		return netip.PrefixFrom(a, random.IntN(33)).Masked()
	}
	bytes := netip.MustParseAddr([]string{
		"fd00::", "64:ff9b::", "64:ff9b:1::", "::", "::ffff:0:0:0", "2002::", "2001::",
	}[random.IntN(7)]).As16()
	for i := range bytes {
		if random.IntN(3) == 0 {
			bytes[i] |= []byte{10, 64, 128}[random.IntN(3)]
		}
	}
	a := netip.AddrFrom16(bytes)
	if a.Is4In6() {
		return netip.PrefixFrom(a.Unmap(), random.IntN(33)).Masked()
	}
	return netip.PrefixFrom(a, random.IntN(129)).Masked()
}

// An admitted prefix never overlaps a denied network, whether the prefix contains the network or the network contains
// the prefix, unless an allowed prefix contains the admitted prefix. A prefix without an address of a denied network in
// any form is admitted.
func TestAnAdmittedPrefixOverlapsNoDeniedNetwork(t *testing.T) {
	admitted, denied := 0, 0
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 0))
		g := prefixGuard{}
		for range 1 + random.IntN(6) {
			g.rules.denied = append(g.rules.denied, randomPrefix(random))
		}
		for range random.IntN(3) {
			g.rules.allowed = append(g.rules.allowed, randomPrefix(random))
		}
		p := randomPrefix(random)
		overlaps, allowed := false, false
		for _, d := range withEmbedded(g.rules.denied) {
			overlaps = overlaps || d.Overlaps(p)
		}
		for _, a := range g.rules.allowed {
			allowed = allowed || a.Overlaps(p) && a.Bits() <= p.Bits()
		}
		got := g.denies(p)
		if want := overlaps && !allowed; got != want {
			t.Fatalf("seed %d: denies(%s) = %t with denied %v and allowed %v", seed, p, got, g.rules.denied, g.rules.allowed)
		}
		if got {
			denied++
		} else {
			admitted++
		}
	}
	if admitted < 1000 || denied < 1000 {
		t.Errorf("%d prefixes admitted, %d denied: the test shows little", admitted, denied)
	}
}

// Each way to write a network of the cluster is denied.
func TestEveryFormOfANetworkIsDenied(t *testing.T) {
	g := prefixGuard{rules: prefixRules{
		denied:  []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/48")},
		allowed: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")},
	}}
	for text, want := range map[string]bool{
		"0.0.0.0/0": true, "10.0.0.0/8": true, "10.244.0.0/16": true, "10.244.3.0/24": true, "10.244.3.4": true,
		"10.244.3.4/32": true, "10.244.255.255": true, "::ffff:10.244.3.4": true, "::ffff:10.244.0.0/112": true,
		"::ffff:0.0.0.0/96": true, "::ffff:0:0/90": true, "::/0": true, "::/1": true, "fd00::/8": true,
		"fd00:10:0:1::/64": true, "fd00:10::1": true, "64:ff9b::10.244.3.4": true, "64:ff9b::a00:0/104": true,
		"64:ff9b::/96": true, "64:ff9b:1::/64": true, "2002:af4:304::/48": true, "2002::/16": true,
		"::10.244.3.4": true, "2001:0:1::/48": true, "10.244.6.0/23": true, "10.244.7.0/24": false, "10.244.7.9": false,
		"10.245.0.0/16": false, "203.0.113.0/24": false, "fd00:11::/48": false, "2001:db8::/32": false,
		"64:ff9b::203.0.113.1": false, "2002:cb00:7101::/48": false, "::ffff:203.0.113.9": false, "128.0.0.0/1": false,
	} {
		p, ok := parsePrefix(text)
		if !ok || g.denies(p) != want {
			t.Errorf("denies(%s) = %t, want %t", text, g.denies(p), want)
		}
	}
}
