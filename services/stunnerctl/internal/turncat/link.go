package turncat

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"
	"github.com/pion/stun/v2"
)

const (
	// maxMessage is the longest STUN message or ChannelData message: header and a 16-bit length.
	maxMessage = 20 + 65535
	// socketBuffer is the wanted size of the receive buffer of a UDP socket. The kernel may grant less.
	socketBuffer = 4 << 20
	dialTimeout  = 10 * time.Second
)

// link is the connection to a TURN server, as net.PacketConn for the client of pion/turn. The STUNConn of pion/turn is
// not used for streams: it does not return ChannelData with four or fewer bytes before the next message arrives.
type link struct {
	net.Conn
	stream *bufio.Reader // nil if the connection keeps message boundaries
	// addressFamily is the value of REQUESTED-ADDRESS-FAMILY in Allocate requests, which pion/turn does not send. 0
	// means none.
	addressFamily Family
	password      string
	// refusal is the code of the error response to the latest request, or 0, and answered is set if it has any response.
	refusal  atomic.Int32
	answered atomic.Bool
}

// dial connects to the server.
func dial(ctx context.Context, e Endpoint) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	begun := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, e.Protocol.Network(), net.JoinHostPort(e.Host, portText(e.Port)))
	if err != nil {
		return nil, inWords(err, e.at(), begun)
	}
	if udp, ok := conn.(*net.UDPConn); ok {
		_ = udp.SetReadBuffer(socketBuffer) // a smaller buffer works too
	}
	if e.Protocol.Secure() {
		if conn, err = secure(ctx, conn, e); err != nil {
			return nil, err
		}
	}
	l := &link{Conn: conn, password: string(e.Credential.Password)}
	if e.Protocol.Stream() {
		l.stream = bufio.NewReaderSize(conn, 1<<16)
	}
	return l, nil
}

// secure makes the TLS or DTLS handshake. It closes conn on errors.
func secure(ctx context.Context, conn net.Conn, e Endpoint) (net.Conn, error) {
	name := cmp.Or(e.ServerName, e.Host)
	var handshake interface {
		net.Conn
		HandshakeContext(context.Context) error
	}
	if e.Protocol.Stream() {
		handshake = tls.Client(conn, &tls.Config{RootCAs: e.Roots, ServerName: name, InsecureSkipVerify: e.Insecure})
	} else {
		c, err := dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(conn), conn.RemoteAddr(),
			dtls.WithRootCAs(e.Roots), dtls.WithServerName(name), dtls.WithInsecureSkipVerify(e.Insecure))
		if err != nil {
			return nil, errors.Join(handshakeError(err, e.at(), time.Now()), conn.Close())
		}
		handshake = c
	}
	begun := time.Now()
	if err := handshake.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, handshakeError(err, e.at(), begun)
	}
	return handshake, nil
}

// errFrame reports a stream that contains neither STUN nor ChannelData.
var errFrame = errors.New("the server sends neither STUN nor ChannelData messages: another server has the port")

// ReadFrom returns one message. On a stream, the padding of ChannelData (RFC 8656 §12.5) is part of it.
func (l *link) ReadFrom(p []byte) (int, net.Addr, error) {
	if l.stream == nil {
		n, err := l.Read(p)
		return n, l.RemoteAddr(), err
	}
	head, err := l.stream.Peek(4)
	if err != nil {
		return 0, nil, err
	}
	size := 4 + int(binary.BigEndian.Uint16(head[2:]))
	switch head[0] >> 6 {
	case 0:
		size += 16
	case 1:
		size = (size + 3) &^ 3
	default:
		return 0, nil, errFrame
	}
	n, err := io.ReadFull(l.stream, p[:min(size, len(p))])
	return n, l.RemoteAddr(), err
}

// WriteTo sends one message to the server. It ignores the address.
func (l *link) WriteTo(p []byte, _ net.Addr) (int, error) {
	var kind stun.MessageType
	if len(p) > 2 && p[0]>>6 == 0 {
		kind.ReadValue(binary.BigEndian.Uint16(p))
		if kind.Class == stun.ClassRequest {
			l.refusal.Store(0)
			l.answered.Store(false)
		}
	}
	if l.addressFamily != AnyFamily && kind == stun.NewType(stun.MethodAllocate, stun.ClassRequest) {
		q, err := l.withFamily(p)
		if err != nil {
			return 0, err
		}
		if _, err := l.Write(q); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return l.Write(p)
}

// withFamily returns an Allocate request with REQUESTED-ADDRESS-FAMILY, and with MESSAGE-INTEGRITY and FINGERPRINT
// computed again.
func (l *link) withFamily(p []byte) ([]byte, error) {
	from := &stun.Message{Raw: append([]byte(nil), p...)}
	if err := from.Decode(); err != nil {
		return nil, err
	}
	to := stun.New()
	to.Type, to.TransactionID = from.Type, from.TransactionID
	to.WriteHeader()
	signed := false
	var user, realm string
	for _, a := range from.Attributes {
		switch a.Type {
		case stun.AttrMessageIntegrity:
			signed = true
			continue
		case stun.AttrFingerprint:
			continue
		case stun.AttrUsername:
			user = string(a.Value)
		case stun.AttrRealm:
			realm = string(a.Value)
		}
		to.Add(a.Type, a.Value)
	}
	to.Add(stun.AttrRequestedAddressFamily, []byte{byte(l.addressFamily), 0, 0, 0})
	if signed {
		if err := stun.NewLongTermIntegrity(user, realm, l.password).AddTo(to); err != nil {
			return nil, err
		}
	}
	if err := stun.Fingerprint.AddTo(to); err != nil {
		return nil, err
	}
	return to.Raw, nil
}
