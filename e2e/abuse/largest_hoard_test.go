package abuse

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

const (
	// hoarders is the number of sessions that one user opens at a time. connectors is the number of connections without
	// a session.
	hoarders, connectors = 16, 64
	// repeating is the number of messages that all sessions together send in a second after their first messages. The
	// server can handle this rate, because the acts are about memory.
	repeating = 500
)

// A hoard holds the sessions of one user at one address.
type hoard struct {
	*hosts
	act
	peer *net.UDPConn // the peer of the act fromPeers
	// open is the number of sessions, idle the number of connections without a session, and refused the number of
	// refused sessions.
	open, idle, refused, sent, dialed atomic.Int64
	// next has the number of the next message, by transport.
	next  [4]atomic.Int64
	group sync.WaitGroup

	mu     sync.Mutex
	conns  []io.Closer
	failed error // a failure other than a refusal
	// challenges are the first answers of the server to an address. A nonce is valid for the address.
	challenges map[netip.Addr]*stun.Message
	// repeated are the functions that send the next message of a session.
	repeated []func()
	// exposed are the relayed addresses of the act fromPeers.
	exposed []netip.AddrPort
}

// fill opens sessions, and repeats messages in them, until the context ends.
func (h *hoard) fill(ctx context.Context) {
	parallel := hoarders
	if h.request == idle {
		parallel = connectors
	}
	h.group.Go(func() {
		if h.request == fromPeers {
			h.flood(ctx)
			return
		}
		pace(ctx, repeating, func(n int) {
			h.mu.Lock()
			all := h.repeated
			h.mu.Unlock()
			if len(all) > 0 {
				all[n%len(all)]()
			}
		})
	})
	for i := range parallel {
		h.group.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				do := h.session
				if h.request == idle && n%4 != 0 {
					do = map[int]func(context.Context) error{1: h.connection, 2: h.connection, 3: h.handshake}[n%4]
				}
				if err := do(ctx); err != nil && ctx.Err() == nil {
					h.mu.Lock()
					h.failed = err
					h.mu.Unlock()
					select { // a refused client tries again soon
					case <-time.After(100 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	h.group.Wait()
}

const (
	// enough is the number of refusals after which the test concludes that the server accepts no more sessions of the
	// user.
	enough = 64
	// idleSpan is how long the act idle lasts. The server closes connections without a message after 10 s, and
	// handshakes after 5 s, so their number does not grow later.
	idleSpan = 11 * time.Second
)

// isFull returns an error until the server holds as much for the user as it allows, and every combination of the act
// was sent.
func (h *hoard) isFull(since time.Duration) error {
	open, idles, refused := h.open.Load(), h.idle.Load(), h.refused.Load()
	if h.request == idle {
		if since < idleSpan || open == 0 || idles == 0 {
			return fmt.Errorf("%d sessions and %d idle connections after %s", open, idles, since)
		}
		return nil
	}
	if refused < enough {
		return fmt.Errorf("the server has refused %d sessions, want %d", refused, enough)
	}
	for i, over := range transports {
		if n := h.next[i].Load(); h.request == eachRequest && int(n) < combinations {
			return fmt.Errorf("%d of %d combinations are sent over %s", n, combinations, over)
		}
	}
	return nil
}

// failure returns the last failure of a client.
func (h *hoard) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// errRefused is the error of a session that the server refuses.
var errRefused = errors.New("refused")

// session opens a session, repeats the act in it, and keeps the session.
func (h *hoard) session(ctx context.Context) error {
	conn, o, err := h.dial(ctx)
	if err != nil {
		return err
	}
	u := mint(h.user())
	c := &client{
		PacketConn: conn, Client: ask.Client{Username: u.Username, Password: string(u.Password)},
		to: net.UDPAddrFromAddrPort(o.Gateway),
	}
	if err := h.challenge(c, o.Local.Addr()); err != nil {
		return err
	}
	answer, err := c.exchange(stun.MethodAllocate, ask.UDP())
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if code := ask.Code(answer); code != 0 {
		if code == stun.CodeAllocQuotaReached || code == stun.CodeInsufficientCapacity {
			h.refused.Add(1)
		}
		return errors.Join(fmt.Errorf("%w: error %d", errRefused, code), conn.Close())
	}
	h.open.Add(1)
	switch h.request {
	case idle:
		return nil
	case fromPeers:
		return h.expose(c, answer)
	}
	if h.request == channelData || h.request == "Send" || h.request == eachRequest {
		var peers []stun.Setter
		for n := range permitted {
			peers = append(peers, ask.Peer(somePeer(n)))
		}
		_, err1 := c.exchange(stun.MethodCreatePermission, peers...)
		_, err2 := c.exchange(stun.MethodChannelBind, ask.Channel(channel), ask.Peer(somePeer(0)))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	at := slices.Index(transports, o.Network)
	send := func() error {
		_, err := conn.WriteTo(h.message(c, int(h.next[at].Add(1)-1)), c.to)
		h.sent.Add(1)
		return err
	}
	for range h.repeats() {
		if err := errors.Join(ctx.Err(), send()); err != nil {
			return err
		}
	}
	if o.Network == call.UDP || o.Network == call.DTLS {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.repeated = append(h.repeated, func() { _ = send() })
		return nil
	}
	const size = 0xFFFC
	half := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, channel), size)
	_, err = conn.WriteTo(append(half, make([]byte, size/2)...), c.to)
	return err
}

// challenge gets a nonce of the server for the address of a client.
func (h *hoard) challenge(c *client, from netip.Addr) (err error) {
	h.mu.Lock()
	answer := h.challenges[from]
	h.mu.Unlock()
	if answer != nil {
		c.Learn(answer)
		return nil
	}
	answer, err = c.exchange(stun.MethodAllocate, ask.UDP())
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.challenges == nil {
		h.challenges = map[netip.Addr]*stun.Message{}
	}
	h.challenges[from] = answer
	return nil
}

// user returns the user ID of a session.
func (h *hoard) user() string {
	if h.as == manyUsers {
		return fmt.Sprintf("%0400d", h.open.Load()+h.refused.Load())
	}
	return "hoarder"
}

// expose makes a peer send to a session whose client over TCP and TLS reads nothing.
func (h *hoard) expose(c *client, allocated *stun.Message) error {
	relayed, err := ask.Relayed(allocated)
	if err != nil {
		return err
	}
	from := h.peer.LocalAddr().(*net.UDPAddr).AddrPort()
	if _, err := c.exchange(stun.MethodCreatePermission, ask.Peer(from)); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exposed = append(h.exposed, relayed)
	return nil
}

// flood sends datagrams from a peer without a channel to the exposed sessions until the context ends. It sends bursts,
// or the longest datagrams if the clients use TCP or TLS. The server can relay at this rate, because the act is about
// memory.
func (h *hoard) flood(ctx context.Context) {
	size, burst, rate := datagram, 40, 75
	if h.over == call.TCP || h.over == call.TLS {
		size, burst, rate = 60_000, 1, 150
	}
	payload := make([]byte, size)
	pace(ctx, rate, func(n int) {
		h.mu.Lock()
		exposed := h.exposed
		h.mu.Unlock()
		for range burst {
			if len(exposed) > 0 {
				_, _ = h.peer.WriteToUDPAddrPort(payload, exposed[n%len(exposed)]) // a burst may not fit into the buffer
				h.sent.Add(1)
			}
		}
	})
}

// keep keeps a connection open until close.
func (h *hoard) keep(conn io.Closer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, conn)
}

// address returns the address of the next connection.
func (h *hoard) address() netip.Addr {
	if h.as == manyAddresses {
		return host(farClients, 6000+uint16(h.dialed.Load()%4000))
	}
	return abuserAddr
}

// dial opens a connection, and keeps it.
func (h *hoard) dial(ctx context.Context) (net.PacketConn, call.Options, error) {
	over, n := h.over, h.dialed.Add(1)
	if over == eachTransport {
		over = transports[int(n)%len(transports)]
	}
	o := h.options(over, 0)
	o.Local = netip.AddrPortFrom(h.address(), 0)
	limited, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	conn, err := call.Dial(limited, o)
	if err != nil {
		return nil, o, err
	}
	h.keep(conn)
	return conn, o, nil
}

// connection opens a connection and sends nothing.
func (h *hoard) connection(ctx context.Context) error {
	_, _, err := h.dial(ctx)
	if err == nil {
		h.idle.Add(1)
	}
	return err
}

// handshake begins a handshake, or over TCP a message, without completing it. It sends as many bytes as the server
// reads.
func (h *hoard) handshake(ctx context.Context) (err error) {
	limited, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	if h.over == call.DTLS {
		conn, err := dialDTLS(h.far.Do, h.address(), dtlsServer)
		if err != nil {
			return err
		}
		h.keep(conn)
		if !beginDTLS(limited, conn) {
			return errRefused
		}
		fragment := []byte{
			// the record header, and the header of a fragment of a message of 16 bytes
			recordHandshake, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 9, 0, 13,
			16, 0, 0, 16, 0, 2, 0, 0, 0, 0, 0, 1, 0,
		}
		for range 50 {
			_, err = conn.Write(fragment)
		}
		h.idle.Add(1)
		return err
	}
	var conn net.Conn
	h.far.Do(func() {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.address(), 0))}
		conn, err = dialer.DialContext(limited, "tcp4", h.options(h.over, 0).Gateway.String())
	})
	if err != nil {
		return err
	}
	h.keep(conn)
	h.idle.Add(1)
	begun := make([]byte, 1000) // a part of a request of 1,020 bytes
	copy(begun, []byte{0, 3, 1000 >> 8, 1000 & 0xFF})
	if h.over == call.TLS { // a part of records with a ClientHello of 65,000 bytes
		begun = nil
		record := append([]byte{recordHandshake, 3, 1, 0x3E, 0x80}, make([]byte, 16_000)...)
		for range 4 {
			begun = append(begun, record...)
		}
		copy(begun[5:], []byte{1, 0, 65_000 >> 8, 65_000 & 0xFF})
	}
	_ = conn.SetWriteDeadline(time.Now().Add(newCallDeadline)) // the server may not read all
	_, _ = conn.Write(begun)
	return nil
}

