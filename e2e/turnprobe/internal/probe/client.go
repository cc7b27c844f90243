package probe

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// Client is a TURN client with a 5-tuple of its own.
type Client struct {
	trial        *Trial
	source       *source
	conn         net.Conn
	stream       bool
	login        login
	realm, nonce string
	relay        netip.AddrPort // relayed transport address

	over chan struct{} // closed when reading has ended
	news chan struct{} // signals a received frame

	mu     sync.Mutex
	frames [][]byte
	err    error // why reading has ended
}

// Client opens a client on a new 5-tuple.
func (t *Trial) Client() *Client { return t.clientFrom(t.source) }

func (t *Trial) clientFrom(s *source) *Client {
	conn, err := dial(t.Transport, s.addr, t.Server)
	t.must(err, "connect to the server")
	return t.clientOn(conn, s)
}

// clientOn makes a client on an open connection.
func (t *Trial) clientOn(conn net.Conn, s *source) *Client {
	c := &Client{
		trial: t, source: s, conn: conn, stream: t.Transport.isStream(), login: t.Target.login(t.name()),
		over: make(chan struct{}), news: make(chan struct{}, 1),
	}
	c.realm, c.nonce = s.know()
	go c.read()
	t.later(c.close)
	return c
}

// close deletes the allocation, so that checks do not exhaust ports and quotas, and closes the connection. It waits for
// the response: the next client may get the same port, and would receive it.
func (c *Client) close() {
	if c.relay.IsValid() && !c.closed() {
		request := c.sign(req(wire.Refresh, wire.Uint32(wire.Lifetime, 0)))
		c.transmit(request)
		c.take(c.trial.Silence, answers(request))
	}
	c.conn.Close()
	<-c.over
}

// local returns the client's address.
func (c *Client) local() netip.AddrPort {
	addr, err := netip.ParseAddrPort(c.conn.LocalAddr().String())
	c.trial.must(err, "read own address")
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// read receives frames until the connection ends.
func (c *Client) read() {
	defer close(c.over)
	buf := make([]byte, 1<<16)
	for {
		frame, err := c.next(buf)
		if errors.Is(err, syscall.ECONNREFUSED) { // an ICMP error for an earlier datagram
			continue
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.mu.Unlock()
			return
		}
		c.frames = append(c.frames, frame)
		c.mu.Unlock()
		select {
		case c.news <- struct{}{}:
		default:
		}
	}
}

func (c *Client) next(buf []byte) ([]byte, error) {
	if c.stream {
		return wire.ReadFrame(c.conn)
	}
	n, err := c.conn.Read(buf)
	return append([]byte(nil), buf[:n]...), err
}

// transmit sends bytes unchanged. Errors are ignored; reading detects a closed connection.
func (c *Client) transmit(b []byte) {
	c.conn.SetWriteDeadline(time.Now().Add(c.trial.Answer))
	c.conn.Write(b)
}

// take waits for a frame that matches. It keeps other frames for later calls.
func (c *Client) take(wait time.Duration, match func([]byte) bool) ([]byte, bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if frame, ok := c.pick(match); ok {
			return frame, true
		}
		select {
		case <-c.news:
		case <-c.over:
			return c.pick(match)
		case <-timer.C:
			return c.pick(match)
		}
	}
}

func (c *Client) pick(match func([]byte) bool) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, frame := range c.frames {
		if match(frame) {
			c.frames = append(c.frames[:i:i], c.frames[i+1:]...)
			return frame, true
		}
	}
	return nil, false
}

// count returns the number of frames that were not taken.
func (c *Client) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.frames)
}

func anything([]byte) bool { return true }

// closedWithin reports whether the server closes the connection in time.
func (c *Client) closedWithin(wait time.Duration) bool {
	for started := time.Now(); ; {
		left := wait - c.trial.pulse.Since(started)
		if left <= 0 {
			return c.closed()
		}
		select {
		case <-c.over:
			return true
		case <-time.After(left):
		}
	}
}

// closed reports whether the server has closed the connection.
func (c *Client) closed() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// Quiet fails the check if anything arrives. The server may close a stream.
func (c *Client) Quiet(after string) {
	if frame, ok := c.take(c.trial.Silence, anything); ok {
		c.trial.Failf("%s: want no response, got %s", after, describe(frame))
	}
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if err != nil && !ended(err) {
		c.trial.Failf("%s: want no response, got %v", after, err)
	}
}

// ended reports whether an error is the end of the connection, as opposed to an invalid frame.
func ended(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// Ignored fails the check if bytes get a response, or if the server does not serve a new client afterwards.
func (c *Client) Ignored(b []byte, what string) {
	c.transmit(b)
	c.Quiet(what)
	c.trial.alive(what)
}

// alive fails the check unless the server serves a new client.
func (t *Trial) alive(after string) {
	if a, ok := t.Client().exchange(req(wire.Binding)); !ok || a.Class != wire.Success {
		t.Failf("%s: the server no longer serves a new client", after)
	}
}

// describe returns a readable form of a frame.
func describe(frame []byte) string {
	if frame == nil {
		return "nothing"
	}
	if wire.IsChannelData(frame) {
		n, payload, err := wire.ParseChannelData(frame)
		if err != nil {
			return err.Error()
		}
		return quote("ChannelData", n, payload)
	}
	m, err := wire.Parse(frame)
	if err != nil {
		return err.Error()
	}
	return m.String()
}
