package trust

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
)

// TLSOrPlain returns a listener that accepts TLS connections and plain connections on one port.
func TLSOrPlain(ln net.Listener, config *tls.Config) net.Listener { return dualListener{ln, config} }

type dualListener struct {
	net.Listener
	config *tls.Config
}

// Accept does not read the first byte of the connection, because a client that sends nothing would block other clients.
func (l dualListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffedConn{Conn: raw, config: l.config}, nil
}

// sniffedConn is a connection that uses TLS if its first byte is the first byte of a ClientHello, and is plain
// otherwise. The first Read includes the TLS handshake. Deadlines apply to the underlying connection, and therefore
// also to the handshake.
type sniffedConn struct {
	net.Conn
	config *tls.Config

	once sync.Once
	conn net.Conn
	err  error
}

// handshakeRecord is the first byte of a TLS ClientHello. No HTTP method begins with it.
const handshakeRecord = 0x16

func (c *sniffedConn) detect() (net.Conn, error) {
	c.once.Do(func() {
		first := make([]byte, 1)
		if _, c.err = c.Conn.Read(first); c.err != nil {
			return
		}
		c.conn = &replayConn{Conn: c.Conn, first: first}
		if first[0] == handshakeRecord {
			c.conn = tls.Server(c.conn, c.config)
		}
	})
	return c.conn, c.err
}

// Read implements net.Conn.
func (c *sniffedConn) Read(b []byte) (int, error) {
	conn, err := c.detect()
	if err != nil {
		return 0, err
	}
	return conn.Read(b)
}

// Write implements net.Conn. It waits for the first byte of the client if nothing was read before. An HTTP server is
// not affected, because it reads before it writes.
func (c *sniffedConn) Write(b []byte) (int, error) {
	conn, err := c.detect()
	if err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// replayConn is a connection whose first byte was already read. Read returns this byte again.
type replayConn struct {
	net.Conn
	first []byte
}

// Read returns the byte that was already read, and then the further data of the connection.
func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.first) == 0 || len(b) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

// WatchPlain returns a listener that calls plain with the IP address of each client that does not begin with a
// ClientHello. The connections of the listener still return all bytes.
func WatchPlain(ln net.Listener, plain func(netip.Addr)) net.Listener {
	return watchingListener{ln, plain}
}

type watchingListener struct {
	net.Listener
	plain func(netip.Addr)
}

func (l watchingListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: raw, plain: l.plain}, nil
}

// watchedConn is a connection of WatchPlain.
type watchedConn struct {
	net.Conn
	plain func(netip.Addr)
	once  sync.Once
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.once.Do(func() {
			if a, parseErr := netip.ParseAddrPort(c.RemoteAddr().String()); parseErr == nil && b[0] != handshakeRecord {
				c.plain(a.Addr().Unmap())
			}
		})
	}
	return n, err
}
