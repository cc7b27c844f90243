package offload

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// path is a channel between a client and a peer. Its packets are sent one after the other.
type path struct {
	*ask.Client
	t       *testing.T
	gateway *gateway
	channel uint16
	peer    *net.UDPConn
	relay   netip.AddrPort
}

const firstChannel = 0x4001

// path makes an allocation and binds a channel to a peer of the same family in the namespace of the peers.
func (g *gateway) path(f family) *path {
	g.t.Helper()
	p := g.phone(f, f)
	p.peer = socket(g.t, g.peers, f.peer)
	p.bind()
	return p
}

// phone makes an allocation of the family of its peers, from a client of another or the same family.
func (g *gateway) phone(client, peers family) *path {
	g.t.Helper()
	p := &path{t: g.t, gateway: g, channel: firstChannel}
	var err error
	g.clients.Do(func() {
		p.Client, err = ask.Dial(client.client, netip.AddrPortFrom(client.gateway, uint16(g.Plain)), g.user, g.password)
	})
	harnesstest.NoError(g.t, err)
	g.t.Cleanup(p.Client.Close)
	if p.relay, err = ask.Relayed(p.do(stun.MethodAllocate, ask.UDP(), ask.Family(peers.peer))); err != nil {
		g.t.Fatal(err)
	}
	return p
}

// do sends a request and returns its success response.
func (p *path) do(method stun.Method, attrs ...stun.Setter) *stun.Message {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	defer cancel()
	answer, challenges, err := p.Do(ctx, method, attrs...)
	if err != nil || ask.Code(answer) != 0 {
		p.t.Fatalf("%s: error %d, %v", method, ask.Code(answer), err)
	}
	p.gateway.udp.rx.Add(int64(challenges + 1))
	p.gateway.udp.tx.Add(int64(challenges + 1))
	return answer
}

func (p *path) bind() {
	p.t.Helper()
	p.do(stun.MethodChannelBind, ask.Channel(p.channel), ask.Peer(p.peerAddr()))
}

func (p *path) permit() {
	p.t.Helper()
	p.do(stun.MethodCreatePermission, ask.Peer(p.peerAddr()))
}

func (p *path) peerAddr() netip.AddrPort { return p.peer.LocalAddr().(*net.UDPAddr).AddrPort() }

// up sends a random payload from the client to the peer, and compares it there.
func (p *path) up(size int) {
	p.t.Helper()
	p.gateway.udp.rx.Add(1)
	p.through(size, func(payload []byte) error { return p.Send(ask.ChannelData(p.channel, payload)) },
		func() ([]byte, error) { return read(p.peer) }, func(payload []byte) []byte { return payload })
}

// down sends a random payload from the peer to the client, and compares its ChannelData there.
func (p *path) down(size int) {
	p.t.Helper()
	p.gateway.udp.tx.Add(1)
	p.through(size, func(payload []byte) error {
		_, err := p.peer.WriteToUDPAddrPort(payload, p.relay)
		return err
	}, func() ([]byte, error) { return p.Receive(timeout) },
		func(payload []byte) []byte { return ask.ChannelData(p.channel, payload) })
}

func (p *path) through(size int, send func([]byte) error, receive func() ([]byte, error), want func([]byte) []byte) {
	p.t.Helper()
	payload := make([]byte, size)
	_, _ = rand.Read(payload)
	if size > 0 {
		payload[0] |= 0x80 // as in RTP (RFC 3550 §5.1): a STUN message stays in user space
	}
	harnesstest.NoError(p.t, send(payload))
	if got, err := receive(); err != nil || !bytes.Equal(got, want(payload)) {
		p.t.Fatalf("a payload of %d bytes: %v, received %d bytes: %x", size, err, len(got), got)
	}
}

func read(c *net.UDPConn) ([]byte, error) {
	b := make([]byte, 2048)
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	n, err := c.Read(b)
	return b[:n], err
}

// exchange sends packets of 160 bytes in both directions and returns the numbers that the kernel has forwarded.
func (p *path) exchange(packets int) (kernel struct{ up, down int }) {
	p.t.Helper()
	before := p.gateway.settled()
	for range packets {
		p.up(160)
		p.down(160)
	}
	f := flow{packets, 160 * packets}
	return p.gateway.counted(before, f, f)
}

// warm sends packets until the kernel forwards both directions.
func (p *path) warm() {
	p.t.Helper()
	for range 20 {
		if k := p.exchange(5); k.up > 0 && k.down > 0 {
			return
		}
	}
	p.t.Fatalf("the kernel does not forward: %+v", p.gateway.status())
}

// inKernel exchanges packets and requires that the kernel forwards all of them.
func (p *path) inKernel() {
	p.t.Helper()
	const packets = 20
	p.warm()
	before := p.gateway.runs()
	if k := p.exchange(packets); k.up != packets || k.down != packets {
		p.t.Errorf("the kernel forwarded %d up and %d down of %d packets each", k.up, k.down, packets)
	}
	// XDP passes the packets that renew its Ethernet headers, and packets of neighbour protocols.
	n, xdp := p.gateway.runs()-before, p.gateway.Config.Admin.OffloadEngine == "XDP"
	if xdp && n > packets/2 || !xdp && n < 2*packets {
		p.t.Errorf("the programs of TC ran %d times during %d packets", n, 2*packets)
	}
}

// inUserSpace exchanges packets and requires that the kernel forwards none of them.
func (p *path) inUserSpace() {
	p.t.Helper()
	if k := p.exchange(20); k.up != 0 || k.down != 0 {
		p.t.Errorf("the kernel forwarded %d packets up and %d down, want 0", k.up, k.down)
	}
}

// hangUp deletes the allocation.
func (p *path) hangUp() { p.t.Helper(); p.do(stun.MethodRefresh, ask.Lifetime(0)) }

// sequence returns a payload with a number, which begins like an RTP packet.
func sequence(n uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 160), rtp|n)[:160]
}

// rtp is version 2 of RTP in the first byte of a number (RFC 3550 §5.1). A STUN message stays in user space.
const rtp = 2 << 62
