package rest

import (
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Headers in which a proxy says for whom it asks.
const (
	XForwardedFor = "X-Forwarded-For"
	Forwarded     = "Forwarded" // RFC 7239
)

// source is where a request comes from.
type source struct {
	// addr is the address that asks, or that of the proxy when the proxy does not name one.
	addr netip.Addr
	// unread is set when the proxy at addr names the address that asks in a form that cannot be read, such as "unknown".
	unread bool
}

// String is the source in logs.
func (s source) String() string {
	if s.unread {
		return "unknown behind " + s.addr.String()
	}
	return s.addr.String()
}

// source is the other end of the connection or, when that is a proxy that is trusted, the last address in the header of the proxies that is not. What
// stands before that one anybody may have written.
func (r Rates) source(req *http.Request) source {
	peer, err := netip.ParseAddrPort(req.RemoteAddr)
	from := peer.Addr().Unmap().WithZone("")
	if err != nil || !holds(r.Proxies, from) {
		return source{addr: from}
	}
	for _, hop := range slices.Backward(r.hops(req.Header)) {
		addr, ok := parseHop(hop)
		if !ok {
			return source{addr: from, unread: true}
		}
		if from = addr; !holds(r.Proxies, from) {
			break
		}
	}
	return source{addr: from}
}

func holds(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// hops are the addresses in the header of the proxies, as they stand there, the nearest one last. One that an element of Forwarded does not name is "".
func (r Rates) hops(h http.Header) (out []string) {
	if r.Header != Forwarded {
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

// elements takes a list apart and leaves out what is empty. It begins at the end, which the nearest proxy has written: a quotation mark that a client
// has left open hides nothing that comes after it.
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

// forOf is the value of the parameter "for" (RFC 7239 §4); "" when it is not there exactly once.
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

// node is an IPv4 address with or without a port, or an IPv6 address in brackets. A port may be hidden (RFC 7239 §6).
var node = regexp.MustCompile(`^(?:([0-9.]+)|\[([^\]]+)\])(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?$`)

// parseHop reads an address in each form that proxies write.
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
