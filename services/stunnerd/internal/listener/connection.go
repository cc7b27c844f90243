package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Limits of connections.
const (
	// handshakeTimeout is the maximum duration of a handshake, including the header of the PROXY protocol before it.
	handshakeTimeout = 5 * time.Second
	// firstMessageTimeout is how long a client may be silent before its first message.
	firstMessageTimeout = 10 * time.Second
	// idleTimeout is how long a client without a session may be silent after a message.
	idleTimeout = 30 * time.Second

	// unauthenticatedLimit is the maximum length of a frame of a client without a session.
	unauthenticatedLimit = 1024
	// sessionLimit is the maximum length of a frame of a client with a session.
	sessionLimit = stunmsg.MaxSize
	// acceptPause is the pause after accept(2) has failed, for example because no file descriptors are left for
	// clients.
	acceptPause = 100 * time.Millisecond
	// acceptWarning is the minimum time between two log records about errors of accept(2).
	acceptWarning = time.Minute
)

// transport contains the properties in which TCP, TLS and DTLS listeners differ.
type transport struct {
	// secure makes the TLS or DTLS handshake. It is nil for TCP.
	secure func(ctx context.Context, conn net.Conn, turns *handshakeTurns) (net.Conn, error)
	certs  *certificates
	// stream reports whether the connection is a byte stream (TCP, TLS). A DTLS connection preserves records instead.
	stream bool
}

func (t transport) frames(from io.Reader, charge func() session.Claim) frames {
	if t.stream {
		return newFramer(from, charge)
	}
	return &records{from: from}
}

// frames reads frames of at most limit bytes from a client. The slice that next returns is valid until the next call.
type frames interface {
	next(limit int) ([]byte, error)
	// close frees memory when the connection has ended.
	close()
}

// connections serves the connections of a listener. Each has a goroutine.
type connections struct {
	transport
	sockets io.Closer // the listening sockets
	gate    *gate.Gate
	meter   *meter.Listener
	opt     Options
	serving sync.WaitGroup
	// balancers are the prefixes of the load balancers, whose connections begin with a header of the PROXY protocol.
	balancers atomic.Pointer[[]netip.Prefix]

	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
	// portReleased reports whether ReleasePort has closed the listening socket.
	portReleased bool
}

func newConnections(sockets io.Closer, t transport, g *gate.Gate, m *meter.Listener, o Options) *connections {
	return &connections{sockets: sockets, transport: t, gate: g, meter: m, opt: o, open: map[*connection]struct{}{}}
}

// Update replaces the certificates and the prefixes of load balancers. Open connections stay.
func (l *connections) Update(c config.Listener) error {
	l.setBalancers(c)
	if l.certs == nil {
		return nil
	}
	return l.certs.update(c)
}

func (l *connections) setBalancers(c config.Listener) { l.balancers.Store(new(c.ProxyPrefixes())) }

// fromBalancer reports whether an address belongs to a load balancer.
func (l *connections) fromBalancer(a netip.Addr) bool {
	all := l.balancers.Load()
	return all != nil && slices.ContainsFunc(*all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Certificates implements Listener.
func (l *connections) Certificates() []*x509.Certificate { return l.certs.leaves() }

// ReleasePort implements Listener. A stream listener can close its listening socket, because its connections have
// sockets of their own. A DTLS listener cannot.
func (l *connections) ReleasePort() bool {
	if !l.stream {
		return false
	}
	l.mu.Lock()
	l.portReleased = true
	l.mu.Unlock()
	if err := l.sockets.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		l.opt.Log.Warn("close listening socket", "error", err)
	}
	return true
}

// Tasks returns no tasks: each goroutine serves only one connection, so a stuck goroutine affects no other client.
func (l *connections) Tasks() []*watch.Task { return nil }

// Close closes all connections and the listening sockets, and waits for their goroutines.
func (l *connections) Close() error {
	l.mu.Lock()
	l.closed = true
	for c := range l.open {
		_ = c.raw.Close()
	}
	l.mu.Unlock()
	err := l.sockets.Close()
	l.serving.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // ReleasePort has closed the sockets before
	}
	return err
}

