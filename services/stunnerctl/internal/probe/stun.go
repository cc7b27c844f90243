package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"
	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/turncat"
)

const (
	// timeout is how long a probe waits for a connection, a handshake, or the answer to a request.
	timeout = 5 * time.Second
	// firstRTO is the wait before the first retransmission. The wait doubles with each retransmission (RFC 8489
	// §6.2.1).
	firstRTO = 500 * time.Millisecond
	// maxRefusals is the number of ICMP messages after which a request over UDP ends. The first may be about an earlier
	// datagram.
	maxRefusals = 2
	maxDatagram = 1500
	// maxUnauthenticated is the length of a message over a stream that servers accept before an allocation.
	maxUnauthenticated = 800
)

// Errors of conversations.
var (
	errNoAnswer  = errors.New("no answer")
	errRefused   = errors.New("refused")
	errNotSTUN   = errors.New("the answer is not STUN")
	errUnrouted  = errors.New("this machine has no route")
	errHandshake = errors.New("handshake failed")
)

// resultOf returns the result that an error of a conversation means.
func resultOf(err error) diagnose.ProbeResult {
	for _, known := range []struct {
		err    error
		result diagnose.ProbeResult
	}{
		{errHandshake, diagnose.ProbeHandshake},
		{errRefused, diagnose.ProbeRefused},
		{errNotSTUN, diagnose.ProbeNotSTUN},
		{errUnrouted, diagnose.ProbeUnroutable},
		{errNoAnswer, diagnose.ProbeNoAnswer},
	} {
		if errors.Is(err, known.err) {
			return known.result
		}
	}
	if err == nil {
		return diagnose.ProbeAnswered
	}
	return diagnose.ProbeFailed
}

// inWords replaces errors of the network by errors of this package. Other errors stay unchanged.
func inWords(err error) error {
	switch turncat.ReasonOf(err) {
	case turncat.Refused:
		return errRefused
	case turncat.Unrouted:
		return errUnrouted
	case turncat.Unreachable:
		return fmt.Errorf("%w: the network reports that the host or port is unreachable", errNoAnswer)
	case turncat.Silent:
		return errNoAnswer
	case turncat.Closed:
		return fmt.Errorf("%w: the connection was closed", errRefused)
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
		return errNoAnswer
	}
	return err
}

// timedOut reports whether an error means that a deadline has passed.
func timedOut(err error) bool { return turncat.ReasonOf(err) == turncat.Silent }

// serverConn is a connection to a TURN server over any transport.
type serverConn struct {
	net.Conn
	stream *bufio.Reader // nil for datagrams
	// certificates are the certificates of the server, the leaf certificate first.
	certificates []*x509.Certificate
	// lastMessage is sent before the connection is closed, if it is set.
	lastMessage atomic.Pointer[[]byte]
	stop        func() bool
}

// dial connects to a server. Certificates are not verified: the rules judge them, and a request reveals no password.
func dial(ctx context.Context, p config.Protocol, at netip.AddrPort, host string) (*serverConn, error) {
	dialing, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(dialing, p.Network(), at.String())
	if err != nil {
		return nil, inWords(err)
	}
	return wrap(ctx, conn, p, host)
}

// wrap makes the handshake of a protocol on a connection. The connection ends with ctx.
func wrap(ctx context.Context, conn net.Conn, p config.Protocol, host string) (*serverConn, error) {
	w := &serverConn{Conn: conn}
	shaking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if p.Secure() {
		if err := w.handshake(shaking, p, host); err != nil {
			_ = conn.Close()
			switch why := inWords(err); {
			case !p.Stream() && (errors.Is(why, errNoAnswer) || errors.Is(why, errRefused)):
				return nil, why // over UDP, a failed handshake looks like a failed connection
			case errors.Is(why, errNoAnswer):
				return nil, fmt.Errorf("%w: the connection is accepted, and the handshake is not answered", errHandshake)
			default:
				return nil, fmt.Errorf("%w: %s", errHandshake, why.Error())
			}
		}
	}
	if p.Stream() {
		w.stream = bufio.NewReader(w.Conn)
	}
	w.stop = context.AfterFunc(ctx, w.sendLastAndClose)
	return w, nil
}

func (w *serverConn) handshake(ctx context.Context, p config.Protocol, host string) error {
	var served [][]byte
	if p.Stream() {
		c := tls.Client(w.Conn, &tls.Config{
			ServerName: host, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // the rules verify
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error { served = raw; return nil },
		})
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		w.Conn = c
	} else {
		c, err := dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(w.Conn), w.RemoteAddr(),
			dtls.WithServerName(host), dtls.WithInsecureSkipVerify(true))
		if err != nil {
			return err
		}
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		if state, ok := c.ConnectionState(); ok {
			served = state.PeerCertificates
		}
		w.Conn = c
	}
	for _, raw := range served {
		if c, err := x509.ParseCertificate(raw); err == nil {
			w.certificates = append(w.certificates, c)
		}
	}
	return nil
}

