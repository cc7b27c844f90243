package session

import (
	"net/netip"
	"time"
)

// PeerTraffic counts the packets between a relay and one peer of its session.
type PeerTraffic struct {
	Peer netip.AddrPort
	// Cluster is the name of the cluster that allows the peer now, or "" if none does.
	Cluster string
	// Sent counts packets to the peer. Received counts packets of the peer that may be sent to the client.
	Sent, Received uint64
	// Unanswered is the number of packets to the peer since the last packet of the peer.
	Unanswered uint64
	// LastSent and LastReceived are the times of the last packets. They are zero if there was none.
	LastSent, LastReceived time.Time
	// UnansweredSince is the time of the first unanswered packet. It is zero if there is none.
	UnansweredSince time.Time
	// ICMPErrors counts ICMP messages that report that packets to the peer were not delivered. LastICMP is the time of
	// the last one, or zero.
	ICMPErrors uint64
	LastICMP   time.Time
}

// EachPeer calls Peers, unless the session has no relay.
func (s *Session) EachPeer(show func(PeerTraffic)) {
	if s.Peers != nil {
		s.Peers(show)
	}
}
