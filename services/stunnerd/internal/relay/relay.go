// Package relay implements the peer side of an allocation: the relayed transport address and the data that passes
// through it.
//
// Data in channels does not pass through the allocation engine. The listener passes ChannelData to an Outbox or to
// FromClient. A poller receives the datagrams of peers in batches and calls ReceiveBatch, which forwards those of peers
// that have a channel, and queues those of other peers that the routes allow. A goroutine that exists only while the
// queue has datagrams asks the allocation engine whether the peer has a permission, and forwards the datagram as a Data
// indication. Every datagram, in either direction, is checked against the routes by IP address and port. No datagram is
// truncated: a datagram that is too long is dropped.
//
// The path of data in channels does not allocate, does not format strings, and does not wait for room in a send buffer.
// It takes no lock of the relay while no datagram waits for the allocation engine.
//
// # Files
//
//	topeer.go toclient.go  data from a client; data from a peer
//	nomination.go          connectivity checks, for the journal and for moves
//	move.go                a relay that replaces one of another pod
//	kernel_linux.go        sockets, their source address and port
//	ports.go               ports of a range
//	reservation.go         reserved ports (RESERVATION-TOKEN)
//	poller_linux.go        epoll instances of relay sockets
//	room_linux.go          file descriptors
//	offload.go             arming of channels in the kernel
//	evidence.go            packets of each peer
//	restore.go             channels of a crashed process
//
// The peers that a relay sends to and receives from are decided by package cluster.
package relay

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// ChannelLifetime is how long a channel binding lasts without a refresh (RFC 8656 §12).
	ChannelLifetime = 10 * time.Minute
	// PermissionLifetime is how long a permission lasts without a refresh (RFC 8656 §9). ChannelData from the client
	// also refreshes the permission of its peer, but only for data in that channel (see channel.permitted).
	PermissionLifetime = 5 * time.Minute
	// MaxChannels bounds the channels of one allocation, because lookups are linear.
	MaxChannels = 64
	// headerSize is the length of the ChannelData header (RFC 8656 §12.4).
	headerSize = 4
)

// Relay is the relay socket of one session.
type Relay struct {
	session *session.Session
	socket  Socket
	routes  *Routes
	meter   *meter.Meter
	ended   func(*Relay)

	// channels is copied on write, so that a lookup of the channel of a datagram needs no lock.
	channels atomic.Pointer[[]*channel]
	// binding is a mutex for changes of the channel bindings.
	binding sync.Mutex
	closed  atomic.Bool
	// left is the number of channels at the end of the session, and -1 until then.
	left atomic.Int64
	// forget removes the socket from the counter of datagrams that the kernel dropped. See meter.KernelDrops.Watch.
	forget func()
	// permitted reports whether CreatePermission has installed a permission for the IP address of a peer. Start sets
	// it.
	permitted func(peer netip.AddrPort) bool
	undecided undecided
	// named is the view that is limited to the routes that the credential names.
	named atomic.Pointer[named]
	// spent is set when the session has used the bytes that its credential allows.
	spent atomic.Bool
	// slots is the claim of the session for channels that the kernel forwards.
	slots session.Claim
	// nominations is nil until the client has sent a connectivity check.
	nominations atomic.Pointer[nominations]
	// moving is nil unless peers still use a former relay socket.
	moving atomic.Pointer[move]
	// departing is set from Depart until Stay. passing is nil until Hand.
	departing atomic.Bool
	passing   atomic.Pointer[func([]Datagram)]
	unbound   unbound
}

// named is a view of the routes of the listener, limited to the routes that a credential names.
type named struct{ whole, view *cluster.View }

// channel is a binding of a number to a peer.
type channel struct {
	number uint16
	peer   netip.AddrPort
	// since is when the channel was first bound.
	since time.Time
	// answered is closed when the answer to the ChannelBind that has bound the channel is sent.
	answered <-chan struct{}
	// until is when the channel binding ends, as a time.Duration since the start of the session.
	until atomic.Int64
	// permitted is the end of the peer's permission to send in this channel, as a time.Duration since the start of the
	// session. ChannelData from the client extends it. By RFC 8656 §12 the permission would end after 300 s without
	// CreatePermission or ChannelBind. But some clients, for example aioice, send only ChannelBind, and only as often
	// as the lifetime of the channel requires.
	permitted atomic.Int64
	// installed is the end of the permission for the IP address of the peer that the latest ChannelBind has installed,
	// as a time.Duration since the start of the session. Unlike permitted, it also applies to data outside of the
	// channel.
	installed atomic.Int64
	// count counts the packets of the peer.
	count *peerCount
	// verdict is the result of the last route lookup. It is valid as long as its view is the current one.
	verdict atomic.Pointer[verdict]
	// binding makes the kernel forward packets of the channel (see arm).
	binding offload.Binding
	// armAfter is the earliest time of the next attempt to arm the binding, as a time.Duration since the start of the
	// session.
	armAfter atomic.Int64
}

