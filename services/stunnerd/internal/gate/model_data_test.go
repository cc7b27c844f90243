package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
)

// somePeers returns n peers, mostly of the family of the client's relay.
func (m *trial) somePeers(a *actor, n int) (peers []peerFacts, attrs []stun.Setter) {
	for len(peers) < n {
		p := m.somePeer(a)
		peers = append(peers, p)
		attrs = append(attrs, addressAttr(stun.AttrXORPeerAddress, p.at))
	}
	return peers, attrs
}

func (m *trial) somePeer(a *actor) peerFacts {
	for range 4 {
		if p := pick(m, modelPeers...); a.alloc == nil || a.otherFamily(p) == m.often(5) &&
			m.allowsAddr(p) == m.often(90) {
			return p
		}
	}
	return pick(m, modelPeers...)
}

// knownPeer usually returns a peer with a permission or a channel of the client, if there is one.
func (m *trial) knownPeer(a *actor) peerFacts {
	for range 4 {
		if p := pick(m, modelPeers...); a.alloc != nil && (a.alloc.permits(p) || a.alloc.channelOf(p.at) != 0) {
			return p
		}
	}
	return m.somePeer(a)
}

// target is the content of a permission or channel request.
type target struct {
	channel uint32
	peers   []peerFacts
}

func (t target) String() string { return fmt.Sprintf("%#x to %v", t.channel, t.peers) }

type words string

func (w words) String() string { return string(w) }

func (m *trial) createPermission(a *actor) outcome {
	peers, attrs := m.somePeers(a, pick(m, 1, 1, 1, 1, 2, 2, 3, 0))
	return m.request(a, stun.MethodCreatePermission, target{0, peers}, attrs, func(l login) (
		stun.ErrorCode, func(*stun.Message) error,
	) {
		switch code := a.owned(l); {
		case code != 0:
			return code, nil
		case len(peers) == 0:
			return 400, nil
		case slices.ContainsFunc(peers, a.otherFamily):
			return 443, nil
		case slices.ContainsFunc(peers, func(p peerFacts) bool { return !m.allowsAddr(p) }):
			return 403, nil
		}
		for _, p := range peers {
			a.alloc.permit(p)
		}
		return 0, nil
	})
}

func (a *actor) otherFamily(p peerFacts) bool { return p.at.Addr().Is4() != a.alloc.relay.Addr().Is4() }

func (al *modelAllocation) permit(p peerFacts) {
	al.permissions[p.at.Addr()] = time.Now().Add(300 * time.Second)
}

func (m *trial) channelBind(a *actor) outcome {
	peers, attrs := m.somePeers(a, m.mostly(1, 0, 2))
	if a.alloc != nil && m.often(4) {
		peers = []peerFacts{{at: a.alloc.relay}} // the address of the client's own relay
		attrs = []stun.Setter{addressAttr(stun.AttrXORPeerAddress, a.alloc.relay)}
	}
	n := pick[uint32](m, 0x4000, 0x4000, 0x4001, 0x4001, 0x4002, 0x4FFF, 0x7FFF, 0x7FFF, 0x3FFF, 0x8000, 0)
	if n != 0 {
		attrs = append(attrs, channel(n))
	}
	return m.request(a, stun.MethodChannelBind, target{n, peers}, attrs, func(l login) (
		stun.ErrorCode, func(*stun.Message) error,
	) {
		code := a.owned(l)
		if code != 0 {
			return code, nil
		}
		if n < 0x4000 || n > 0x7FFF || len(peers) != 1 {
			return 400, nil
		}
		bound, is := a.alloc.channels[uint16(n)]
		switch {
		case a.otherFamily(peers[0]):
			return 443, nil
		case is && bound.peer != peers[0].at, a.alloc.channelOf(peers[0].at) != 0 &&
			a.alloc.channelOf(peers[0].at) != uint16(n):
			return 400, nil
		case !m.allows(peers[0]):
			return 403, nil
		}
		a.alloc.channels[uint16(n)] = binding{
			peers[0].at, time.Now().Add(600 * time.Second), a.alloc.channels[uint16(n)].maySendUntil,
		}
		a.alloc.permit(peers[0])
		return 0, nil
	})
}

// channelOf returns the channel number of a peer, 0 for none.
func (al *modelAllocation) channelOf(peer netip.AddrPort) uint16 {
	for n, b := range al.channels {
		if b.peer == peer {
			return n
		}
	}
	return 0
}

// payload returns a different payload in each step.
func (m *trial) payload() string {
	return fmt.Sprint("step ", m.step, strings.Repeat(".", m.rng.IntN(5)))
}

