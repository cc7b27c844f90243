package probe

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// Allocated opens a client with an allocation.
func (t *Trial) Allocated(more ...wire.Attr) *Client {
	c := t.Client()
	c.Allocate(more...).OK()
	return c
}

// Permitted opens a client with an allocation and a permission for a peer.
func (t *Trial) Permitted() (*Client, *Peer) {
	c, p := t.Allocated(), t.Peer()
	c.Permit(p.addr).OK()
	return c, p
}

// Bound opens a client with an allocation and channel 0x4000 to a peer.
func (t *Trial) Bound() (*Client, *Peer) {
	c, p := t.Allocated(), t.Peer()
	c.Bind(0x4000, p.addr).OK()
	return c, p
}

// Allocate sends an Allocate request for a UDP relay, with further attributes.
func (c *Client) Allocate(more ...wire.Attr) Answer {
	return c.Do(wire.Allocate, c.trial.plain(more...)...)
}

// Permit installs permissions for the addresses of peers.
func (c *Client) Permit(peers ...netip.AddrPort) Answer {
	var attrs []wire.Attr
	for _, p := range peers {
		attrs = append(attrs, wire.Address(wire.XORPeerAddress, p))
	}
	return c.Do(wire.CreatePermission, attrs...)
}

// Bind binds a channel to a peer.
func (c *Client) Bind(channel uint16, peer netip.AddrPort) Answer {
	return c.Do(wire.ChannelBind, wire.Channel(channel), wire.Address(wire.XORPeerAddress, peer))
}

// Refresh sends a Refresh request with a lifetime in seconds.
func (c *Client) Refresh(lifetime uint32) Answer {
	return c.Do(wire.Refresh, wire.Uint32(wire.Lifetime, lifetime))
}

// Indicate sends an indication.
func (c *Client) Indicate(method wire.Method, attrs ...wire.Attr) {
	c.transmit(wire.New(wire.Indication, method, attrs...).Bytes())
}

// SendTo sends data to a peer with a Send indication.
func (c *Client) SendTo(peer netip.AddrPort, data []byte, more ...wire.Attr) {
	attrs := []wire.Attr{wire.Address(wire.XORPeerAddress, peer), {Type: wire.DataAttr, Value: data}}
	c.Indicate(wire.Send, append(attrs, more...)...)
}

// SendOn sends data on a channel.
func (c *Client) SendOn(channel uint16, data []byte) {
	c.transmit(wire.ChannelData(channel, data, c.stream))
}

// GetsData fails the check unless data of a peer arrives in a Data indication.
func (c *Client) GetsData(peer netip.AddrPort, data []byte) {
	frame, ok := c.take(c.trial.Answer, anything)
	if !ok {
		c.trial.Failf("no Data indication within %s%s", c.trial.Answer, c.whyOver())
	}
	m, err := wire.Parse(frame)
	if err != nil || m.Class != wire.Indication || m.Method != wire.Data {
		c.trial.Failf("want a Data indication, got %s", describe(frame))
	}
	from, err := m.GetAddress(wire.XORPeerAddress)
	c.trial.must(err, "Data indication")
	got, ok := m.Get(wire.DataAttr)
	if !ok || from != peer || !bytes.Equal(got, data) {
		c.trial.Failf("want %s, got %s", quote("data of", peer, data), quote("data of", from, got))
	}
}

// GetsOn fails the check unless data arrives on a channel.
func (c *Client) GetsOn(channel uint16, data []byte) { c.getsOn(channel, data, c.trial.Answer) }

func (c *Client) getsOn(channel uint16, data []byte, wait time.Duration) {
	frame, ok := c.take(wait, anything)
	if !ok {
		c.trial.Failf("no ChannelData within %s%s", wait, c.whyOver())
	}
	if !wire.IsChannelData(frame) {
		c.trial.Failf("want ChannelData, got %s", describe(frame))
	}
	n, got, err := wire.ParseChannelData(frame)
	c.trial.must(err, "ChannelData")
	if n != channel || !bytes.Equal(got, data) {
		c.trial.Failf("want %s, got %s", quote("ChannelData", channel, data), quote("ChannelData", n, got))
	}
}

// quote formats data with its origin and length, shortened.
func quote(what string, where any, data []byte) string {
	if n, ok := where.(uint16); ok {
		where = fmt.Sprintf("0x%04x", n)
	}
	return fmt.Sprintf("%s %v: %d bytes %.24q", what, where, len(data), data)
}

// Peer is a UDP socket that the server relays to.
type Peer struct {
	trial *Trial
	conn  *net.UDPConn
	addr  netip.AddrPort
	buf   []byte
}

// Peer opens a peer.
func (t *Trial) Peer() *Peer { return t.peerAt(t.PeerAddr) }

func (t *Trial) peerAt(ip netip.Addr) *Peer {
	conn, err := t.listen(ip)
	t.must(err, "open a peer")
	t.later(func() { conn.Close() })
	conn.SetReadBuffer(4 << 20)
	return &Peer{
		trial: t, conn: conn, addr: netip.AddrPortFrom(ip, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()),
		buf: make([]byte, 1<<16),
	}
}

// listen opens a UDP socket on a random free port of the range for peers.
func (t *Trial) listen(ip netip.Addr) (conn *net.UDPConn, err error) {
	if t.LastPeer == 0 {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	}
	for range portTries {
		port := t.FirstPeer + uint16(rand.IntN(int(t.LastPeer-t.FirstPeer)+1))
		if slices.Contains(t.Own, port) {
			continue
		}
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, port)))
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return conn, err
}

// portTries is the number of attempts to find a free port.
const portTries = 100

func (p *Peer) receive(wait time.Duration) (data []byte, from netip.AddrPort, ok bool) {
	p.conn.SetReadDeadline(time.Now().Add(wait))
	n, from, err := p.conn.ReadFromUDPAddrPort(p.buf)
	return append([]byte(nil), p.buf[:n]...), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err == nil
}

// Gets fails the check unless the next datagram is the data, from a relayed address.
func (p *Peer) Gets(relay netip.AddrPort, data []byte) {
	got, from, ok := p.receive(p.trial.Answer)
	if !ok {
		p.trial.Failf("no datagram reaches the peer within %s, want %d bytes", p.trial.Answer, len(data))
	}
	if from != relay || !bytes.Equal(got, data) {
		p.trial.Failf("want %s, got %s", quote("at the peer, from", relay, data), quote("from", from, got))
	}
}

// Quiet fails the check if a datagram reaches the peer.
func (p *Peer) Quiet(after string) {
	if got, from, ok := p.receive(p.trial.Silence); ok {
		p.trial.Failf("%s: no datagram may reach the peer, got %s", after, quote("data from", from, got))
	}
}

// Send sends a datagram.
func (p *Peer) Send(to netip.AddrPort, data []byte) {
	_, err := p.conn.WriteToUDPAddrPort(data, to)
	p.trial.must(err, "send from the peer")
}