// end ends the connection without waiting.
func (w *serverConn) end() {
	w.stop()
	w.sendLastAndClose()
}

// sendLastAndClose sends the last message and closes the connection.
func (w *serverConn) sendLastAndClose() {
	if last := w.lastMessage.Swap(nil); last != nil {
		_ = w.SetWriteDeadline(time.Now().Add(firstRTO))
		_, _ = w.Write(*last)
	}
	_ = w.Close()
}

// receive returns the next message. For other data the error is errNotSTUN.
func (w *serverConn) receive() (*stun.Message, error) {
	var raw []byte
	if w.stream == nil {
		buf := make([]byte, maxDatagram)
		n, err := w.Read(buf)
		if err != nil {
			return nil, err
		}
		raw = buf[:n]
	} else {
		head, err := w.stream.Peek(4)
		if err != nil {
			return nil, err
		}
		if head[0]>>6 != 0 {
			return nil, errNotSTUN
		}
		raw = make([]byte, 20+int(binary.BigEndian.Uint16(head[2:])))
		if _, err := io.ReadFull(w.stream, raw); err != nil {
			return nil, err
		}
	}
	m := &stun.Message{Raw: raw}
	if !stun.IsMessage(raw) || m.Decode() != nil {
		return nil, errNotSTUN
	}
	return m, nil
}

// ask sends a request and returns the response to it. Over UDP it sends the request again as RFC 8489 says. seen gets
// other messages, unless it is nil.
func (w *serverConn) ask(ctx context.Context, request *stun.Message, seen func(*stun.Message)) (*stun.Message, error) {
	end := time.Now().Add(timeout)
	if limit, ok := ctx.Deadline(); ok && limit.Before(end) {
		end = limit
	}
	refusals := 0
	var last error
	for rto := firstRTO; ctx.Err() == nil && time.Now().Before(end); rto *= 2 {
		if _, err := w.Write(request.Raw); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, inWords(err)
		}
		again := time.Now().Add(rto)
		if w.stream != nil || again.After(end) {
			again = end
		}
		for ctx.Err() == nil {
			_ = w.SetReadDeadline(again)
			m, err := w.receive()
			switch {
			case err == nil && m.TransactionID == request.TransactionID && m.Type.Class != stun.ClassRequest:
				return m, nil
			case err == nil:
				if seen != nil {
					seen(m)
				}
				continue
			case errors.Is(err, errNotSTUN) && w.stream == nil:
				last = err // a stray datagram, or another protocol
				continue
			case errors.Is(err, syscall.ECONNREFUSED) && w.stream == nil:
				if refusals++; refusals >= maxRefusals {
					return nil, errRefused
				}
				last = errRefused
				select { // until the retransmission
				case <-ctx.Done():
				case <-time.After(time.Until(again)):
				}
			case !timedOut(err):
				return nil, inWords(err)
			}
			break
		}
	}
	if last != nil {
		return nil, last
	}
	return nil, errNoAnswer
}

// bind sends a Binding request of at least length bytes. It returns the address of the client that the server has
// received. An error response counts as an answer, but contains no address.
func (w *serverConn) bind(ctx context.Context, length int) (client netip.AddrPort, err error) {
	var earlier []byte // messages that arrived in the same segment
	if w.stream != nil && length > maxUnauthenticated {
		first, err := bindingRequest(stun.AttrPadding, length-maxUnauthenticated)
		if err != nil {
			return client, err
		}
		earlier, length = first.Raw, maxUnauthenticated
	}
	request, err := bindingRequest(stun.AttrPadding, length)
	if err != nil {
		return client, err
	}
	request.Raw = append(earlier, request.Raw...)
	answer, err := w.ask(ctx, request, nil)
	if err != nil {
		return client, err
	}
	return addressIn(answer, stun.AttrXORMappedAddress), nil
}

// addressIn returns the address in an attribute of a message. It is invalid if there is no such attribute.
func addressIn(m *stun.Message, attribute stun.AttrType) netip.AddrPort {
	var xored stun.XORMappedAddress
	if xored.GetFromAs(m, attribute) != nil {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(xored.IP)
	return netip.AddrPortFrom(a.Unmap(), uint16(xored.Port))
}

// bindingRequest returns a Binding request. If it is shorter than the given length, an attribute of the given type is
// added.
func bindingRequest(padding stun.AttrType, length int) (*stun.Message, error) {
	const overhead = 20 + 4 + 8 // the header, the header of the attribute, and FINGERPRINT
	setters := []stun.Setter{stun.TransactionID, stun.BindingRequest}
	if length > overhead {
		setters = append(setters, stun.RawAttribute{Type: padding, Value: make([]byte, length-overhead)})
	}
	return stun.Build(append(setters, stun.Fingerprint)...)
}