func (l *connections) accept(ln net.Listener) {
	var warned time.Time
	for {
		conn, err := acceptOne(ln)
		switch {
		case err == nil:
			l.accepted(conn)
		case !l.accepts():
			return
		case errors.Is(err, relay.ErrNoRoom), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			l.drop(meter.NoDescriptor, netip.AddrPort{})
			time.Sleep(acceptPause)
		default:
			if time.Since(warned) >= acceptWarning {
				l.opt.Log.Warn("accept connection", "error", err)
				warned = time.Now()
			}
			time.Sleep(acceptPause)
		}
	}
}

// acceptOne waits for a connection and accepts it. It returns an error if no file descriptors are left for clients.
func acceptOne(ln net.Listener) (net.Conn, error) {
	if err := relay.Room(); err != nil {
		return nil, err
	}
	conn, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	s, err := newStream(conn.(*net.TCPConn))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// accepted serves an accepted connection, if the ledger has memory for it.
func (l *connections) accepted(conn net.Conn) {
	memory := l.connect(addrOf(conn.RemoteAddr()))
	if memory == nil {
		_ = conn.Close()
		return
	}
	l.begin(conn, memory, func() {})
}

// connect counts a new connection of a client in the ledger. It returns nil if there is no memory for the connection.
func (l *connections) connect(client netip.AddrPort) *session.Connection {
	memory, err := l.gate.Connect(client.Addr())
	if err != nil {
		l.opt.Meter.DropNote(meter.Capacity, meter.Note{Listener: l.meter.Name, Client: client})
		return nil
	}
	return memory
}

// begin serves a connection in a goroutine. When the connection has ended, it calls end, and then releases the
// connection's memory in the ledger.
func (l *connections) begin(conn net.Conn, memory *session.Connection, end func()) {
	c := newConnection(conn, l, memory)
	if !l.track(c) {
		_ = conn.Close()
		end()
		memory.End()
		return
	}
	switch {
	case c.header != nil:
		c.header.enter()
	case l.secure == nil:
		c.slot.enter() // before the goroutine starts, so that slots are taken in the order of the connections
	}
	l.serving.Go(func() {
		defer memory.End()
		defer end()
		defer l.forget(c)
		c.serve()
	})
}

func (l *connections) accepts() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && !l.portReleased
}

func (l *connections) track(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.open[c] = struct{}{}
	l.meter.Open.Add(1)
	l.meter.Opened.Add(1)
	l.opt.Meter.Sessions.Add(1)
	return true
}

func (l *connections) forget(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	l.meter.Open.Add(-1)
}

// connection is the connection of a client. It implements session.Client.
type connection struct {
	raw  net.Conn // the accepted connection
	conn net.Conn // the connection from which frames are read: TLS on raw, or raw itself (TCP, DTLS)
	// out sends frames over TCP or TLS. It is nil for DTLS, because a write to a DTLS connection never waits.
	out *sendQueue
	// addr is the address of the client. Until the header of the PROXY protocol is read, it is the address of the load
	// balancer.
	addr     netip.AddrPort
	listener *connections
	// header is the slot in Limits.headers, which is taken until the header of the PROXY protocol is read. It is nil if
	// the connection is not from a load balancer.
	header *slot
	// slot is the slot in Limits.unauthenticated, which is taken while the client has no session. It is nil until the
	// header of the PROXY protocol is read.
	slot    *slot
	counted *session.Connection
	relay   *relay.Relay
}

func newConnection(conn net.Conn, l *connections, memory *session.Connection) *connection {
	c := &connection{raw: conn, conn: conn, listener: l, counted: memory}
	if s, ok := conn.(*stream); ok {
		c.out = &sendQueue{stream: s, conn: s, drop: c.drop, run: c.run, charge: c.memory}
	}
	if d, ok := conn.(dtlsClient); ok {
		d.association.burst.start(c.memory)
	}
	addr := addrOf(conn.RemoteAddr())
	if l.fromBalancer(addr.Addr()) {
		c.addr, c.header = addr, l.opt.Limits.headers.slot(addr.Addr(), c.crowdedOut(addr))
	} else {
		c.setClient(addr)
	}
	return c
}

// setClient sets the address of the client.
func (c *connection) setClient(addr netip.AddrPort) {
	c.addr = addr
	c.slot = c.listener.opt.Limits.unauthenticated.slot(addr.Addr(), func() {
		if c.session() != nil {
			c.slot.readmit()
			return // the session was created after the slot was taken over
		}
		c.drop(meter.Crowded)
		_ = c.raw.Close()
	})
}

