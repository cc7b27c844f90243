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

// properties is what there is to know about a protocol.
type properties struct {
	protocol Protocol
	short    string // another name, in documents and in TURN URIs
	network  string // on which it occupies its port
	secure   bool
	scheme   string // of its TURN URIs
	port     int    // of TURN URIs that name none: RFC 7065 §3.1
}

// protocols is the one place that knows them. The order is that of messages.
var protocols = []properties{
	{TURNUDP, "udp", "udp", false, schemeTURN, DefaultPort},
	{TURNTCP, "tcp", "tcp", false, schemeTURN, DefaultPort},
	{TURNTLS, "tls", "tcp", true, schemeTURNS, 5349},
	{TURNDTLS, "dtls", "udp", true, schemeTURNS, 5349},
}

// ParseProtocol reads a protocol in any of its spellings, in capitals or not.
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

// properties of a protocol that nobody knows are those of UDP, until Validate refuses it.
func (p Protocol) properties() properties {
	i := slices.IndexFunc(protocols, func(q properties) bool { return q.protocol == p })
	return protocols[max(i, 0)]
}

// known tells whether p is a canonical protocol.
func (p Protocol) known() bool { return p.properties().protocol == p }

// canonical is TURN-UDP for no protocol, and a protocol that nobody knows as it is.
func (p Protocol) canonical() Protocol {
	if p == "" {
		return TURNUDP
	}
	if known, ok := ParseProtocol(string(p)); ok {
		return known
	}
	return p
}

// Stream tells whether the transport is a byte stream.
func (p Protocol) Stream() bool { return p.Network() == "tcp" }

// Secure tells whether the transport is encrypted.
func (p Protocol) Secure() bool { return p.properties().secure }

// Network names the layer-4 network on which a listener occupies its port: "udp" or "tcp".
func (p Protocol) Network() string { return p.properties().network }
