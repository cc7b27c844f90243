package trust

import (
	"crypto/tls"
	"net"
	"sync"
)

// Either returns a listener that accepts TLS and plain connections on one port.
func Either(ln net.Listener, config *tls.Config) net.Listener { return either{ln, config} }

type either struct {
	net.Listener
	config *tls.Config
}

// Accept does not read from the connection, because a client that sends nothing would block other clients.
func (l either) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &undecided{Conn: raw, config: l.config}, nil
}

// undecided is a connection that uses TLS if its first byte is that of a ClientHello. The first Read includes the TLS
// handshake. Deadlines apply to the underlying connection, and therefore also to the handshake.
type undecided struct {
	net.Conn
	config *tls.Config

	once sync.Once
	conn net.Conn
	err  error
}

// handshakeRecord is the first byte of a TLS ClientHello. No HTTP method begins with it.
const handshakeRecord = 0x16

func (c *undecided) decided() (net.Conn, error) {
	c.once.Do(func() {
		first := make([]byte, 1)
		if _, c.err = c.Conn.Read(first); c.err != nil {
			return
		}
		c.conn = &replayed{Conn: c.Conn, first: first}
		if first[0] == handshakeRecord {
			c.conn = tls.Server(c.conn, c.config)
		}
	})
	return c.conn, c.err
}

// Read implements net.Conn.
func (c *undecided) Read(b []byte) (int, error) {
	conn, err := c.decided()
	if err != nil {
		return 0, err
	}
	return conn.Read(b)
}

// Write implements net.Conn. It may wait for the first byte, but an HTTP server reads before it writes.
func (c *undecided) Write(b []byte) (int, error) {
	conn, err := c.decided()
	if err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// replayed is a connection whose first byte was already read.
type replayed struct {
	net.Conn
	first []byte
}

// Read returns the first byte and then the data of the connection.
func (c *replayed) Read(b []byte) (int, error) {
	if len(c.first) == 0 || len(b) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}
