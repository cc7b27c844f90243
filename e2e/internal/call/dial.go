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

// dial connects to the gateway. Stream and DTLS connections are wrapped as net.PacketConn for the client library.
func dial(ctx context.Context, o Options) (net.PacketConn, error) {
	switch o.Network {
	case UDP:
		local := o.Local
		if !local.IsValid() {
			local = netip.AddrPortFrom(wildcard(o.Gateway.Addr()), 0)
		}
		conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", local.String())
		if err != nil || o.Balancer == nil {
			return conn, err
		}
		return balanced{conn.(*net.UDPConn), net.UDPAddrFromAddrPort(o.Gateway), o.Balancer}, nil
	case TCP:
		return framed(new(net.Dialer).DialContext(ctx, "tcp", o.Gateway.String()))
	case TLS:
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: o.Roots, ServerName: o.Gateway.Addr().String()}}
		return framed(dialer.DialContext(ctx, "tcp", o.Gateway.String()))
	case DTLS:
		return framed(dialDTLS(ctx, o))
	}
	return nil, fmt.Errorf("unknown network %q", o.Network)
}

func framed(conn net.Conn, err error) (net.PacketConn, error) {
	if err != nil {
		return nil, err
	}
	return turn.NewSTUNConn(conn), nil
}

func dialDTLS(ctx context.Context, o Options) (net.Conn, error) {
	conn, err := dtls.DialWithOptions("udp", net.UDPAddrFromAddrPort(o.Gateway),
		dtls.WithRootCAs(o.Roots), dtls.WithServerName(o.Gateway.Addr().String()))
	if err != nil {
		return nil, err
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func wildcard(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
