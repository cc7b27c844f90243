package listener

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

func openTLS(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	cert, err := newCertificate(c)
	if err != nil {
		return nil, err
	}
	settings := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return cert.settings(hello), nil },
	}
	secure := func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		secured := tls.Server(conn, settings)
		return secured, secured.HandshakeContext(ctx)
	}
	return openStream(c.Port, transport{cert: cert, secure: secure}, g, m, o)
}

// settings are what one client is offered. Our protocols are named only to a client that knows one of them: crypto/tls would turn away
// one that knows others only, which RFC 7443 does not ask for.
func (c *certificate) settings(hello *tls.ClientHelloInfo) *tls.Config {
	s := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*c.current.Load()}}
	if knowsOurs(hello.SupportedProtos) {
		s.NextProtos = protocols
	}
	return s
}
