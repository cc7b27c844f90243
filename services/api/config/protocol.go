package config

import (
	"slices"
	"strings"
)

// Protocol is the transport between client and listener.
type Protocol string

// The canonical protocols. Parse turns the short names UDP, TCP, TLS and DTLS into these.
const (
	TURNUDP  Protocol = "TURN-UDP"
	TURNTCP  Protocol = "TURN-TCP"
	TURNTLS  Protocol = "TURN-TLS"
	TURNDTLS Protocol = "TURN-DTLS"
)

// properties are the properties of a protocol.
type properties struct {
	protocol Protocol
	short    string // short name in documents and TURN URIs
	network  string // udp or tcp
	secure   bool
	scheme   string // of its TURN URIs
	port     int    // default port of TURN URIs (RFC 7065 §3.1)
}

// protocols lists all protocols, in the order in which messages list them.
var protocols = []properties{
	{TURNUDP, "udp", "udp", false, schemeTURN, DefaultPort},
	{TURNTCP, "tcp", "tcp", false, schemeTURN, DefaultPort},
	{TURNTLS, "tls", "tcp", true, schemeTURNS, 5349},
	{TURNDTLS, "dtls", "udp", true, schemeTURNS, 5349},
}

// ParseProtocol parses the name or short name of a protocol; case does not matter.
func ParseProtocol(s string) (Protocol, bool) {
	for _, p := range protocols {
		if strings.EqualFold(s, string(p.protocol)) || strings.EqualFold(s, p.short) {
			return p.protocol, true
		}
	}
	return "", false
}

// ProtocolNames lists the protocols, for messages.
func ProtocolNames() string {
	var names []string
	for _, p := range protocols {
		names = append(names, string(p.protocol))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// properties returns the properties of a protocol. An unknown protocol, which Validate rejects, has the properties of
// UDP.
func (p Protocol) properties() properties {
	i := slices.IndexFunc(protocols, func(q properties) bool { return q.protocol == p })
	return protocols[max(i, 0)]
}

// known reports whether p is a canonical protocol.
func (p Protocol) known() bool { return p.properties().protocol == p }

// canonical returns the canonical protocol: TURN-UDP for an empty one, and an unknown one unchanged.
func (p Protocol) canonical() Protocol {
	if p == "" {
		return TURNUDP
	}
	if known, ok := ParseProtocol(string(p)); ok {
		return known
	}
	return p
}

// Stream reports whether the transport is a byte stream (TCP or TLS).
func (p Protocol) Stream() bool { return p.Network() == "tcp" }

// Secure reports whether the transport is encrypted.
func (p Protocol) Secure() bool { return p.properties().secure }

// Network returns the transport protocol whose port a listener occupies: "udp" or "tcp".
func (p Protocol) Network() string { return p.properties().network }
