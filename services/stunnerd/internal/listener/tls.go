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
	certs, err := newCertificates(c)
	if err != nil {
		return nil, err
	}
	settings := certs.settings()
	secure := func(ctx context.Context, conn net.Conn, turns *pace) (net.Conn, error) {
		paced := &pacedConn{Conn: conn, ctx: ctx, pace: turns}
		secured := tls.Server(paced, settings)
		err := secured.HandshakeContext(ctx)
		paced.ctx = nil
		return secured, err
	}
	return openStream(c.Port, transport{certs: certs, secure: secure}, g, m, o)
}

// settings are those of a listener. crypto/tls keeps the keys of its tickets with them, and renews these every day.
func (c *certificates) settings() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return c.offer(hello), nil },
	}
}

// offer is what one client is offered. crypto/tls chooses among the certificates by the client's server name and by what it can check. Our protocols are named only to a client that knows one of them: crypto/tls would turn away
// one that knows others only, which RFC 7443 does not ask for.
func (c *certificates) offer(hello *tls.ClientHelloInfo) *tls.Config {
	s := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: *c.current.Load()}
	if knowsOurs(hello.SupportedProtos) {
		s.NextProtos = protocols
	}
	return s
}
