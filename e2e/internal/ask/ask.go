// Package ask is a TURN client that does only what it is told: it sends one request as often as it is asked to, shows the answer, and keeps
// nothing alive. Client libraries hide what a gateway answers; this one is for tests of just that.
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

// ErrSilence says that no answer came.
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

// Addr is the address of the client.
func (c *Client) Addr() netip.AddrPort { return c.Conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close closes the socket. The gateway does not hear of it.
func (c *Client) Close() { _ = c.Conn.Close() }

// Request encodes a request, signed with the credential once there was a challenge.
func (c *Client) Request(method stun.Method, attrs ...stun.Setter) []byte {
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)
	if c.nonce != nil {
		setters = append(setters, stun.NewUsername(c.Username), c.realm, c.nonce, c.key)
	}
	return stun.MustBuild(setters...).Raw
}

// With encodes a request with another credential than the client's, and the nonce of the client, which has had a challenge.
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

// Receive returns the next datagram.
func (c *Client) Receive(patience time.Duration) ([]byte, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	buf := make([]byte, 2048)
	n, err := c.Conn.Read(buf)
	return buf[:n], err
}

// Once sends an encoded request a single time and returns its answer.
func (c *Client) Once(raw []byte, patience time.Duration) (*stun.Message, error) {
	if err := c.Send(raw); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; {
		got, err := c.Receive(time.Until(deadline))
		if err != nil {
			return nil, fmt.Errorf("%w within %s: %w", ErrSilence, patience, err)
		}
		m := &stun.Message{Raw: got}
		if m.Decode() == nil && m.TransactionID == [stun.TransactionIDSize]byte(raw[8:20]) {
			return m, nil
		}
	}
}

// Exchange sends an encoded request again and again, like a client over a path that loses (RFC 8489 §6.2.1), until its answer comes.
func (c *Client) Exchange(ctx context.Context, raw []byte) (*stun.Message, error) {
	const first = 500 * time.Millisecond
	for pause := time.Duration(first); ; pause *= 2 {
		m, err := c.Once(raw, pause)
		if err == nil || ctx.Err() != nil {
			return m, err
		}
	}
}

// Do asks with the credential, after a challenge where the gateway wants one, and returns the answer with how many challenges it took.
func (c *Client) Do(ctx context.Context, method stun.Method, attrs ...stun.Setter) (answer *stun.Message, challenges int, err error) {
	for ; ; challenges++ {
		answer, err = c.Exchange(ctx, c.Request(method, attrs...))
		if err != nil || !c.Learn(answer) || challenges == 2 {
			return answer, challenges, err
		}
	}
}

// Learn takes realm and nonce from a challenge, and reports whether the request is to be sent again: a 401 to a request with a credential is
// final.
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

// Code is the error code of an answer, 0 of a success.
func Code(m *stun.Message) stun.ErrorCode {
	var code stun.ErrorCodeAttribute
	if m == nil || m.Type.Class != stun.ClassErrorResponse || code.GetFrom(m) != nil {
		return 0
	}
	return code.Code
}

// UDP is REQUESTED-TRANSPORT for a relay over UDP.
func UDP() stun.Setter {
	return stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}}
}

// Lifetime is LIFETIME in seconds.
func Lifetime(seconds uint32) stun.Setter {
	return stun.RawAttribute{Type: stun.AttrLifetime, Value: binary.BigEndian.AppendUint32(nil, seconds)}
}

// Channel is CHANNEL-NUMBER.
func Channel(n uint16) stun.Setter {
	return stun.RawAttribute{Type: stun.AttrChannelNumber, Value: []byte{byte(n >> 8), byte(n), 0, 0}}
}

// Peer is XOR-PEER-ADDRESS.
func Peer(a netip.AddrPort) stun.Setter { return peer(a) }

type peer netip.AddrPort

// AddTo is part of stun.Setter.
func (p peer) AddTo(m *stun.Message) error {
	a := net.UDPAddrFromAddrPort(netip.AddrPort(p))
	return stun.XORMappedAddress{IP: a.IP, Port: a.Port}.AddToAs(m, stun.AttrXORPeerAddress)
}

// Relayed is XOR-RELAYED-ADDRESS of an answer.
func Relayed(m *stun.Message) (netip.AddrPort, error) {
	var a stun.XORMappedAddress
	if err := a.GetFromAs(m, stun.AttrXORRelayedAddress); err != nil {
		return netip.AddrPort{}, fmt.Errorf("read relayed address: %w", err)
	}
	return (&net.UDPAddr{IP: a.IP, Port: a.Port}).AddrPort(), nil
}

// ChannelData is a frame on a channel.
func ChannelData(number uint16, payload []byte) []byte {
	frame := binary.BigEndian.AppendUint16(nil, number)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(payload)))
	return append(frame, payload...)
}
