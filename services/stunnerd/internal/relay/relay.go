// Package relay is the peers' side of an allocation: the relayed transport address and the media that passes it.
//
// A Relay is what pion/turn gets as relay socket. Datagrams of bound channels never reach pion, in either direction: the
// listener hands ChannelData to FromClient, and ReadFrom, which pion calls in a goroutine of the allocation, forwards what
// comes from a bound peer. About any other peer it asks pion, which knows the permissions, by the address alone; Deliver is
// pion's yes. Every datagram, either way, is checked against the routes by address and port; none is cut: it passes whole or
// not at all.
//
// Nothing on the path of media in channels allocates, formats, or waits for a lock or for room in a send buffer.
package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// ChannelLifetime is how long a channel binding lasts without a refresh (RFC 8656 §12).
	ChannelLifetime = 10 * time.Minute
	// PermissionLifetime is how long the peer of a channel is heard after the client has last refreshed the permission (RFC 8656 §9), or has
	// sent ChannelData to the peer.
	PermissionLifetime = 5 * time.Minute
	// MaxChannels bounds the channels of one allocation: pion/turn searches them one by one.
	MaxChannels = 64
	// headerSize is the length of the ChannelData header (RFC 8656 §12.4).
	headerSize = 4
	// longestMessage is the longest STUN message: its length has 16 bits (RFC 8489 §5). The longest datagram of IPv6 does not fit into one.
	longestMessage = 20 + 65535
)

// Routes is the view that the relays of one listener obey. It is replaced as a whole when the config changes.
type Routes = atomic.Pointer[cluster.View]

// Relay is the relay socket of one session.
type Relay struct {
	session *session.Session
	socket  Socket
	routes  *Routes
	meter   *meter.Meter
	ended   func(*Relay)

	// channels is copied on write: packets read it without a lock. binding is held while a client is told of a new one.
	channels atomic.Pointer[[]*channel]
	binding  sync.Mutex
	closed   atomic.Bool
	// forget ends the count of what the kernel drops at the socket.
	forget func()
	// waiting is what pion/turn has been asked about. It belongs to the goroutine that calls ReadFrom.
	waiting *Buffer
}

// channel is a binding of a number to a peer.
type channel struct {
	number uint16
	peer   netip.AddrPort
	// until is when the binding ends, as time since the session started.
	until atomic.Int64
	// heard is until when the peer is heard, likewise. The ChannelData of the client prolong it: RFC 8656 §12 has the permission of the peer end after
	// 300 s where the client does not refresh it, but some clients, aioice among them, renew nothing but their channels.
	heard atomic.Int64
	// verdict is what the routes said last; it holds as long as the view is the current one.
	verdict atomic.Pointer[verdict]
}

type verdict struct {
	view    *cluster.View
	reached cluster.Verdict
	traffic *meter.Traffic
}

// New makes a socket the relay of a session and tells the session about it: its relayed address is the advertised address with the
// socket's port. It calls ended, once, when the relay is closed.
func New(s *session.Session, socket Socket, advertised netip.Addr, routes *Routes, m *meter.Meter, ended func(*Relay)) *Relay {
	s.Relay = netip.AddrPortFrom(advertised, socket.Port())
	r := &Relay{session: s, socket: socket, routes: routes, meter: m, ended: ended}
	r.forget = m.RelayDrops.Watch(socket.Drops)
	r.channels.Store(new([]*channel))
	s.Channels = r.Channels
	return r
}

// Session is the session whose relay this is.
func (r *Relay) Session() *session.Session { return r.session }

// Closed tells whether the allocation is over.
func (r *Relay) Closed() bool { return r.closed.Load() }

// Close closes the socket. pion/turn calls it when the allocation ends, for whatever reason.
func (r *Relay) Close() error {
	if !r.closed.CompareAndSwap(false, true) {
		return nil
	}
	r.forget()
	err := r.socket.Close()
	r.ended(r)
	return err
}