// message encodes the act.
func (h *hoard) message(c *client, n int) []byte {
	name := h.request
	if name == eachRequest {
		names := inTurn()
		name, n = names[n%len(names)], n/len(names)
	}
	more := attributes[h.attribute](n)
	if name == channelData {
		payload := make([]byte, datagram)
		if strings.HasPrefix(h.attribute, "DATA that") {
			payload = check(n)
		}
		return ask.ChannelData(channel, append(payload, make([]byte, -len(payload)&3)...))
	}
	if of := fixed[name]; of != nil {
		more = append(of(n), more...)
	}
	if kind := requests[name]; kind.Class == stun.ClassIndication {
		return stun.MustBuild(append([]stun.Setter{stun.TransactionID, kind}, more...)...).Raw
	}
	return c.Request(requests[name].Method, more...)
}

// close closes all connections. Over UDP the server is not notified.
func (h *hoard) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.conns {
		_ = conn.Close()
	}
	h.conns = nil
}

// client is a client over any transport that encodes its messages itself.
type client struct {
	net.PacketConn
	ask.Client
	to net.Addr
}

// exchange sends a request, three times over UDP, and learns from the response.
func (c *client) exchange(method stun.Method, attrs ...stun.Setter) (*stun.Message, error) {
	request, buf := c.Request(method, attrs...), make([]byte, 2048)
	for range 3 {
		if _, err := c.WriteTo(request, c.to); err != nil {
			return nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := c.ReadFrom(buf)
			if isTimeout(err) {
				break
			}
			if err != nil {
				return nil, err
			}
			m := &stun.Message{Raw: buf[:n]}
			if m.Decode() == nil && m.TransactionID == [stun.TransactionIDSize]byte(request[8:20]) {
				c.Learn(m)
				return m, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: no answer to %s", errRefused, method)
}

func isTimeout(err error) bool {
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}