func (m *trial) sendIndication(a *actor) outcome {
	var attrs []stun.Setter
	peers := slices.Repeat([]peerFacts{m.knownPeer(a)}, m.mostly(1, 0, 2))
	for _, p := range peers {
		attrs = append(attrs, addressAttr(stun.AttrXORPeerAddress, p.at))
	}
	payload, odd := m.payload(), m.often(4)
	hasData := !m.often(3)
	if odd {
		attrs = append(attrs, number(0x7777, 0))
	}
	if hasData {
		attrs = append(attrs, data(payload))
	}
	whole := m.often(20)
	if whole {
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrDontFragment})
		odd = odd || m.net.Fragments
	}
	m.Receive(m.build(append(attrs, stun.NewType(stun.MethodSend, stun.ClassIndication))...), a)
	o := outcome{name: "Send silence"}
	if a.alloc != nil && len(peers) == 1 && hasData && !odd && m.allows(peers[0]) && a.alloc.permits(peers[0]) {
		o = outcome{
			name: "Send passes",
			sent: []relaytest.Datagram{{From: a.alloc.relay, To: peers[0].at, Payload: payload, Whole: whole}},
		}
	}
	return m.said(o, "%s sends %q to %v", a.name, payload, peers)
}

func (al *modelAllocation) permits(p peerFacts) bool {
	_, is := al.permissions[p.at.Addr()]
	return is
}

func (m *trial) channelData(a *actor) outcome {
	n, payload := m.knownChannel(a), m.payload()
	claimed, behind := len(payload), strings.Repeat("\x00", m.rng.IntN(3))
	if m.often(4) {
		claimed += 5 // longer than the frame
	}
	if r := m.Relay(a.addr); r != nil {
		r.FromClient(fmt.Appendf(channelHeader(n, claimed), "%s%s", payload, behind))
	}
	o := outcome{name: "ChannelData silence"}
	if a.alloc != nil && claimed == len(payload) {
		if b, is := a.alloc.channels[n]; is && m.allows(factsOf(b.peer)) {
			b.maySendUntil = time.Now().Add(300 * time.Second)
			a.alloc.channels[n] = b
			o = outcome{
				name: "ChannelData passes",
				sent: []relaytest.Datagram{{From: a.alloc.relay, To: b.peer, Payload: payload}},
			}
		}
	}
	return m.said(o, "%s sends %q on channel %#x", a.name, payload, n)
}

// knownChannel usually returns the number of a bound channel, if there is one.
func (m *trial) knownChannel(a *actor) uint16 {
	for range 4 {
		if n := pick[uint16](m, 0x4000, 0x4001, 0x4002, 0x7FFF); a.alloc != nil && a.alloc.channels[n].peer.IsValid() {
			return n
		}
	}
	return 0x4001
}

func channelHeader(n uint16, length int) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, n), uint16(length))
}

func factsOf(peer netip.AddrPort) peerFacts {
	return modelPeers[slices.IndexFunc(modelPeers, func(p peerFacts) bool { return p.at == peer })]
}

// peerSends makes a peer send to the current or a former relay of a client. Data is sent in a channel while the peer
// has a permission, or if ChannelData was sent to it within the lifetime of a permission: see
// TestPeerOfChannelMaySendFor300Seconds.
func (m *trial) peerSends(a *actor) outcome {
	p, payload, to := m.knownPeer(a), m.payload(), a.relay
	m.net.Peer(p.at).Send(to, payload)
	o := outcome{name: "peer silence"}
	if holder := m.holder(to); holder != nil {
		a = holder // another client may have the port meanwhile
	}
	if a.alloc != nil && m.allows(p) {
		n := a.alloc.channelOf(p.at)
		switch {
		case n != 0 && !a.alloc.permits(p) && !a.alloc.channels[n].maySendUntil.After(time.Now()):
		case n != 0:
			o = outcome{name: "peer by channel", to: a, check: func(frame []byte) error {
				want := append(channelHeader(n, len(payload)), payload...)
				for a.connected && len(want)%4 != 0 { // RFC 8656 §12.5
					want = append(want, 0)
				}
				if !bytes.Equal(frame, want) {
					return fmt.Errorf("got % x, want % x", frame, want)
				}
				return nil
			}}
		case a.alloc.permits(p):
			o = outcome{
				name: "peer by indication", to: a,
				check: func(frame []byte) error { return isData(frame, p.at, payload) },
			}
		}
	}
	return m.said(o, "peer %s sends %q to %s, the relay of %s", p.at, payload, to, a.name)
}

// isData checks a Data indication.
func isData(frame []byte, peer netip.AddrPort, payload string) error {
	got := &stun.Message{Raw: frame}
	var from stun.XORMappedAddress
	if err := got.Decode(); err != nil {
		return fmt.Errorf("got % x, want a Data indication: %w", frame, err)
	}
	content, err := got.Get(stun.AttrData)
	if err = errors.Join(err, from.GetFromAs(got, stun.AttrXORPeerAddress)); err != nil {
		return err
	}
	if got.Type != stun.NewType(stun.MethodData, stun.ClassIndication) || from.String() != peer.String() ||
		string(content) != payload {
		return fmt.Errorf("got %s from %s with %q, want %q from %s", got.Type, from, content, payload, peer)
	}
	return nil
}
