package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Deadlines and limits of a connection whose client has no session: it costs the server something, so it must get to the point.
const (
	handshaking  = 5 * time.Second
	firstMessage = 10 * time.Second
	idle         = 30 * time.Second

	unknownLimit = 1024
	sessionLimit = stunHeader + 65535
	// acceptPause is how long accepting rests when there are no more descriptors for clients.
	acceptPause = 100 * time.Millisecond
	// acceptWarning is how often the log says so: how long it lasts is up to the clients.
	acceptWarning = time.Minute
)

// transport is what sets one kind of connection apart from another.
type transport struct {
	// secure does the handshake; nil when there is none.
	secure func(ctx context.Context, conn net.Conn, turns *pace) (net.Conn, error)
	certs  *certificates
	// stream tells a byte stream, in which frames have to be found, from a connection that keeps datagrams apart.
	stream bool
}

func (t transport) frames(from io.Reader) frames {
	if t.stream {
		return newFramer(from)
	}
	return &records{from: from}
}

// frames hands out what a client sends, one frame at a time and none of more than limit bytes. A frame is valid until the next call.
type frames interface {
	next(limit int) ([]byte, error)
}

// connections serves the connections of a listener, each in a goroutine of its own.
type connections struct {
	transport
	sockets io.Closer // where connections come from
	gate    *gate.Gate
	meter   *meter.Listener
	opt     Options
	serving sync.WaitGroup

	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
	// yielded tells that the port was given up.
	yielded bool
}

func newConnections(sockets io.Closer, t transport, g *gate.Gate, m *meter.Listener, o Options) *connections {
	return &connections{sockets: sockets, transport: t, gate: g, meter: m, opt: o, open: map[*connection]struct{}{}}
}

// Update takes over new certificates.
func (l *connections) Update(c config.Listener) error {
	if l.certs == nil {
		return nil
	}
	return l.certs.update(c)
}

// Yield closes the socket of a stream listener, which has handed every connection a socket of its own.
func (l *connections) Yield() bool {
	if !l.stream {
		return false
	}
	l.mu.Lock()
	l.yielded = true
	l.mu.Unlock()
	if err := l.sockets.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		l.opt.Log.Warn("give up port", "error", err)
	}
	return true
}

// Tasks are none: each connection has a goroutine of its own.
func (l *connections) Tasks() []*watch.Task { return nil }

// Close closes every connection and the listening sockets, and waits for their goroutines.
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
		return nil // it was given up before
	}
	return err
}

func (l *connections) accept(ln net.Listener) {
	var warned time.Time
	for {
		conn, err := next(ln)
		switch {
		case err == nil:
			l.begin(conn, func() {})
		case !l.accepts():
			return
		default:
			if time.Since(warned) >= acceptWarning {
				l.opt.Log.Warn("accept connection", "error", err)
				warned = time.Now()
			}
			time.Sleep(acceptPause)
		}
	}
}

