package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// PortRange is an inclusive range of ports. The zero value is invalid.
type PortRange struct{ First, Last uint16 }

// AllPorts is the port range of an endpoint for which no ports are given.
var AllPorts = PortRange{First: 1, Last: 65535}

// Contains reports whether a port is in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// String returns the range in the syntax of ParseRelayPorts.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Len returns the number of ports in the range; 0 for the zero value.
func (r PortRange) Len() int {
	if r == (PortRange{}) {
		return 0
	}
	return int(r.Last) - int(r.First) + 1
}

// LowestRelayPort is the lowest port of a relay. Lower ports belong to well-known services (RFC 8656 §7.2).
const LowestRelayPort = 1024

// ParseRelayPorts parses a range of relay ports, MIN-MAX, from LowestRelayPort to 65535.
func ParseRelayPorts(s string) (PortRange, error) {
	low, high, _ := strings.Cut(s, "-")
	r := PortRange{First: parsePort(low), Last: parsePort(high)}
	switch {
	case r.First == 0 || r.Last == 0:
		return PortRange{}, fmt.Errorf("unreadable port range %q: write MIN-MAX, such as 40000-49999", s)
	case r.First > r.Last:
		return PortRange{}, fmt.Errorf("port range %q is upside down: write %d-%d", s, r.Last, r.First)
	case r.First < LowestRelayPort:
		return PortRange{}, fmt.Errorf("port range %q begins too low: use ports %d to 65535", s, LowestRelayPort)
	}
	return r, nil
}

// Endpoint is a set of peers: all addresses of a prefix, each with all ports of a range.
type Endpoint struct {
	Prefix netip.Prefix
	Ports  PortRange
}

// ParseEndpoint parses IP, IP/LENGTH, IP:<FIRST-LAST> and IP/LENGTH:<FIRST-LAST>. IPv6 addresses have no brackets. An
// IPv4-mapped IPv6 address is returned as the IPv4 address.
func ParseEndpoint(s string) (Endpoint, error) {
	e := Endpoint{Ports: AllPorts}
	address, ports, ranged := s, "", false
	if i := strings.LastIndex(s, ":<"); i >= 0 {
		address, ports, ranged = s[:i], s[i+len(":<"):], true
	}
	var err error
	if e.Prefix, err = parsePrefix(address); err != nil {
		return Endpoint{}, fmt.Errorf("parse endpoint %q: %w", s, err)
	}
	if ranged {
		if e.Ports, err = parsePorts(ports); err != nil {
			return Endpoint{}, fmt.Errorf("parse endpoint %q: %w", s, err)
		}
	}
	return e, nil
}

// String returns the endpoint in the shortest form of the syntax of ParseEndpoint.
func (e Endpoint) String() string {
	s := e.Prefix.String()
	if e.Prefix.IsSingleIP() {
		s = e.Prefix.Addr().String()
	}
	if e.Ports != AllPorts {
		s += fmt.Sprintf(":<%d-%d>", e.Ports.First, e.Ports.Last)
	}
	return s
}

// ParsePrefix parses IP or IP/LENGTH: an endpoint without ports.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := parsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("parse prefix %q: %w", s, err)
	}
	return prefix, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	address, length, hasLength := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, errors.New(
			"no IP address: write IP, IP/LENGTH, IP:<FIRST-LAST> or IP/LENGTH:<FIRST-LAST>")
	}
	bits := addr.BitLen()
	if hasLength {
		n, err := strconv.ParseUint(length, 10, 8)
		if err != nil || int(n) > addr.BitLen() {
			return netip.Prefix{}, fmt.Errorf("prefix length %q is out of range: use 0 to %d", length, addr.BitLen())
		}
		bits = int(n)
	}
	if addr.Is4In6() {
		if bits < 96 {
			return netip.Prefix{}, errors.New(
				"an IPv4-mapped prefix shorter than 96 mixes IPv4 and IPv6: write two endpoints")
		}
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}

// parsePorts parses FIRST-LAST>: the part of an endpoint after ":<".
func parsePorts(s string) (PortRange, error) {
	inner, closed := strings.CutSuffix(s, ">")
	first, last, dash := strings.Cut(inner, "-")
	if !closed || !dash {
		return PortRange{}, errors.New("unreadable port range: write :<FIRST-LAST>")
	}
	r := PortRange{First: parsePort(first), Last: parsePort(last)}
	switch {
	case r.First == 0 || r.Last == 0:
		return PortRange{}, fmt.Errorf("port range <%s is out of range: use ports 1 to 65535", s)
	case r.First > r.Last:
		return PortRange{}, fmt.Errorf("port range <%s is upside down: write <%d-%d>", s, r.Last, r.First)
	}
	return r, nil
}

// parsePort returns 0 for an invalid port.
func parsePort(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}