// crowdedOut returns the function that closes the connection when another connection takes its slot. Unlike c.drop, the
// function does not read the address of the client, which may change meanwhile.
func (c *connection) crowdedOut(addr netip.AddrPort) func() {
	return func() {
		c.listener.drop(meter.Crowded, addr)
		_ = c.raw.Close()
	}
}

// run runs a function in a goroutine of the listener. A panic ends this connection and its session, and not the
// process.
func (c *connection) run(f func()) {
	c.listener.serving.Go(func() {
		defer func() {
			if cause := recover(); cause != nil {
				c.listener.opt.Meter.CountPanic("send queue of connection", cause)
				_ = c.raw.Close()
			}
		}()
		f()
	})
}

func addrOf(a net.Addr) netip.AddrPort {
	var addr netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		addr = a.AddrPort()
	case *net.UDPAddr:
		addr = a.AddrPort()
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// serve makes the handshake, if the transport has one. Then it reads frames until the connection ends, or until the
// client sends a frame that is neither STUN nor ChannelData, or is too long.
func (c *connection) serve() {
	defer c.raw.Close()
	defer c.listener.opt.Meter.RecoverPanic("serve connection")
	deadline := time.Now().Add(handshakeTimeout)
	if !c.readHeader(deadline) {
		return
	}
	defer context.AfterFunc(c.counted.Evicted(), c.crowdedOut(c.addr))()
	if c.out != nil {
		defer c.out.close()
	}
	if err := c.handshake(deadline); err != nil {
		c.listener.opt.Log.Debug("handshake", "client", c.addr, "error", err)
		if c.counted.Evicted().Err() == nil { // an evicted connection is already counted as crowded
			c.drop(handshakeReason(err))
		}
		return
	}
	defer c.slot.leave()
	defer c.listener.gate.Disconnected(c)
	defer c.conn.Close()
	if c.out != nil {
		c.out.stream.unblock()
		c.out.conn = c.conn
	}
	in := c.listener.frames(c.conn, c.memory)
	defer in.close()
	c.setUnauthenticated(firstMessageTimeout)
	for {
		frame, err := in.next(c.limit())
		if err == errNoMemory {
			c.drop(meter.Capacity)
			continue
		}
		if err != nil {
			switch {
			case errors.Is(err, errUnexpectedProxyHeader):
				c.drop(meter.ProxyHeaderUnexpected)
			case errors.Is(err, errNotTURN), errors.Is(err, errTooLarge):
				c.drop(meter.Malformed)
			case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded): // the second error is of pion/dtls
				c.drop(meter.Idle)
			}
			return
		}
		c.listener.meter.Rx.Add(len(frame))
		if isChannelData(frame[0]) {
			c.media(frame)
			continue
		}
		c.listener.gate.Receive(frame, c)
		c.settle()
	}
}

var errCrowded = errors.New("too many handshakes at a time: this one was the oldest")

// readHeader reads the PROXY protocol header of a connection from a load balancer, and sets the address of the client.
// After that, the connection is charged to this client. Before, it is charged to the load balancer and takes no slot of
// other clients. readHeader reports false if the connection must be closed.
func (c *connection) readHeader(deadline time.Time) bool {
	if c.header == nil {
		return true
	}
	defer c.header.leave()
	stop := context.AfterFunc(c.counted.Evicted(), c.crowdedOut(c.addr))
	_ = c.raw.SetReadDeadline(deadline)
	client, err := readProxyHeader(c.raw)
	switch {
	case !stop() || errors.Is(err, net.ErrClosed):
		return false // already counted as crowded, or the listener is closed
	case err != nil && !errors.Is(err, errProxyHeader):
		return false // the load balancer checks whether the port is open
	case err != nil:
		c.listener.opt.Log.Debug("header of the PROXY protocol", "balancer", c.addr, "error", err)
		c.drop(meter.ProxyHeaderInvalid)
		return false
	case !client.IsValid():
		client = c.addr
	}
	c.counted.Attribute(session.Source(client.Addr()))
	c.setClient(client)
	return true
}

