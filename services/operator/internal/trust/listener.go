package trust

import (
	"crypto/tls"
	"net"
	"sync"
)

// Either accepts TLS and plain connections on one port.
func Either(ln net.Listener, config *tls.Config) net.Listener { return either{ln, config} }

type either struct {
	net.Listener
	config *tls.Config
}

// Accept does not wait for the first byte: whoever is slow to send it holds up nobody else.
func (l either) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &undecided{Conn: raw, config: l.config}, nil
}

// undecided is a connection that is TLS or not: the first byte that is read decides. Deadlines are those of the connection itself, so that they
// bound the handshake, which is part of the first Read, as well.
type undecided struct {
	net.Conn
	config *tls.Config

	once sync.Once
	conn net.Conn
	err  error
}

// handshakeRecord is the first byte of whatever a TLS client sends; no HTTP method begins with it.
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

// Read reads what the client says.
func (c *undecided) Read(b []byte) (int, error) {
	conn, err := c.decided()
	if err != nil {
		return 0, err
	}
	return conn.Read(b)
}

// Write answers. HTTP says nothing before it was asked.
func (c *undecided) Write(b []byte) (int, error) {
	conn, err := c.decided()
	if err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// replayed gives back the byte that was looked at.
type replayed struct {
	net.Conn
	first []byte
}

// Read returns the byte that was looked at, then the rest.
func (c *replayed) Read(b []byte) (int, error) {
	if len(c.first) == 0 || len(b) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}
