package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pion/dtls/v3"
)

// handshakeTime limits the setup of a connection. On a busy machine, key exchange is slow.
const handshakeTime = 10 * time.Second

// protocols are the ALPN protocols that a TURN client offers (RFC 7443 §3).
var protocols = []string{"stun.turn"}

// dial connects to a server from a source address.
func dial(t Transport, from netip.Addr, server netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
	defer cancel()
	switch t {
	case UDP:
		return dialUDP(from, server)
	case TCP:
		return dialTCP(ctx, from, server)
	case TLS:
		return dialTLS(ctx, from, server, &tls.Config{NextProtos: protocols})
	case DTLS:
		return dialDTLS(ctx, from, server, protocols)
	}
	return nil, fmt.Errorf("dial %s: unknown transport %q", server, t)
}

func dialUDP(from netip.Addr, server netip.AddrPort) (*net.UDPConn, error) {
	var local *net.UDPAddr
	if from.IsValid() {
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	return net.DialUDP("udp", local, net.UDPAddrFromAddrPort(server))
}

func dialTCP(ctx context.Context, from netip.Addr, server netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	return d.DialContext(ctx, "tcp", server.String())
}

// dialTLS accepts any certificate, because certificates are not under test.
func dialTLS(ctx context.Context, from netip.Addr, server netip.AddrPort, config *tls.Config) (*tls.Conn, error) {
	conn, err := dialTCP(ctx, from, server)
	if err != nil {
		return nil, err
	}
	config.InsecureSkipVerify = true
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secured, nil
}

func dialDTLS(ctx context.Context, from netip.Addr, server netip.AddrPort, protocols []string) (*dtls.Conn, error) {
	conn, err := dialUDP(from, server)
	if err != nil {
		return nil, err
	}
	secured, err := handshakeDTLS(ctx, packets{conn}, server, protocols)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

func handshakeDTLS(
	ctx context.Context, conn net.PacketConn, server netip.AddrPort, protocols []string,
) (*dtls.Conn, error) {
	options := []dtls.ClientOption{dtls.WithInsecureSkipVerify(true)}
	if len(protocols) > 0 {
		options = append(options, dtls.WithSupportedProtocols(protocols...))
	}
	secured, err := dtls.ClientWithOptions(conn, net.UDPAddrFromAddrPort(server), options...)
	if err != nil {
		return nil, fmt.Errorf("DTLS client: %w", err)
	}
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("DTLS handshake: %w", err)
	}
	return secured, nil
}

// packets presents a connected socket as an unconnected net.PacketConn.
type packets struct{ *net.UDPConn }

// WriteTo ignores the address: the socket is connected.
func (p packets) WriteTo(b []byte, _ net.Addr) (int, error) { return p.Write(b) }
