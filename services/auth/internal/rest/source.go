package rest

import (
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Headers in which a proxy names the source of a request.
const (
	XForwardedFor = "X-Forwarded-For"
	Forwarded     = "Forwarded" // RFC 7239
)

type source struct {
	// addr is the address of the client, or of the proxy if the proxy did not send a readable client address.
	addr netip.Addr
	// unnamed is set if the proxy at addr sent an unreadable client address, such as "unknown".
	unnamed bool
}

// String returns the source for logs.
func (s source) String() string {
	if s.unnamed {
		return "unknown behind " + s.addr.String()
	}
	return s.addr.String()
}

// readSource returns the source of an HTTP request: the peer of the connection, unless the peer is a trusted proxy.
// Then the source is the last address in the forwarding header that is not a trusted proxy. Earlier addresses are
// ignored, because a client may have written them. If a later address is unreadable, the source is the proxy that added
// it, with unnamed set.
func readSource(req *http.Request, proxies []netip.Prefix, header string) source {
	peer, err := netip.ParseAddrPort(req.RemoteAddr)
	from := peer.Addr().Unmap().WithZone("")
	if err != nil || !holds(proxies, from) {
		return source{addr: from}
	}
	for _, hop := range slices.Backward(hops(req.Header, header)) {
		addr, ok := parseHop(hop)
		if !ok {
			return source{addr: from, unnamed: true}
		}
		if from = addr; !holds(proxies, from) {
			break
		}
	}
	return source{addr: from}
}

func holds(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// hops returns the addresses in the forwarding header in their order, so that the address that the nearest proxy has
// added is the last. For an element of Forwarded without an address it returns "".
func hops(h http.Header, header string) (out []string) {
	if header != Forwarded {
		for _, line := range h.Values(XForwardedFor) {
			out = append(out, elements(line, ',')...)
		}
		return out
	}
	for _, line := range h.Values(Forwarded) {
		for _, element := range elements(line, ',') {
			out = append(out, forOf(element))
		}
	}
	return out
}

// elements splits the value of a forwarding header at a separator outside of quotation marks, and drops empty elements.
// It scans from the end, which the nearest proxy has written, so that an unclosed quotation mark in the part of the
// client cannot hide later elements.
func elements(list string, separator byte) (out []string) {
	end, quoted := len(list), false
	add := func(from int) {
		if text := strings.TrimSpace(list[from:end]); text != "" {
			out = append(out, text)
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		switch c := list[i]; {
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			add(i + 1)
			end = i
		}
	}
	add(0)
	slices.Reverse(out)
	return out
}

// forOf returns the value of the parameter "for" in an element of Forwarded (RFC 7239 §4), or "" if the parameter is
// missing or occurs twice.
func forOf(element string) (value string) {
	for _, pair := range elements(element, ';') {
		name, text, _ := strings.Cut(pair, "=")
		switch {
		case !strings.EqualFold(strings.TrimSpace(name), "for"):
		case value != "":
			return ""
		default:
			value = strings.TrimSpace(text)
		}
	}
	return value
}

// node matches a node identifier of RFC 7239 §6: an IPv4 address, or an IPv6 address in brackets, with or without a
// port. The port may be obfuscated.
var node = regexp.MustCompile(`^(?:([0-9.]+)|\[([^\]]+)\])(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?$`)

// parseHop parses an address in any form that proxies write.
func parseHop(text string) (netip.Addr, bool) {
	if unquoted, ok := strings.CutPrefix(text, `"`); ok {
		text = strings.TrimSpace(strings.TrimSuffix(unquoted, `"`))
	}
	if m := node.FindStringSubmatch(text); m != nil {
		text = m[1] + m[2]
	}
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err == nil
}