// FromClient forwards one ChannelData frame from the client to the peer that its channel is bound to.
func (r *Relay) FromClient(frame []byte) {
	number, payload, ok := parseChannelData(frame)
	if !ok {
		r.drop(meter.Malformed, netip.AddrPort{})
		return
	}
	now := r.now()
	c := r.byNumber(number, now)
	if c == nil {
		r.drop(meter.ChannelUnbound, netip.AddrPort{})
		return
	}
	v := r.judge(c)
	if v.reached != cluster.Allowed {
		r.drop(ReasonOf(v.reached), c.peer)
		return
	}
	c.heard.Store(int64(now + PermissionLifetime))
	if !r.session.Admits(session.ToPeer, len(payload)) {
		r.drop(meter.ByteRate, c.peer)
		return
	}
	if err := r.socket.Send(payload, c.peer); err != nil {
		r.drop(Undelivered(err), c.peer)
		return
	}
	v.traffic.Tx.Add(len(payload))
	r.session.Traffic.Tx.Add(len(payload))
}

// ReadFrom forwards what bound peers send to the client. For a datagram of any other peer, and for word that one did not arrive, it returns
// the peer's address alone, without the payload: pion/turn has to say whether there is a permission, and would cut the payload at the size
// of its buffer. Where it says yes it sends an indication, which is the call to Deliver. ReadFrom returns an error only when the relay is
// closed, because pion ends the allocation on any.
//
// A panic ends this session instead of the process.
func (r *Relay) ReadFrom([]byte) (_ int, _ net.Addr, err error) {
	defer r.survive("forward from peer", &err)
	for {
		r.discard()
		b, err := r.socket.Receive()
		if err != nil {
			if r.Closed() || errors.Is(err, net.ErrClosed) {
				return 0, nil, net.ErrClosed
			}
			r.drop(meter.SendFailed, netip.AddrPort{})
			continue
		}
		if !r.fromPeer(b) {
			r.waiting = b
			return 0, net.UDPAddrFromAddrPort(b.peer), nil
		}
		b.release()
	}
}

// discard drops what pion/turn has not called for.
func (r *Relay) discard() {
	if b := r.waiting; b != nil {
		r.drop(meter.NoPermission, b.peer)
		r.waiting = nil
		b.release()
	}
}

// Deliver sends the datagram about which pion/turn was asked to the client, as a Data indication (RFC 8656 §11.3), whole.
func (r *Relay) Deliver() (err error) {
	defer r.survive("send Data indication", &err)
	b := r.waiting
	if b == nil {
		return nil
	}
	r.waiting = nil
	defer b.release()
	if !r.session.Admits(session.ToClient, b.n) {
		r.drop(meter.ByteRate, b.peer)
		return nil
	}
	peer := stun.XORMappedAddress{IP: b.peer.Addr().AsSlice(), Port: int(b.peer.Port())}
	content := stun.RawAttribute{Type: stun.AttrData, Value: b.payload()}
	if b.icmp != (ICMP{}) {
		content = b.icmp.attribute()
	}
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodData, stun.ClassIndication), peerAddress(peer), content)
	if err != nil {
		return fmt.Errorf("build Data indication: %w", err)
	}
	if len(m.Raw) > longestMessage {
		r.drop(meter.TooLarge, b.peer)
		return nil
	}
	if err := r.session.Client.Send(m.Raw); err != nil {
		r.drop(Undelivered(err), b.peer)
		return nil
	}
	if b.icmp == (ICMP{}) {
		name, _ := r.routes.Load().Match(b.peer)
		r.meter.Cluster(name).Rx.Add(b.n)
		r.session.Traffic.Rx.Add(b.n)
	}
	return nil
}

// peerAddress is an XOR-PEER-ADDRESS attribute.
type peerAddress stun.XORMappedAddress

// AddTo is part of stun.Setter.
func (p peerAddress) AddTo(m *stun.Message) error {
	return stun.XORMappedAddress(p).AddToAs(m, stun.AttrXORPeerAddress)
}

// survive makes a panic an error that ends the session. It is deferred.
func (r *Relay) survive(task string, err *error) {
	if cause := recover(); cause != nil {
		r.meter.Panicked(task, cause)
		*err = net.ErrClosed
		_ = r.Close()
	}
}

