package telemetry

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// crowd bounds the connections that a server holds. Beyond the bound the one goes with which nothing has happened for longest: who
// connects and says nothing, or says it slowly, makes room for who is served at once.
type crowd struct {
	limit int

	mu     sync.Mutex
	quiet  *list.List // of net.Conn, the longest quiet first
	places map[net.Conn]*list.Element
	// silent are those over which no request has come yet.
	silent map[net.Conn]bool
	// ends tells that no request is answered any more which has not come yet.
	ends bool
}

func newCrowd(limit int) *crowd {
	return &crowd{limit: limit, quiet: list.New(), places: map[net.Conn]*list.Element{}, silent: map[net.Conn]bool{}}
}

// track is for http.Server.ConnState. A connection that was hijacked for a stream belongs to whoever did that.
func (c *crowd) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place := c.places[conn]
	switch {
	case state == http.StateNew:
		c.places[conn] = c.quiet.PushBack(conn)
		c.silent[conn] = true
		if c.ends {
			c.leave(c.places[conn])
		} else if len(c.places) > c.limit {
			c.leave(c.quiet.Front())
		}
	case place == nil: // it had to make room
	case state == http.StateActive, state == http.StateIdle:
		c.quiet.MoveToBack(place)
		delete(c.silent, conn)
	default:
		c.forget(place)
	}
}

// end is for http.Server.RegisterOnShutdown. The server would wait for whoever has asked for nothing yet, for as long as it waits for requests that
// it answers, and would not answer them.
func (c *crowd) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = true
	for conn := range c.silent {
		c.leave(c.places[conn])
	}
}

// leave closes a connection, without the farewell of TLS: that could take seconds. The server notices when it reads or writes.
func (c *crowd) leave(place *list.Element) {
	conn := place.Value.(net.Conn)
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close() // that it is gone is what is wanted
	c.forget(place)
}

func (c *crowd) forget(place *list.Element) {
	delete(c.places, place.Value.(net.Conn))
	delete(c.silent, place.Value.(net.Conn))
	c.quiet.Remove(place)
}
