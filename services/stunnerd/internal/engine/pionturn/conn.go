package pionturn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// pionConn is the net.PacketConn of one read loop of pion/turn, and the turn.RelayAddressGenerator of that loop.
//
// pion/turn handles a message completely, and writes the answer, before it reads the next message. So an exchange has
// ended when pion/turn calls ReadFrom again. If there was no answer until then, there will be none, so no timeout is
// needed.
type pionConn struct {
	key       []byte
	exchanges chan *exchange

	// mu is held during an exchange (a message to pion/turn and its answer), so that there is one exchange at a time.
	// It guards the fields below. During an exchange the read loop of pion/turn uses the field current without mu.
	mu         sync.Mutex
	current    *exchange
	nonce      stun.Nonce
	fetched    time.Time
	indication stun.Message // reused, so that a Send indication does not allocate

	// task lets the liveness probe detect that pion/turn does not finish the handling of a message.
	task watch.Task

	// live is the number of relayConns that pion/turn has not closed. pion/turn's own count does not change when the
	// server is closed.
	live atomic.Int64

	closing sync.Once
	closed  chan struct{}

	noDeadlines
}

// exchange is one message to pion/turn and the answer to it.
type exchange struct {
	message    []byte
	allocation *allocation
	answer     []byte // nil if there is none
	// question is set for an indication of pionConn.permitted, and permitted is the result.
	question, permitted bool
	done                chan struct{}
}

func newPionConn(key []byte) *pionConn {
	return &pionConn{key: key, exchanges: make(chan *exchange), closed: make(chan struct{})}
}

// nonceRenewal is how old a nonce of pion/turn may be before the pionConn fetches a new one. pion/turn accepts a nonce
// for one hour.
const nonceRenewal = 30 * time.Minute

// request makes a request for an allocation and returns the answer. The error is engine.ErrNoAllocation if pion/turn
// has no such allocation, because it then does not answer.
func (c *pionConn) request(a *allocation, method stun.Method, attrs ...stun.Setter) (*stun.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, err := c.signedRequest(a, method, attrs...)
	if err == nil && isStaleNonce(answer) {
		c.nonce = nil
		answer, err = c.signedRequest(a, method, attrs...)
	}
	return answer, err
}

func (c *pionConn) signedRequest(a *allocation, method stun.Method, attrs ...stun.Setter) (*stun.Message, error) {
	if err := c.renewNonce(a); err != nil {
		return nil, err
	}
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)
	setters = append(setters,
		stun.NewUsername(internalUser), stun.NewRealm(internalRealm), c.nonce, stun.MessageIntegrity(c.key))
	return c.roundTrip(a, setters...)
}

// isStaleNonce reports whether pion/turn has answered with 438. This can happen before nonceRenewal is over: pion/turn
// measures the age of a nonce by the wall clock, which may jump, and nonceRenewal is measured by the monotonic clock.
func isStaleNonce(answer *stun.Message) bool {
	var code stun.ErrorCodeAttribute
	return code.GetFrom(answer) == nil && code.Code == stun.CodeStaleNonce
}

// renewNonce fetches a new nonce from pion/turn if there is none, or if it is older than nonceRenewal. The nonce is in
// the challenge with which pion/turn answers a request without a credential.
func (c *pionConn) renewNonce(a *allocation) error {
	if c.nonce != nil && time.Since(c.fetched) < nonceRenewal {
		return nil
	}
	challenge, err := c.roundTrip(a, stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest))
	if err != nil {
		return fmt.Errorf("fetch internal nonce: %w", err)
	}
	nonce, err := challenge.Get(stun.AttrNonce)
	if err != nil {
		return fmt.Errorf("fetch internal nonce: %w", err)
	}
	c.nonce, c.fetched = append(stun.Nonce{}, nonce...), time.Now()
	return nil
}

