package abuse

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// An act is a message that a user repeats in as many sessions as possible, with other values each time. A session sends
// a number of messages at once. Over UDP and DTLS it continues as long as the act lasts, and over TCP and TLS it ends
// with half of the largest message. In the act idle, clients send no message: see hoard.connection. In the act
// fromPeers, peers send to the sessions, and clients over TCP and TLS read nothing.
type act struct {
	over      call.Network // a network, or eachTransport
	request   string       // a key of requests, or one of the constants
	attribute string       // a key of attributes
	as        string       // a key of identities
}

func (a act) String() string {
	if a.request == idle {
		return fmt.Sprintf("idle connections over %s%s", a.over, a.as)
	}
	return fmt.Sprintf("%s with %s over %s%s", a.request, a.attribute, a.over, a.as)
}

// The identities of the sessions of an act; the default is one user with one address.
const (
	manyUsers     = ", each with a user ID of 400 bytes"
	manyAddresses = ", each from another address"
)

// eachTransport is the transport of an act whose sessions use the transports in turn.
const eachTransport call.Network = "each transport"

var transports = []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}

const (
	// datagram is the size of a large request over UDP, in bytes.
	datagram = 1200
	// permitted is the number of peers of a session that sends data.
	permitted = 64
)

const (
	// channelData is the request for ChannelData, which is not a STUN message.
	channelData = "ChannelData"
	// idle is the request of connections without a session.
	idle = "none"
	// fromPeers is the request for sessions to which peers without a channel send.
	fromPeers = "datagrams of peers"
)

// requests are the messages that a client may repeat.
var requests = map[string]stun.MessageType{
	"Allocate":         stun.NewType(stun.MethodAllocate, stun.ClassRequest),
	"Refresh":          stun.NewType(stun.MethodRefresh, stun.ClassRequest),
	"CreatePermission": stun.NewType(stun.MethodCreatePermission, stun.ClassRequest),
	"ChannelBind":      stun.NewType(stun.MethodChannelBind, stun.ClassRequest),
	"Binding":          stun.NewType(stun.MethodBinding, stun.ClassRequest),
	"Send":             stun.NewType(stun.MethodSend, stun.ClassIndication),
	channelData:        {},
}

// fixed are the attributes that a request needs to be accepted. n is the number of the message.
var fixed = map[string]func(n int) []stun.Setter{
	"Allocate":         func(int) []stun.Setter { return []stun.Setter{ask.UDP()} },
	"CreatePermission": func(n int) []stun.Setter { return []stun.Setter{ask.Peer(somePeer(n))} },
	"ChannelBind": func(n int) []stun.Setter {
		return []stun.Setter{ask.Channel(channel + uint16(n%0x1000)), ask.Peer(somePeer(n))}
	},
	"Send": func(n int) []stun.Setter { return []stun.Setter{ask.Peer(somePeer(n % permitted))} },
}

const noAttribute = "no other attribute"

// attributes are the attributes of requests (RFC 8489 §14, RFC 8656 §18) at their largest size.
var attributes = map[string]func(n int) []stun.Setter{
	noAttribute: func(int) []stun.Setter { return nil },
	"XOR-PEER-ADDRESS as often as fits": func(n int) (all []stun.Setter) {
		for i := range datagram / 12 * 4 / 5 {
			all = append(all, ask.Peer(somePeer(n*100+i)))
		}
		return all
	},
	"DATA":                          filled(stun.AttrData, datagram),
	"DATA that nominates a peer":    func(n int) []stun.Setter { return []stun.Setter{raw(stun.AttrData, check(n))} },
	"EVEN-PORT":                     filled(stun.AttrEvenPort, 1),
	"RESERVATION-TOKEN":             filled(stun.AttrReservationToken, 8),
	"LIFETIME":                      func(int) []stun.Setter { return []stun.Setter{ask.Lifetime(1<<32 - 1)} },
	"REQUESTED-ADDRESS-FAMILY":      func(int) []stun.Setter { return []stun.Setter{ask.Family(serverAddr)} },
	"DONT-FRAGMENT":                 filled(stun.AttrDontFragment, 0),
	"SOFTWARE":                      filled(stun.AttrSoftware, 763),
	"an unknown optional attribute": filled(0xC0FE, datagram-100),
	"unknown required attributes": func(n int) (all []stun.Setter) {
		for i := range datagram / 4 * 3 / 4 {
			all = append(all, raw(stun.AttrType(0x4000+i), nil))
		}
		return all
	},
}

func raw(kind stun.AttrType, value []byte) stun.Setter {
	return stun.RawAttribute{Type: kind, Value: value}
}

// filled returns an attribute with a random value.
func filled(kind stun.AttrType, size int) func(int) []stun.Setter {
	return func(int) []stun.Setter {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(rand.Uint32())
		}
		return []stun.Setter{raw(kind, value)}
	}
}

// somePeer returns one of about 65,000 peers with a route.
func somePeer(n int) netip.AddrPort {
	return netip.AddrPortFrom(host(peerNet, 300+uint16(n%0xFE00)), 9)
}

// check returns a connectivity check that nominates (RFC 8445 §7.2.2).
func check(n int) []byte {
	return stun.MustBuild(stun.TransactionID, stun.BindingRequest, stun.NewUsername(fmt.Sprintf("%0100d", n)),
		raw(stun.AttrPriority, []byte{110, 0, 1, 255}), raw(stun.AttrUseCandidate, nil)).Raw
}

// mostPermissions is the request that makes a session hold the most memory with the fewest messages.
var mostPermissions = act{over: call.UDP, request: "CreatePermission", attribute: "XOR-PEER-ADDRESS as often as fits"}

// acts returns the acts that hold the most memory, and one act that sends all messages in turn over all transports.
// With -largest, it returns one act for each combination of a request, an attribute and a transport.
func acts() (all []act) {
	as := func(a act, identities string) act { a.as = identities; return a }
	if !*largestFlag {
		return []act{
			mostPermissions, as(mostPermissions, manyUsers), as(mostPermissions, manyAddresses),
			{over: call.TCP, request: "ChannelBind", attribute: noAttribute},
			{over: call.UDP, request: "Send", attribute: "DATA that nominates a peer"},
			{over: call.UDP, request: fromPeers, attribute: noAttribute},
			{over: call.TCP, request: fromPeers, attribute: noAttribute},
			{over: call.DTLS, request: idle}, {over: call.TLS, request: idle}, {over: call.TCP, request: idle},
			{over: call.DTLS, request: idle, as: manyAddresses},
			{over: eachTransport, request: eachRequest, attribute: eachAttribute},
		}
	}
	for _, over := range transports {
		for request := range requests {
			for attribute := range attributes {
				all = append(all, act{over: over, request: request, attribute: attribute})
			}
		}
		all = append(all, act{over: over, request: fromPeers, attribute: noAttribute})
		if over != call.UDP {
			all = append(all, act{over: over, request: idle}, act{over: over, request: idle, as: manyAddresses})
		}
	}
	for request := range requests {
		for _, identities := range []string{manyUsers, manyAddresses} {
			all = append(all, act{over: call.UDP, request: request, attribute: noAttribute, as: identities})
		}
	}
	return all
}

// repeats is how many messages a session sends at once: enough to hold the most memory, or enough for its share of all
// messages.
func (a act) repeats() int {
	switch {
	case a.attribute == mostPermissions.attribute:
		return 6 // 80 permissions each; a session may have 256
	case a.request == "ChannelBind":
		return 70 // a session may have 64 channels
	}
	return 30
}