// fromPeer handles a datagram without pion and reports whether it could.
func (r *Relay) fromPeer(b *Buffer) bool {
	if b.icmp != (ICMP{}) {
		return !b.icmp.forClients(b.peer)
	}
	now := r.now()
	if c := r.bound(b.peer, now); c != nil {
		r.toClient(c, b, now)
		return true
	}
	if _, reached := r.routes.Load().Match(b.peer); reached != cluster.Allowed {
		r.drop(ReasonOf(reached), b.peer)
		return true
	}
	return false
}

func (r *Relay) toClient(c *channel, b *Buffer, now time.Duration) {
	v := r.judge(c)
	if v.reached != cluster.Allowed {
		r.drop(ReasonOf(v.reached), c.peer)
		return
	}
	if int64(now) >= c.heard.Load() {
		r.drop(meter.NoPermission, c.peer)
		return
	}
	if !r.session.Admits(session.ToClient, b.n) {
		r.drop(meter.ByteRate, c.peer)
		return
	}
	if err := r.session.Client.Send(b.channelData(c.number, r.session.Client.Connected())); err != nil {
		r.drop(Undelivered(err), c.peer)
		return
	}
	v.traffic.Rx.Add(b.n)
	r.session.Traffic.Rx.Add(b.n)
}

// WriteTo sends a Send indication's data. pion/turn has checked the permission, the routes decide about the port. A datagram that
// is not allowed is counted and reported as sent: an error would only be logged.
func (r *Relay) WriteTo(b []byte, addr net.Addr) (n int, err error) {
	defer r.survive("forward to peer", &err)
	udp, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, fmt.Errorf("send to %v: not a UDP address", addr)
	}
	peer := unmap(udp.AddrPort())
	name, reached := r.routes.Load().Match(peer)
	if reached != cluster.Allowed {
		r.drop(ReasonOf(reached), peer)
		return len(b), nil
	}
	if !r.session.Admits(session.ToPeer, len(b)) {
		r.drop(meter.ByteRate, peer)
		return len(b), nil
	}
	if err := r.socket.Send(b, peer); err != nil {
		r.drop(Undelivered(err), peer)
		return len(b), nil
	}
	r.meter.Cluster(name).Tx.Add(len(b))
	r.session.Traffic.Tx.Add(len(b))
	return len(b), nil
}

// LocalAddr is the relayed transport address.
func (r *Relay) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(r.session.Relay) }

// The deadlines of a net.PacketConn; pion/turn sets none.
func (r *Relay) SetDeadline(time.Time) error      { return nil }
func (r *Relay) SetReadDeadline(time.Time) error  { return nil }
func (r *Relay) SetWriteDeadline(time.Time) error { return nil }

// Bind binds a channel number to a peer, or refreshes the binding, once it has called tell, which tells the client. What comes meanwhile from peers
// without a channel waits: the client gets it after it was told, and by the channel if it is of that peer.
func (r *Relay) Bind(number uint16, peer netip.AddrPort, tell func()) {
	r.binding.Lock()
	defer r.binding.Unlock()
	tell()
	now := r.now()
	r.bind(number, peer, now)
	r.permit([]netip.AddrPort{peer}, now)
}

func (r *Relay) bind(number uint16, peer netip.AddrPort, now time.Duration) {
	until := int64(now + ChannelLifetime)
	live := make([]*channel, 0, len(*r.channels.Load())+1)
	for _, c := range *r.channels.Load() {
		switch {
		case c.number == number && c.peer == peer:
			c.until.Store(until)
			return
		case r.live(c, now):
			live = append(live, c)
		}
	}
	c := &channel{number: number, peer: peer}
	c.until.Store(until)
	c.heard.Store(int64(now + PermissionLifetime))
	c.verdict.Store(new(verdict))
	live = append(live, c)
	r.channels.Store(&live)
}

