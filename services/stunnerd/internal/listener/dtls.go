package listener

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

func openDTLS(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	cert, err := newCertificate(c)
	if err != nil {
		return nil, err
	}
	// pion/dtls asks a client to prove its address with a cookie before it does any work for it (RFC 6347 §4.2.1).
	ln, err := dtls.ListenWithOptions("udp", &net.UDPAddr{Port: c.Port},
		dtls.WithGetCertificate(func(*dtls.ClientHelloInfo) (*tls.Certificate, error) { return cert.current.Load(), nil }),
		dtls.WithCipherSuites(dtlsSuites...),
		dtls.WithExtendedMasterSecret(dtls.RequestExtendedMasterSecret),
		dtls.WithLoggerFactory(gate.LoggerFactory{Log: o.Log}),
	)
	if err != nil {
		return nil, fmt.Errorf("listen on UDP port %d: %w", c.Port, err)
	}
	secure := func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		return conn, conn.(*dtls.Conn).HandshakeContext(ctx)
	}
	return serveConnections(ln, transport{cert: cert, secure: secure}, g, m, o), nil
}

// dtlsSuites are authenticated ciphers with forward secrecy, and nothing else.
var dtlsSuites = []dtls.CipherSuiteID{
	dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	dtls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, dtls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
}

// recordLimit is the longest content of a DTLS record (RFC 6347 §4.1). A longer frame cannot be sent, and is no reason to end the session.
const recordLimit = 1 << 14

// records reads datagrams from a connection that keeps their borders.
type records struct {
	from io.Reader
	buf  []byte
}

// next returns one record's content: one message, as over UDP (RFC 7350 §3).
func (r *records) next(limit int) ([]byte, error) {
	n, err := r.from.Read(r.buf)
	switch {
	case err != nil:
		return nil, err
	case n == 0 || !isChannelData(r.buf[0]) && r.buf[0] > 3:
		return nil, errNotTURN
	case n > limit:
		return nil, errTooLarge
	}
	return r.buf[:n], nil
}
