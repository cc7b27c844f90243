package call

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/pion/dtls/v3"
	"github.com/pion/turn/v3"
)

// Dial connects to the gateway of o without an allocation. A stream or DTLS connection reads whole STUN and ChannelData
// messages.
func Dial(ctx context.Context, o Options) (conn net.PacketConn, err error) {
	if o.Do == nil {
		o.Do = func(f func()) { f() }
	}
	switch o.Network {
	case UDP:
		udp, err := listen(o)
		if err != nil || o.Balancer == nil {
			return udp, err
		}
		return balanced{udp, net.UDPAddrFromAddrPort(o.Gateway), o.Balancer}, nil
	case TCP:
		return framed(dialTCP(ctx, o))
	case TLS:
		stream, err := dialTCP(ctx, o)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(stream, &tls.Config{RootCAs: o.Roots, ServerName: o.Gateway.Addr().String()})
		return framed(secure, secure.HandshakeContext(ctx))
	case DTLS:
		udp, err := listen(o)
		if err != nil {
			return nil, err
		}
		secure, err := dtls.ClientWithOptions(udp, net.UDPAddrFromAddrPort(o.Gateway),
			dtls.WithRootCAs(o.Roots), dtls.WithServerName(o.Gateway.Addr().String()))
		if err != nil {
			return nil, errors.Join(err, udp.Close())
		}
		return framed(secure, secure.HandshakeContext(ctx))
	}
	return nil, fmt.Errorf("unknown network %q", o.Network)
}

// listen opens the socket of a client over UDP or DTLS.
func listen(o Options) (conn *net.UDPConn, err error) {
	local := o.Local
	if !local.IsValid() {
		local = netip.AddrPortFrom(wildcard(o.Gateway.Addr()), 0)
	}
	o.Do(func() { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local)) })
	return conn, err
}

func dialTCP(ctx context.Context, o Options) (conn net.Conn, err error) {
	var dialer net.Dialer
	if o.Local.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(o.Local)
	}
	o.Do(func() { conn, err = dialer.DialContext(ctx, "tcp", o.Gateway.String()) })
	return conn, err
}

// framed returns a connection that is established, unless there is an error.
func framed(conn net.Conn, err error) (net.PacketConn, error) {
	if err != nil {
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
		return nil, err
	}
	return turn.NewSTUNConn(conn), nil
}

func wildcard(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
