package probe

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// Answer is the response to a request.
type Answer struct {
	wire.Message
	client *Client
}

// req encodes a request with a fresh transaction id.
func req(method wire.Method, attrs ...wire.Attr) []byte {
	return wire.New(wire.Request, method, attrs...).Bytes()
}

// exchange sends an encoded request until its response arrives. Over datagrams it retransmits (RFC 8489 §6.2.1).
func (c *Client) exchange(request []byte) (wire.Message, bool) {
	deadline := time.Now().Add(c.trial.Answer)
	for pause := c.trial.Answer / 4; ; pause *= 2 {
		c.transmit(request)
		wait := time.Until(deadline)
		if !c.stream {
			wait = min(wait, pause)
		}
		if frame, ok := c.take(wait, answers(request)); ok {
			m, err := wire.Parse(frame)
			c.trial.must(err, "read the response")
			return m, true
		}
		if time.Until(deadline) <= 0 || c.closed() {
			return wire.Message{}, false
		}
	}
}

// answers matches responses by their transaction id.
func answers(request []byte) func([]byte) bool {
	return func(frame []byte) bool {
		return len(frame) >= 20 && !wire.IsChannelData(frame) && frame[0]&1 == 1 &&
			bytes.Equal(frame[4:20], request[4:20])
	}
}

// answer sends an encoded request and checks that the response is well-formed.
func (c *Client) answer(request []byte) Answer {
	m, ok := c.exchange(request)
	if !ok {
		c.trial.Failf("%s: no response within %s%s", name(request), c.trial.Answer, c.whyOver())
	}
	if sent := name(request); m.Method.String()+" request" != sent {
		c.trial.Failf("%s: the response is a %s", sent, m)
	}
	if m.Code() < 0 {
		c.trial.Failf("%s: the error response has no valid ERROR-CODE", name(request))
	}
	return Answer{m, c}
}

func (c *Client) whyOver() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return fmt.Sprintf(", and the connection has ended: %v", c.err)
	}
	return ""
}

// name returns the method and class of an encoded request.
func name(request []byte) string {
	t := uint16(request[0])<<8 | uint16(request[1])
	return wire.MethodOf(t).String() + " request"
}

// Ask sends a request without credentials.
func (c *Client) Ask(method wire.Method, attrs ...wire.Attr) Answer {
	return c.answer(req(method, attrs...))
}

// Do sends a request with credentials, and again after a challenge.
func (c *Client) Do(method wire.Method, attrs ...wire.Attr) Answer {
	if c.nonce == "" {
		c.challenge()
	}
	a := c.once(method, attrs...)
	if a.Code() == 438 {
		c.learn(a)
		a = c.once(method, attrs...)
	}
	return a
}

// once sends a request with the current credentials and checks MESSAGE-INTEGRITY of the response.
func (c *Client) once(method wire.Method, attrs ...wire.Attr) Answer {
	a := c.answer(c.sign(req(method, attrs...)))
	if err := a.Verify(c.key()); err != nil && (a.Class == wire.Success || a.Has(wire.MessageIntegrity)) {
		c.trial.Failf("%s: a client must discard the response: %v", a, err)
	}
	if a.Class == wire.Success {
		c.note(a)
	}
	return a
}

// note records whether the client has an allocation.
func (c *Client) note(a Answer) {
	switch a.Method {
	case wire.Allocate:
		c.relay, _ = a.GetAddress(wire.XORRelayedAddress)
	case wire.Refresh:
		if n, err := a.GetUint32(wire.Lifetime); err == nil && n == 0 {
			c.relay = netip.AddrPort{}
		}
	}
}

// challenge learns realm and nonce from the response to a request without credentials (RFC 8489 §9.2.3.1).
func (c *Client) challenge() {
	c.learn(c.Ask(wire.Allocate, overUDP()).Refused(401))
}

func (c *Client) learn(a Answer) {
	realm, _ := a.Get(wire.Realm)
	nonce, _ := a.Get(wire.Nonce)
	if len(realm) == 0 || len(nonce) == 0 {
		c.trial.Failf("%s has no REALM or no NONCE", a)
	}
	c.realm, c.nonce = string(realm), string(nonce)
	c.source.learn(c.realm, c.nonce)
}

func (c *Client) key() []byte { return wire.Key(c.login.user, c.realm, c.login.password) }

// identity returns the attributes that precede MESSAGE-INTEGRITY.
func (c *Client) identity() []wire.Attr {
	return []wire.Attr{
		wire.Text(wire.Username, c.login.user), wire.Text(wire.Realm, c.realm), wire.Text(wire.Nonce, c.nonce),
	}
}

func (c *Client) sign(request []byte) []byte {
	return wire.Sign(wire.Append(request, c.identity()...), c.key())
}

// OK fails the check unless the request succeeded.
func (a Answer) OK() Answer {
	if a.Class != wire.Success {
		a.client.trial.Failf("want success, got %s", a)
	}
	return a
}

// Refused fails the check unless the response is an error with one of the codes.
func (a Answer) Refused(codes ...int) Answer {
	if !slices.Contains(codes, a.Code()) {
		a.client.trial.Failf("want error %s, got %s", list(codes), a)
	}
	return a
}

// Denied fails the check unless the response is an error.
func (a Answer) Denied() Answer {
	if a.Class == wire.Success {
		a.client.trial.Failf("want an error, got %s", a)
	}
	return a
}

// Signed fails the check unless the response has a valid MESSAGE-INTEGRITY.
func (a Answer) Signed() Answer {
	if err := a.Verify(a.client.key()); err != nil {
		a.client.trial.Failf("%s: %v", a, err)
	}
	return a
}

// Unknown fails the check unless UNKNOWN-ATTRIBUTES lists exactly the types.
func (a Answer) Unknown(types ...wire.AttrType) Answer {
	listed := a.GetUnknown()
	if got := slices.Compact(slices.Sorted(slices.Values(listed))); !slices.Equal(got, types) {
		a.client.trial.Failf("%s: UNKNOWN-ATTRIBUTES lists %v, want %v", a, listed, types)
	}
	return a
}

// lifetime returns LIFETIME.
func (a Answer) lifetime() uint32 {
	n, err := a.GetUint32(wire.Lifetime)
	a.client.trial.must(err, a.String())
	return n
}

// address returns an XOR address.
func (a Answer) address(t wire.AttrType) netip.AddrPort {
	addr, err := a.GetAddress(t)
	a.client.trial.must(err, a.String())
	return addr
}

func list(codes []int) string {
	s := fmt.Sprint(codes[0])
	for _, c := range codes[1:] {
		s += fmt.Sprintf(" or %d", c)
	}
	return s
}
