// Package ask is a minimal TURN client for tests of single requests and responses. It sends only the requests that the
// test makes, returns the response, and refreshes nothing. Client libraries retry and hide error responses.
package ask

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"
)

// ErrSilence means that no response arrived in time.
var ErrSilence = errors.New("no answer")

// Client is one 5-tuple over UDP with a credential.
type Client struct {
	Conn               *net.UDPConn
	Username, Password string

	realm stun.Realm
	nonce stun.Nonce
	key   stun.MessageIntegrity
}

// Dial opens a socket from an address of this host, on a port that the kernel picks, to a gateway.
func Dial(from netip.Addr, to netip.AddrPort, username, password string) (*Client, error) {
	return DialFrom(netip.AddrPortFrom(from, 0), to, username, password)
}

// DialFrom opens a socket from an address and port of this host to a gateway.
func DialFrom(from, to netip.AddrPort, username, password string) (*Client, error) {
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, fmt.Errorf("connect to gateway %s: %w", to, err)
	}
	return &Client{Conn: conn, Username: username, Password: password}, nil
}

// Addr returns the client's local address.
func (c *Client) Addr() netip.AddrPort { return c.Conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close closes the socket without a Refresh, so the allocation stays at the gateway until it expires.
func (c *Client) Close() { _ = c.Conn.Close() }

// Request encodes a request. After a challenge (see Learn), the request carries the credential and MESSAGE-INTEGRITY.
func (c *Client) Request(method stun.Method, attrs ...stun.Setter) []byte {
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)
	if c.nonce != nil {
		setters = append(setters, stun.NewUsername(c.Username), c.realm, c.nonce, c.key)
	}
	return stun.MustBuild(setters...).Raw
}

// With encodes a request with another credential. It uses the realm and nonce that the client has learned from a
// challenge.
func (c *Client) With(username, password string, method stun.Method, attrs ...stun.Setter) []byte {
	other := *c
	other.Username, other.key = username, stun.NewLongTermIntegrity(username, c.realm.String(), password)
	return other.Request(method, attrs...)
}

// Send sends bytes as one datagram.
func (c *Client) Send(raw []byte) error {
	_, err := c.Conn.Write(raw)
	return err
}

// Receive returns the next datagram, or an error when timeout has passed.
func (c *Client) Receive(timeout time.Duration) ([]byte, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	buf := make([]byte, 2048)
	n, err := c.Conn.Read(buf)
	return buf[:n], err
}

// Once sends an encoded request once, without retransmission, and returns the response with its transaction ID.
func (c *Client) Once(raw []byte, timeout time.Duration) (*stun.Message, error) {
	if err := c.Send(raw); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; {
		got, err := c.Receive(time.Until(deadline))
		if err != nil {
			return nil, fmt.Errorf("%w within %s: %w", ErrSilence, timeout, err)
		}
		m := &stun.Message{Raw: got}
		if m.Decode() == nil && m.TransactionID == [stun.TransactionIDSize]byte(raw[8:20]) {
			return m, nil
		}
	}
}

// Exchange retransmits an encoded request with doubling intervals (RFC 8489 §6.2.1) until its response arrives or ctx
// ends.
func (c *Client) Exchange(ctx context.Context, raw []byte) (*stun.Message, error) {
	const first = 500 * time.Millisecond
	for pause := time.Duration(first); ; pause *= 2 {
		m, err := c.Once(raw, pause)
		if err == nil || ctx.Err() != nil {
			return m, err
		}
	}
}

// Do sends a request, and repeats it after up to two challenges with the credential. It returns the last response and
// the number of challenges.
func (c *Client) Do(
	ctx context.Context, method stun.Method, attrs ...stun.Setter,
) (answer *stun.Message, challenges int, err error) {
	for ; ; challenges++ {
		answer, err = c.Exchange(ctx, c.Request(method, attrs...))
		if err != nil || !c.Learn(answer) || challenges == 2 {
			return answer, challenges, err
		}
	}
}

// Learn takes realm and nonce from a challenge, and reports whether the request must be sent again. A 401 response to a
// request with a credential is final.
func (c *Client) Learn(answer *stun.Message) bool {
	code := Code(answer)
	if code != stun.CodeStaleNonce && (code != stun.CodeUnauthorized || c.nonce != nil) {
		return false
	}
	if c.realm.GetFrom(answer) != nil || c.nonce.GetFrom(answer) != nil {
		return false
	}
	c.key = stun.NewLongTermIntegrity(c.Username, c.realm.String(), c.Password)
	return true
}

// Code returns the error code of a response, or 0 for a success response.
func Code(m *stun.Message) stun.ErrorCode {
	var code stun.ErrorCodeAttribute
	if m == nil || m.Type.Class != stun.ClassErrorResponse || code.GetFrom(m) != nil {
		return 0
	}
	return code.Code
}

// UDP returns REQUESTED-TRANSPORT for a relay over UDP.
func UDP() stun.Setter {
	return stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}}
}

// Lifetime returns LIFETIME in seconds.
func Lifetime(seconds uint32) stun.Setter {
	return stun.RawAttribute{Type: stun.AttrLifetime, Value: binary.BigEndian.AppendUint32(nil, seconds)}
}

// Channel returns CHANNEL-NUMBER.
func Channel(n uint16) stun.Setter {
	return stun.RawAttribute{Type: stun.AttrChannelNumber, Value: []byte{byte(n >> 8), byte(n), 0, 0}}
}

// Peer returns XOR-PEER-ADDRESS.
func Peer(a netip.AddrPort) stun.Setter { return peer(a) }

type peer netip.AddrPort

// AddTo implements stun.Setter.
func (p peer) AddTo(m *stun.Message) error {
	a := net.UDPAddrFromAddrPort(netip.AddrPort(p))
	return stun.XORMappedAddress{IP: a.IP, Port: a.Port}.AddToAs(m, stun.AttrXORPeerAddress)
}

// Family returns REQUESTED-ADDRESS-FAMILY of the family of an address.
func Family(of netip.Addr) stun.Setter {
	family := byte(1)
	if of.Is6() {
		family = 2
	}
	return stun.RawAttribute{Type: stun.AttrRequestedAddressFamily, Value: []byte{family, 0, 0, 0}}
}

// SendIndication encodes a Send indication with data to a peer.
func SendIndication(to netip.AddrPort, data []byte) []byte {
	return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), Peer(to),
		stun.RawAttribute{Type: stun.AttrData, Value: data}).Raw
}

// Relayed returns the XOR-RELAYED-ADDRESS of a response.
func Relayed(m *stun.Message) (netip.AddrPort, error) {
	var a stun.XORMappedAddress
	if err := a.GetFromAs(m, stun.AttrXORRelayedAddress); err != nil {
		return netip.AddrPort{}, fmt.Errorf("read relayed address: %w", err)
	}
	return (&net.UDPAddr{IP: a.IP, Port: a.Port}).AddrPort(), nil
}

// ChannelData encodes a ChannelData message without padding (RFC 8656 §12.4).
func ChannelData(number uint16, payload []byte) []byte {
	frame := binary.BigEndian.AppendUint16(nil, number)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(payload)))
	return append(frame, payload...)
}