type verdict struct {
	view    *cluster.View
	reached cluster.Verdict
	traffic *meter.Traffic
	usage   *meter.Traffic // nil without usage records
}

// New returns a relay for a session. The relay receives from peers and sends to them with a socket. New sets the field
// Relay of the session to the advertised address with the port of the socket, and sets the fields Channels and Peers.
// The relay calls ended once, when it is closed.
func New(
	s *session.Session, socket Socket, advertised netip.Addr, routes *Routes, m *meter.Meter, ended func(*Relay),
) *Relay {
	s.Relay = netip.AddrPortFrom(advertised, socket.Port())
	r := &Relay{session: s, socket: socket, routes: routes, meter: m, ended: ended, slots: s.Claim(session.Slots)}
	r.left.Store(-1)
	r.undecided.memory = s.Claim(session.Memory)
	r.channels.Store(new([]*channel))
	s.Channels, s.Peers = r.Channels, r.Peers
	r.forget = m.RelayDrops.Watch(socket.Drops)
	return r
}

// Start makes the relay receive from peers. The function permitted reports whether CreatePermission has installed a
// permission for the IP address of a peer. It is called for peers without a channel, by one goroutine at a time.
func (r *Relay) Start(permitted func(peer netip.AddrPort) bool) error {
	r.permitted = permitted
	return r.socket.Start(r)
}

// Session returns the session of the relay.
func (r *Relay) Session() *session.Session { return r.session }

// Closed reports whether the allocation has ended.
func (r *Relay) Closed() bool { return r.closed.Load() }

// Close closes the socket and calls the function ended of New. The allocation engine calls it when the allocation ends.
func (r *Relay) Close() error {
	if !r.closed.CompareAndSwap(false, true) {
		return nil
	}
	r.forget()
	r.left.Store(int64(r.Channels()))
	for _, c := range *r.channels.Load() {
		c.binding.End()
	}
	var err error
	if r.passing.Load() == nil {
		err = r.socket.Close()
	}
	r.moving.Load().close()
	r.undecided.close()
	r.ended(r)
	r.nominations.Load().close() // the session cannot be charged any more
	// A reader of the listener may keep a closed relay until its next lookup.
	r.channels.Store(new([]*channel))
	r.unbound.counts.Store(nil)
	return err
}

// EndOnPanic ends the session, and not the process, if the calling function panics. It must be deferred.
func (r *Relay) EndOnPanic(task string) {
	if cause := recover(); cause != nil {
		r.meter.CountPanic(task, cause)
		r.session.Usage.Because(meter.Internal.String())
		_ = r.Close()
	}
}

// Bind binds a channel number to a peer or refreshes the binding, and installs a permission for the peer (RFC 8656
// §12). The caller must call answered when it has sent the answer to the client. Datagrams of the peer of a new channel
// wait until then, so that ChannelData does not arrive before the answer.
func (r *Relay) Bind(number uint16, peer netip.AddrPort) (answered func()) {
	r.binding.Lock()
	defer r.binding.Unlock()
	now := r.now()
	answered = r.bind(number, peer, now)
	r.permit([]netip.AddrPort{peer}, now)
	return answered
}

func (r *Relay) bind(number uint16, peer netip.AddrPort, now time.Duration) (answered func()) {
	until := int64(now + ChannelLifetime)
	live := make([]*channel, 0, len(*r.channels.Load())+1)
	for _, c := range *r.channels.Load() {
		switch {
		case c.number == number && c.peer == peer:
			c.until.Store(until)
			c.installed.Store(int64(now + PermissionLifetime))
			r.renew(c)
			return func() {}
		case r.live(c, now):
			live = append(live, c)
		default:
			c.binding.End()
			r.unbound.put(c.count)
		}
	}
	done := make(chan struct{})
	c := &channel{
		number: number, peer: peer, since: r.session.Started.Add(now), answered: done, count: r.unbound.take(peer),
	}
	c.until.Store(until)
	c.permitted.Store(int64(now + PermissionLifetime))
	c.installed.Store(int64(now + PermissionLifetime))
	c.verdict.Store(new(verdict))
	live = append(live, c)
	r.channels.Store(&live)
	return sync.OnceFunc(func() { close(done) })
}

// Permit refreshes the permissions of peers for data in their channels. A permission is for an IP address, so ports do
// not matter. Bind refreshes the permission of its peer in the same way.
func (r *Relay) Permit(peers []netip.AddrPort) {
	r.binding.Lock()
	defer r.binding.Unlock()
	r.permit(peers, r.now())
}

func (r *Relay) permit(peers []netip.AddrPort, now time.Duration) {
	for _, c := range *r.channels.Load() {
		if slices.ContainsFunc(peers, func(p netip.AddrPort) bool { return p.Addr() == c.peer.Addr() }) {
			c.permitted.Store(int64(now + PermissionLifetime))
			r.renew(c)
		}
	}
}

