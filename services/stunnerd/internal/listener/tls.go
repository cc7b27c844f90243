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
	secure := func(ctx context.Context, conn net.Conn, turns *handshakeTurns) (net.Conn, error) {
		limited := &cpuTurnConn{Conn: conn, ctx: ctx, turns: turns, left: tlsHandshakeBytes}
		secured := tls.Server(limited, settings)
		err := secured.HandshakeContext(ctx)
		limited.ctx = nil
		return tlsClient{secured, limited}, err
	}
	return openStream(c, transport{certs: certs, secure: secure}, g, m, o)
}

// tlsClient is a TLS connection with the connection from which it reads.
type tlsClient struct {
	*tls.Conn
	from *cpuTurnConn
}

// Read reads data of one record.
func (c tlsClient) Read(b []byte) (int, error) {
	c.from.left = unreturnedBytes
	return c.Conn.Read(b)
}

// settings returns the TLS config of a listener. It is used as long as the listener is open, because crypto/tls stores
// the keys of session tickets in it, and rotates them daily.
func (c *certificates) settings() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return c.offer(hello), nil },
	}
}

// offer returns the TLS config of one handshake. crypto/tls selects the certificate by the server name and the
// signature algorithms of the client. ALPN protocols are offered only to a client that offers one of them. Otherwise
// crypto/tls would refuse a client that offers only other protocols, which RFC 7443 does not require.
func (c *certificates) offer(hello *tls.ClientHelloInfo) *tls.Config {
	s := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: *c.current.Load(),
		// Otherwise crypto/tls splits the first writes of a connection into short records (see sendQueue.SendAll).
		DynamicRecordSizingDisabled: true,
	}
	if offersTURN(hello.SupportedProtos) {
		s.NextProtos = protocols
	}
	return s
}