// Permit refreshes the permissions of peers, whatever their ports, for the channels that are bound to them. Channels that the client binds later need
// no such call: Bind refreshes the permission of its peer.
func (r *Relay) Permit(peers []netip.AddrPort) {
	r.binding.Lock()
	defer r.binding.Unlock()
	r.permit(peers, r.now())
}

func (r *Relay) permit(peers []netip.AddrPort, now time.Duration) {
	for _, c := range *r.channels.Load() {
		if slices.ContainsFunc(peers, func(p netip.AddrPort) bool { return p.Addr() == c.peer.Addr() }) {
			c.heard.Store(int64(now + PermissionLifetime))
		}
	}
}

// Channels is the number of live bindings.
func (r *Relay) Channels() int {
	n, now := 0, r.now()
	for _, c := range *r.channels.Load() {
		if r.live(c, now) {
			n++
		}
	}
	return n
}

// Bound returns the peer that a channel number is bound to, and the number that a peer is bound to; either is zero when there is none.
func (r *Relay) Bound(number uint16, peer netip.AddrPort) (netip.AddrPort, uint16) {
	var atNumber netip.AddrPort
	var atPeer uint16
	now := r.now()
	if c := r.byNumber(number, now); c != nil {
		atNumber = c.peer
	}
	if c := r.byPeer(peer, now); c != nil {
		atPeer = c.number
	}
	return atNumber, atPeer
}

func (r *Relay) byNumber(number uint16, now time.Duration) *channel {
	for _, c := range *r.channels.Load() {
		if c.number == number && r.live(c, now) {
			return c
		}
	}
	return nil
}

func (r *Relay) byPeer(peer netip.AddrPort, now time.Duration) *channel {
	for _, c := range *r.channels.Load() {
		if c.peer == peer && r.live(c, now) {
			return c
		}
	}
	return nil
}

// bound is the channel of a peer, also one that is just being bound; nil if there is none.
func (r *Relay) bound(peer netip.AddrPort, now time.Duration) *channel {
	if c := r.byPeer(peer, now); c != nil {
		return c
	}
	r.binding.Lock()
	defer r.binding.Unlock()
	return r.byPeer(peer, now)
}

// now is the time of the session's clock: the time since the session started.
func (r *Relay) now() time.Duration { return time.Since(r.session.Started) }

func (r *Relay) live(c *channel, now time.Duration) bool { return int64(now) < c.until.Load() }

// judge asks the routes about a channel's peer, once per view.
func (r *Relay) judge(c *channel) *verdict {
	view := r.routes.Load()
	if v := c.verdict.Load(); v.view == view && view != nil {
		return v
	}
	name, reached := view.Match(c.peer)
	v := &verdict{view: view, reached: reached}
	if reached == cluster.Allowed {
		v.traffic = r.meter.Cluster(name)
	}
	c.verdict.Store(v)
	return v
}

// ReasonOf is why a peer may not be reached.
func ReasonOf(v cluster.Verdict) meter.Reason {
	if v == cluster.PortDenied {
		return meter.PortDenied
	}
	return meter.PeerDenied
}

// Undelivered is the reason of a datagram that a socket or a client's transport did not take.
func Undelivered(err error) meter.Reason {
	if errors.Is(err, datagram.ErrCongested) {
		return meter.Congested
	}
	return meter.SendFailed
}

// drop counts a datagram that goes nowhere; peer is the one it came from or was meant for.
func (r *Relay) drop(why meter.Reason, peer netip.AddrPort) {
	s := r.session
	r.meter.DropNote(why, meter.Note{Listener: s.Listener, Client: s.Client.Addr(), Peer: peer, User: s.Username})
}

// parseChannelData splits a ChannelData frame. What follows the payload is padding, or noise, and is ignored (RFC 8656 §12.5).
func parseChannelData(frame []byte) (number uint16, payload []byte, ok bool) {
	if len(frame) < headerSize {
		return 0, nil, false
	}
	length := int(binary.BigEndian.Uint16(frame[2:]))
	if len(frame) < headerSize+length {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(frame), frame[headerSize : headerSize+length], true
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