// Permitted reports whether a ChannelBind has installed a permission for the IP address of a peer. The allocation
// engine holds the permissions that CreatePermission installs.
func (r *Relay) Permitted(peer netip.AddrPort) bool {
	now := int64(r.now())
	return slices.ContainsFunc(*r.channels.Load(), func(c *channel) bool {
		return c.peer.Addr() == peer.Addr() && now < c.installed.Load()
	})
}

// Channels returns the number of channel bindings that have not ended.
func (r *Relay) Channels() int {
	if n := r.left.Load(); n >= 0 {
		return int(n)
	}
	n, now := 0, r.now()
	for _, c := range *r.channels.Load() {
		if r.live(c, now) {
			n++
		}
	}
	return n
}

// Bound returns the peer to which a channel number is bound, and the channel number to which a peer is bound. Each is
// zero if there is no such binding.
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

// isAnswered reports whether the answer to the ChannelBind was sent to the client.
func (c *channel) isAnswered() bool {
	select {
	case <-c.answered:
		return true
	default:
		return false
	}
}

// now returns the time since the start of the session.
func (r *Relay) now() time.Duration { return r.since(time.Now()) }

// since converts a time to the duration since the start of the session.
func (r *Relay) since(now time.Time) time.Duration { return now.Sub(r.session.Started) }

func (r *Relay) live(c *channel, now time.Duration) bool { return int64(now) < c.until.Load() }

// View returns the routes of the listener, limited to those that the credential of the session names.
func (r *Relay) View() *cluster.View {
	whole := r.routes.Load()
	if len(r.session.Caveats.Routes) == 0 {
		return whole
	}
	if n := r.named.Load(); n != nil && n.whole == whole {
		return n.view
	}
	n := &named{whole, whole.Only(r.session.Caveats.Routes)}
	r.named.Store(n)
	return n.view
}

// judge returns the verdict of the routes on the peer of a channel. It looks the peer up once for each view of the
// routes.
func (r *Relay) judge(c *channel) *verdict {
	view := r.View()
	if v := c.verdict.Load(); v.view == view && view != nil {
		return v
	}
	c.binding.Fold() // counts the packets for the cluster of the old verdict
	name, reached := view.Match(c.peer)
	v := &verdict{view: view, reached: reached}
	if reached == cluster.Allowed {
		v.traffic, v.usage = r.meter.Cluster(name), r.session.Usage.Route(name)
	}
	c.verdict.Store(v)
	return v
}

// ReasonOf returns the reason with which a refusal or drop is counted, for a verdict other than cluster.Allowed.
func ReasonOf(v cluster.Verdict) meter.Reason {
	switch v {
	case cluster.PortDenied:
		return meter.PortDenied
	case cluster.Unnamed:
		return meter.CaveatRoute
	}
	return meter.PeerDenied
}

// Undelivered returns the reason with which a dropped datagram is counted, for an error of Socket.Send or
// session.Client.Send.
func Undelivered(err error) meter.Reason {
	if errors.Is(err, datagram.ErrCongested) {
		return meter.Congested
	}
	return meter.SendFailed
}

// drop counts a dropped datagram from or to a peer.
func (r *Relay) drop(why meter.Reason, peer netip.AddrPort) {
	s := r.session
	r.meter.DropNote(why, meter.Note{Listener: s.Listener, Client: s.Client.Addr(), Peer: peer, User: s.Username})
}

// Deny drops a datagram to a peer that the routes do not allow. A peer is not in the list of denied peers if only the
// credential denies it, because the list shows missing routes.
func (r *Relay) Deny(v cluster.Verdict, peer netip.AddrPort, now time.Time) {
	r.drop(ReasonOf(v), peer)
	if v != cluster.Unnamed {
		r.session.DenyDatagram(peer, v == cluster.PortDenied, now)
	}
}

// admits reports whether the limits of bytes admit a datagram, and drops it if they do not.
func (r *Relay) admits(d session.Direction, n int, peer netip.AddrPort, now time.Time) bool {
	why, ok := r.session.Admits(d, n, now)
	if !ok {
		r.drop(why, peer)
		if why == meter.CaveatBytes {
			r.spent.Store(true)
		}
	}
	return ok
}

// endSpent ends the session if it has used the bytes that its credential allows. It is called when the datagrams that
// were admitted before have been sent. The next Refresh gets 437, and the next Allocate gets 486.
func (r *Relay) endSpent() {
	if r.spent.Load() {
		r.session.Usage.Because(meter.CaveatBytes.String())
		_ = r.Close()
	}
}

// parseChannelData splits a ChannelData frame. Bytes after the payload are padding and are ignored (RFC 8656 §12.5).
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
