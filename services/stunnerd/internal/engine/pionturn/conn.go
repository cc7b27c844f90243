package pionturn

import (
	"encoding/binary"
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
// pion/turn finishes a message, and writes its answer, before it reads the next message. So an exchange has ended when
// pion/turn calls ReadFrom again. If pion/turn has not answered by then, it never answers this message, so no timeout
// is needed.
type pionConn struct {
	integrity stun.MessageIntegrity // signs requests
	exchanges chan *exchange
	// handled gets a value when pion/turn has handled the message of an exchange.
	handled chan struct{}

	// mu is held during an exchange (a message to pion/turn and its answer), so that there is one exchange at a time.
	// It guards the fields below. During an exchange the read loop of pion/turn uses the field current without mu.
	// Memory of exchanges is reused. After Close there are no exchanges, because pion/turn may still use the memory of
	// the last exchange.
	mu      sync.Mutex
	current *exchange
	next    exchange
	// transactions counts the requests. Transaction IDs need not be random, because the requests do not leave the
	// process.
	transactions uint64
	nonce        stun.Nonce
	fetched      time.Time

	// task lets the liveness probe detect that pion/turn does not finish the handling of a message.
	task watch.Task

	// live is the number of relayConns that pion/turn has not closed. The count that pion/turn keeps itself does not
	// change when the server is closed.
	live atomic.Int64

	closing sync.Once
	closed  chan struct{}

	noDeadlines
}

// exchange is one message to pion/turn and the answer to it.
type exchange struct {
	allocation *allocation
	message    stun.Message
	// answer is valid if answered is set.
	answer   stun.Message
	answered bool
	// question is set if the exchange only tests a permission (see pionConn.permitted). permitted reports whether the
	// peer of an indication has a permission.
	question, permitted bool
}

func newPionConn(key []byte) *pionConn {
	return &pionConn{
		integrity: key, exchanges: make(chan *exchange), handled: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// nonceRenewal is how old a nonce of pion/turn may be before the pionConn fetches a new one. pion/turn accepts a nonce
// for one hour.
const nonceRenewal = 30 * time.Minute

// request makes a request to pion/turn for an allocation. An error response becomes an engine.Refusal. A missing answer
// becomes engine.ErrNoAllocation, because pion/turn does not answer requests for an allocation that does not exist.
func (c *pionConn) request(a *allocation, method stun.Method, attrs ...stun.Setter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, err := c.signedRequest(a, method, attrs)
	if err == nil && isStaleNonce(answer) {
		c.nonce = nil
		answer, err = c.signedRequest(a, method, attrs)
	}
	switch {
	case err != nil:
		return err
	case answer.Type.Class == stun.ClassSuccessResponse:
		return nil
	}
	code := stun.ErrorCodeAttribute{Code: stun.CodeServerError}
	_ = code.GetFrom(answer) // pion/turn leaves the code out of some error responses
	return engine.Refusal{Code: code.Code}
}

func (c *pionConn) signedRequest(a *allocation, method stun.Method, attrs []stun.Setter) (*stun.Message, error) {
	if err := c.renewNonce(a); err != nil {
		return nil, err
	}
	return c.roundTrip(a, method, attrs, username, realm, &c.nonce, &c.integrity)
}

var username, realm stun.Setter = stun.NewUsername(internalUser), stun.NewRealm(internalRealm)

// isStaleNonce reports whether pion/turn has answered with 438. This can happen before nonceRenewal is over: pion/turn
// measures the age of a nonce by the wall clock, which may jump, and nonceRenewal is measured by the monotonic clock.
func isStaleNonce(answer *stun.Message) bool {
	var code stun.ErrorCodeAttribute
	return answer.Type.Class == stun.ClassErrorResponse && code.GetFrom(answer) == nil &&
		code.Code == stun.CodeStaleNonce
}

// renewNonce fetches a new nonce from pion/turn if there is none, or if it is older than nonceRenewal. The nonce is in
// the challenge with which pion/turn answers a request without a credential.
func (c *pionConn) renewNonce(a *allocation) error {
	if c.nonce != nil && time.Since(c.fetched) < nonceRenewal {
		return nil
	}
	challenge, err := c.roundTrip(a, stun.MethodAllocate, nil)
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

// roundTrip makes a request and returns the answer, which is valid until the next exchange.
func (c *pionConn) roundTrip(
	a *allocation, method stun.Method, attrs []stun.Setter, credential ...stun.Setter,
) (*stun.Message, error) {
	x := c.begin(a, stun.NewType(method, stun.ClassRequest))
	if x == nil {
		return nil, engine.ErrNoAllocation
	}
	for _, list := range [][]stun.Setter{attrs, credential} {
		for _, attr := range list {
			if err := attr.AddTo(&x.message); err != nil {
				return nil, fmt.Errorf("build request to pion/turn: %w", err)
			}
		}
	}
	if !c.do(x) || !x.answered {
		return nil, engine.ErrNoAllocation
	}
	if err := x.answer.Decode(); err != nil {
		return nil, fmt.Errorf("read answer of pion/turn: %w", err)
	}
	return &x.answer, nil
}

// indicate sends data to a peer by a Send indication to pion/turn. It reports whether the peer has a permission.
func (c *pionConn) indicate(a *allocation, data []byte, peer netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.indication(a, data, peer)
	return x != nil && c.do(x) && x.permitted
}

// permitted reports whether the IP address of a peer has a permission. It tests whether pion/turn would send the data
// of a Send indication to the peer.
func (c *pionConn) permitted(a *allocation, peer netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.indication(a, nil, peer)
	if x == nil {
		return false
	}
	x.question = true
	return c.do(x) && x.permitted
}

// indication prepares the exchange of a Send indication. It builds a new indication and does not copy the client's
// message: pion/turn reads the first byte of an address attribute as a part of the family, but RFC 8489 §14.1 requires
// that this byte is ignored.
func (c *pionConn) indication(a *allocation, data []byte, peer netip.AddrPort) *exchange {
	x := c.begin(a, stun.NewType(stun.MethodSend, stun.ClassIndication))
	if x == nil {
		return nil
	}
	_ = stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: peer}.AddTo(&x.message) // never fails
	x.message.Add(stun.AttrData, data)
	return x
}

// begin prepares an exchange. It returns nil if the pionConn is closed.
func (c *pionConn) begin(a *allocation, t stun.MessageType) *exchange {
	select {
	case <-c.closed:
		return nil
	default:
	}
	x := &c.next
	x.allocation, x.answered, x.question, x.permitted = a, false, false, false
	x.message.Reset()
	x.message.Type = t
	c.transactions++
	binary.BigEndian.PutUint64(x.message.TransactionID[:], c.transactions)
	x.message.WriteHeader()
	return x
}

// do passes a message to pion/turn, and returns when pion/turn has handled it. It reports false if the pionConn is
// closed.
func (c *pionConn) do(x *exchange) bool {
	c.task.Begin()
	defer c.task.End()
	select {
	case c.exchanges <- x:
	case <-c.closed:
		return false
	}
	select {
	case <-c.handled:
		return true
	case <-c.closed:
		return false
	}
}

// ReadFrom returns the next message to pion/turn. The call means that pion/turn has handled the previous message, so
// ReadFrom first ends the exchange of that message.
func (c *pionConn) ReadFrom(b []byte) (int, net.Addr, error) {
	if c.current != nil {
		c.current = nil
		c.handled <- struct{}{}
	}
	select {
	case x := <-c.exchanges:
		c.current = x
		return copy(b, x.message.Raw), x.allocation.handle, nil
	case <-c.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo receives a response of pion/turn: the answer of the current exchange.
func (c *pionConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	x := c.current
	x.answer.Raw = append(x.answer.Raw[:0], b...)
	x.answered = true
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
func (c *pionConn) LocalAddr() net.Addr { return pionAddr }

var pionAddr = &net.UDPAddr{IP: net.IPv6loopback, Port: 1}
