package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// MaxProxyPrefixes is the maximum number of entries of Listener.ProxyProtocol, because stunnerd compares the address of
// each new connection with all of them.
const MaxProxyPrefixes = 64

// ClientProtocol returns the protocol by which clients reach the listener. It differs from Protocol if a load balancer
// ends TLS.
func (l Listener) ClientProtocol() Protocol {
	if p := l.Protocol.canonical(); p != TURNTCP || !l.TLSAtBalancer {
		return p
	}
	return TURNTLS
}

// ProxyPrefixes returns the prefixes of ProxyProtocol. Entries that do not parse are left out; Validate rejects them.
func (l Listener) ProxyPrefixes() (prefixes []netip.Prefix) {
	for _, text := range l.ProxyProtocol {
		if p, err := ParseProxyPrefix(text); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// ParseProxyPrefix parses an entry of Listener.ProxyProtocol, ADDRESS or ADDRESS/LENGTH. The result is masked, and an
// IPv4-mapped address is an IPv4 address. A prefix that contains every address is an error, because any client could
// then choose its own address.
func ParseProxyPrefix(text string) (netip.Prefix, error) {
	p, problem, remedy := parseProxyPrefix(text)
	if problem != "" {
		return p, finding.Errorf(remedy, "%.100q %s", text, problem)
	}
	return p, nil
}

func parseProxyPrefix(text string) (p netip.Prefix, problem, remedy string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, "is no prefix of IP addresses", "write ADDRESS or ADDRESS/LENGTH"
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if p.Bits() == 0 {
		return netip.Prefix{}, "contains every address", "write the addresses of the load balancer"
	}
	return p.Masked(), "", ""
}

// canonicalPrefixes returns the entries of Listener.ProxyProtocol in their canonical spelling. Entries that do not
// parse stay unchanged.
func canonicalPrefixes(texts []string) []string {
	texts = slices.Clone(texts)
	for i, text := range texts {
		if p, err := ParseProxyPrefix(text); err == nil {
			texts[i] = p.String()
		}
	}
	return texts
}

func (f *findings) balancer(i int, l Listener) {
	p := l.Protocol.canonical()
	if l.TLSAtBalancer && p != TURNTCP && p.known() {
		f.add(index("listeners", i, "tls_at_load_balancer"), "", "is set for a listener of protocol "+string(p),
			"use "+string(TURNTCP)+", or leave it out")
	}
	field := index("listeners", i, "proxy_protocol")
	if len(l.ProxyProtocol) > 0 && !p.Stream() && p.known() {
		f.add(field, "", "is set for a listener of protocol "+string(p), "use TURN-TCP or TURN-TLS, or leave it out")
	}
	if !f.atMost(field, len(l.ProxyProtocol), MaxProxyPrefixes) {
		return
	}
	for j, text := range l.ProxyProtocol {
		if _, problem, remedy := parseProxyPrefix(text); problem != "" {
			f.add(fmt.Sprintf("%s[%d]", field, j), text, problem, remedy)
		}
	}
}