// next waits for a connection, unless there is no room for one.
func next(ln net.Listener) (net.Conn, error) {
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

// begin serves a connection from now on. end is called when nothing of it is left.
func (l *connections) begin(conn net.Conn, end func()) {
	c := newConnection(conn, l)
	if !l.track(c) {
		_ = conn.Close()
		end()
		return
	}
	if l.secure == nil {
		c.stranger.enter() // here, in the order in which they came: who is late to run must not push out who came after
	}
	l.serving.Go(func() {
		defer end()
		defer l.forget(c)
		c.serve()
	})
}

func (l *connections) accepts() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && !l.yielded
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

// connection is a client's connection, and the way back to it.
type connection struct {
	raw  net.Conn // as accepted
	conn net.Conn // as secured: what is read and written
	// out sends over a stream; nil on one that keeps datagrams apart, which never waits by itself.
	out      *outlet
	addr     netip.AddrPort
	listener *connections
	stranger *place // taken while the client has no session
	relay    *relay.Relay
}

func newConnection(conn net.Conn, l *connections) *connection {
	c := &connection{raw: conn, conn: conn, addr: addrOf(conn.RemoteAddr()), listener: l}
	if s, ok := conn.(*stream); ok {
		c.out = &outlet{stream: s, conn: s, drop: c.drop, run: c.run}
	}
	c.stranger = l.opt.Limits.strangers.place(c.addr.Addr(), func() {
		if c.session() != nil {
			return // it has got one since its place was taken
		}
		c.drop(meter.Crowded)
		_ = c.raw.Close()
	})
	return c
}

// run runs a function in a goroutine of the listener. A panic ends this connection, and its session, instead of the process.
func (c *connection) run(f func()) {
	c.listener.serving.Go(func() {
		defer func() {
			if cause := recover(); cause != nil {
				c.listener.opt.Meter.Panicked("send queue of connection", cause)
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

// serve reads frames until the connection ends, or deserves to.
func (c *connection) serve() {
	defer c.raw.Close()
	defer c.listener.opt.Meter.Survive("serve connection")
	if c.out != nil {
		defer c.out.close()
	}
	if err := c.handshake(); err != nil {
		c.listener.opt.Log.Debug("handshake", "client", c.addr, "error", err)
		c.drop(handshakeReason(err))
		return
	}
	defer c.stranger.leave()
	defer c.listener.gate.Disconnected(c)
	defer c.conn.Close()
	if c.out != nil {
		c.out.stream.unblock()
		c.out.conn = c.conn
	}
	in := c.listener.frames(c.conn)
	c.unknown(firstMessage)
	for {
		frame, err := in.next(c.limit())
		if err != nil {
			if errors.Is(err, errNotTURN) || errors.Is(err, errTooLarge) {
				c.drop(meter.Malformed)
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

var errCrowded = errors.New("too many handshakes at a time: this one went on for longest")

// handshake makes the connection secure, within its time and for as long as there is room.
func (c *connection) handshake() error {
	if c.listener.secure == nil {
		return nil
	}
	ctx, evict := context.WithCancelCause(context.Background())
	defer evict(nil)
	p := c.listener.opt.Limits.handshakes.place(c.addr.Addr(), func() { evict(errCrowded) })
	p.enter()
	defer p.leave()
	ctx, cancel := context.WithTimeout(ctx, handshaking)
	defer cancel()
	turns := c.listener.opt.Limits.pace(p)
	defer turns.end()
	conn, err := c.listener.secure(ctx, c.raw, turns)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	c.conn = conn
	return nil
}

func handshakeReason(err error) meter.Reason {
	if errors.Is(err, errCrowded) || errors.Is(err, errNoTurn) {
		return meter.Crowded
	}
	return meter.Handshake
}

func (c *connection) drop(why meter.Reason) {
	c.listener.opt.Meter.DropNote(why, meter.Note{Listener: c.listener.meter.Name, Client: c.addr})
}

func (c *connection) media(frame []byte) {
	if c.relay == nil {
		c.drop(meter.NoAllocation)
		return
	}
	c.relay.FromClient(frame)
}

// session returns the relay of the session that the client has begun on this connection, or nil.
func (c *connection) session() *relay.Relay {
	if r := c.listener.gate.Relay(c.addr); r != nil && r.Session().Client == session.Client(c) {
		return r
	}
	return nil
}

// settle looks whether the client has a session now: with one the connection may be silent for as long as the allocation lives.
func (c *connection) settle() {
	c.relay = c.session()
	if c.relay == nil {
		c.unknown(idle)
		return
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	c.stranger.pause()
	if c.relay.Closed() { // it ended between the lines above: Released may have come too early
		c.unknown(idle)
	}
}

func (c *connection) limit() int {
	if c.relay == nil {
		return unknownLimit
	}
	return sessionLimit
}

// unknown bounds what a client without a session may cost: it has that long for its next message, and a place among its like.
func (c *connection) unknown(d time.Duration) {
	_ = c.conn.SetReadDeadline(time.Now().Add(d))
	c.stranger.enter()
}

// Send is part of session.Client. A client that does not read for too long loses its connection.
func (c *connection) Send(frame []byte) error {
	if err := c.send(frame); err != nil {
		return err
	}
	c.listener.meter.Tx.Add(len(frame))
	return nil
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

// Admitted is part of session.Client. A connection has a socket of its own from the start.
func (c *connection) Admitted() error { return nil }

// Addr is the client's address.
func (c *connection) Addr() netip.AddrPort { return c.addr }

// Connected is true.
func (c *connection) Connected() bool { return true }

// Released gives the connection the time of any other without a session.
func (c *connection) Released() { c.unknown(idle) }