// handshake makes the TLS or DTLS handshake. It fails at the deadline, if Limits.handshakes or the ledger evicts this
// connection in favour of a newer connection, or if too many handshakes wait for the CPU (see handshakeLimiter).
func (c *connection) handshake(deadline time.Time) error {
	if c.listener.secure == nil {
		return nil
	}
	ctx, evict := context.WithCancelCause(c.counted.Evicted())
	defer evict(nil)
	p := c.listener.opt.Limits.handshakes.slot(c.addr.Addr(), func() { evict(errCrowded) })
	p.enter()
	defer p.leave()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	turns := c.listener.opt.Limits.newTurns(p)
	defer turns.finish()
	conn, err := c.listener.secure(ctx, c.raw, turns)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	c.conn = conn
	return nil
}

func handshakeReason(err error) meter.Reason {
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, errCrowded), errors.Is(err, errNoTurn):
		return meter.Crowded
	case errors.As(err, &record) && beginsProxyHeader(record.RecordHeader[:]):
		return meter.ProxyHeaderUnexpected
	}
	return meter.Handshake
}

func (c *connection) drop(why meter.Reason) { c.listener.drop(why, c.addr) }

func (l *connections) drop(why meter.Reason, client netip.AddrPort) {
	l.opt.Meter.DropNote(why, meter.Note{Listener: l.meter.Name, Client: client})
}

func (c *connection) media(frame []byte) {
	if c.relay == nil {
		c.drop(meter.NoAllocation)
		return
	}
	c.relay.FromClient(frame)
}

// session returns the relay of the session that was created on this connection, or nil.
func (c *connection) session() *relay.Relay {
	if r := c.listener.gate.Relay(c.addr); r != nil && r.Session().Client == session.Client(c) {
		return r
	}
	return nil
}

// memory returns a claim of the session for memory, or the zero Claim if there is no session.
func (c *connection) memory() session.Claim {
	if r := c.session(); r != nil {
		return r.Session().Claim(session.Memory)
	}
	return session.Claim{}
}

// settle is called after each message. It updates the field relay and the read deadline of the connection. A client
// with a session has no read deadline, because the session ends with its lifetime.
func (c *connection) settle() {
	c.relay = c.session()
	if c.relay == nil {
		c.setUnauthenticated(idleTimeout)
		return
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	c.slot.pause()
	if c.relay.Closed() { // Released may have been called before pause
		c.setUnauthenticated(idleTimeout)
	}
}

func (c *connection) limit() int {
	if c.relay == nil {
		return unauthenticatedLimit
	}
	return sessionLimit
}

// setUnauthenticated sets the read deadline of a client without a session, and takes a slot in Limits.unauthenticated.
func (c *connection) setUnauthenticated(d time.Duration) {
	_ = c.conn.SetReadDeadline(time.Now().Add(d))
	c.slot.enter()
}

// Send implements session.Client. It closes the connection of a client that does not read for too long.
func (c *connection) Send(frame []byte) error {
	if err := c.send(frame); err != nil {
		return err
	}
	c.listener.meter.Tx.Add(len(frame))
	return nil
}

// SendAll implements session.Client. Over DTLS each frame is a record of its own.
func (c *connection) SendAll(packets []datagram.Packet) {
	if c.out != nil {
		c.out.SendAll(packets)
	}
	var sent meter.Sum
	for i := range packets {
		p := &packets[i]
		if c.out == nil {
			p.Err = c.send(p.Payload)
		}
		if p.Err == nil {
			sent.Add(len(p.Payload))
		}
	}
	c.listener.meter.Tx.AddSum(sent)
}

func (c *connection) send(frame []byte) error {
	switch {
	case c.out != nil:
		return c.out.Send(frame)
	case len(frame) > recordLimit:
		return errTooLarge
	}
	if _, err := c.conn.Write(frame); err != nil {
		return errors.Join(err, c.raw.Close())
	}
	return nil
}

// Addr implements session.Client.
func (c *connection) Addr() netip.AddrPort { return c.addr }

// Local implements session.Client.
func (c *connection) Local() netip.AddrPort { return netip.AddrPort{} }

// Counted implements session.Counted.
func (c *connection) Counted() *session.Connection { return c.counted }

// Connected implements session.Client.
func (c *connection) Connected() bool { return true }

// Released implements session.Client. The connection gets the deadline of a client without a session again.
func (c *connection) Released() { c.setUnauthenticated(idleTimeout) }