func (c *pionConn) roundTrip(a *allocation, setters ...stun.Setter) (*stun.Message, error) {
	request, err := stun.Build(setters...)
	if err != nil {
		return nil, fmt.Errorf("build request to pion/turn: %w", err)
	}
	x := &exchange{message: request.Raw, allocation: a}
	if !c.do(x) || x.answer == nil {
		return nil, engine.ErrNoAllocation
	}
	answer := &stun.Message{Raw: x.answer}
	if err := answer.Decode(); err != nil {
		return nil, fmt.Errorf("read answer of pion/turn: %w", err)
	}
	return answer, nil
}

// indicate sends data to a peer by a Send indication to pion/turn.
func (c *pionConn) indicate(a *allocation, data []byte, peer netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendIndication(&exchange{allocation: a}, data, peer)
}

// permitted reports whether the IP address of a peer has a permission: whether pion/turn would send the data of a Send
// indication to the peer.
func (c *pionConn) permitted(a *allocation, peer netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := &exchange{allocation: a, question: true}
	return c.sendIndication(x, nil, peer) && x.permitted
}

// sendIndication makes an exchange of a Send indication. It reports false if the pionConn is closed. The indication is built anew and not copied from the message of the
// client: pion/turn reads the first byte of an address attribute as a part of the family, but RFC 8489 §14.1 says that
// this byte is ignored.
func (c *pionConn) sendIndication(x *exchange, data []byte, peer netip.AddrPort) bool {
	select {
	case <-c.closed:
		return false // pion/turn may still be reading c.indication
	default:
	}
	m := &c.indication
	m.Reset()
	m.Type = stun.NewType(stun.MethodSend, stun.ClassIndication)
	m.WriteHeader()
	_ = stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: peer}.AddTo(m) // never fails
	m.Add(stun.AttrData, data)
	x.message = m.Raw
	return c.do(x)
}

// do passes a message to pion/turn, and returns when pion/turn has handled it. It reports false if the pionConn is closed:
// then pion/turn may still use the exchange.
func (c *pionConn) do(x *exchange) bool {
	c.task.Begin()
	defer c.task.End()
	x.done = make(chan struct{})
	select {
	case c.exchanges <- x:
	case <-c.closed:
		return false
	}
	select {
	case <-x.done:
		return true
	case <-c.closed:
		return false
	}
}

// ReadFrom returns the next message to pion/turn. The call means that pion/turn has handled the previous message, so
// ReadFrom first ends the exchange of that message.
func (c *pionConn) ReadFrom(b []byte) (int, net.Addr, error) {
	if c.current != nil {
		close(c.current.done)
		c.current = nil
	}
	select {
	case x := <-c.exchanges:
		c.current = x
		return copy(b, x.message), x.allocation.handle, nil
	case <-c.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo receives a response of pion/turn: the answer of the current exchange.
func (c *pionConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	c.current.answer = append([]byte(nil), b...)
	return len(b), nil
}

// AllocatePacketConn implements turn.RelayAddressGenerator. It returns the relay of the allocation that the current
// exchange creates.
func (c *pionConn) AllocatePacketConn(string, int) (net.PacketConn, net.Addr, error) {
	c.live.Add(1)
	r := relayConn{allocation: c.current.allocation}
	return r, r.LocalAddr(), nil
}

// AllocateConn implements turn.RelayAddressGenerator. TCP relays (RFC 6062) are not offered.
func (c *pionConn) AllocateConn(string, int) (net.Conn, net.Addr, error) {
	return nil, nil, errors.New("TCP relays are not offered")
}

// Validate implements turn.RelayAddressGenerator.
func (c *pionConn) Validate() error { return nil }

// Close ends the read loop of pion/turn.
func (c *pionConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return nil
}

// LocalAddr implements net.PacketConn. All allocations have the same local address, because pion/turn distinguishes
// them by the fake client address alone.
func (c *pionConn) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv6loopback, Port: 1} }
