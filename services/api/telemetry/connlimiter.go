package telemetry

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// connLimiter bounds the connections of a server. If there are too many, it closes the connection that has been idle
// the longest, so that clients that send nothing, or send slowly, do not exclude other clients.
type connLimiter struct {
	limit int

	mu    sync.Mutex
	idle  *list.List // of net.Conn, the longest idle first
	conns map[net.Conn]*list.Element
	// unused contains the connections on which no request has begun.
	unused map[net.Conn]bool
	// closing is set when the server shuts down: new connections are closed at once.
	closing bool
}

func newConnLimiter(limit int) *connLimiter {
	return &connLimiter{
		limit: limit, idle: list.New(), conns: map[net.Conn]*list.Element{}, unused: map[net.Conn]bool{},
	}
}

// track implements http.Server.ConnState. A hijacked connection is not tracked any more.
func (c *connLimiter) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place := c.conns[conn]
	switch {
	case state == http.StateNew:
		c.conns[conn] = c.idle.PushBack(conn)
		c.unused[conn] = true
		if c.closing {
			c.close(c.conns[conn])
		} else if len(c.conns) > c.limit {
			c.close(c.idle.Front())
		}
	case place == nil: // closed, so that a new connection is accepted
	case state == http.StateActive, state == http.StateIdle:
		c.idle.MoveToBack(place)
		delete(c.unused, conn)
	default:
		c.forget(place)
	}
}

// end stops the limiter when the server shuts down (http.Server.RegisterOnShutdown). It closes connections without a
// request, because Shutdown would otherwise wait for them.
func (c *connLimiter) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	for conn := range c.unused {
		c.close(c.conns[conn])
	}
}

// close closes a connection without the closing handshake of TLS, which could take seconds. The server then gets an
// error at its next read or write.
func (c *connLimiter) close(place *list.Element) {
	conn := place.Value.(net.Conn)
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
	c.forget(place)
}

func (c *connLimiter) forget(place *list.Element) {
	delete(c.conns, place.Value.(net.Conn))
	delete(c.unused, place.Value.(net.Conn))
	c.idle.Remove(place)
}
