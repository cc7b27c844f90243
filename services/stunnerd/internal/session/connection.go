package session

import (
	"container/list"
	"context"
	"errors"
	"net/netip"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Connection counts the memory of a connection of a client over TCP, TLS or DTLS, from the start of the handshake to
// the end of the connection. While the connection has a session, the price of the session includes this memory.
//
// Connections without a session hold only the memory that sessions leave free, because clients need no credential for
// them. If the memory is used up, a new connection, a session or a Claim takes memory from a connection without a
// session. This is the oldest such connection of the networks that hold at least an equal share. So a client that soon
// creates a session is admitted although other clients hold idle connections.
type Connection struct {
	table   *Table
	memory  int64
	evicted context.Context
	evict   context.CancelCauseFunc

	// The mutex of the table guards the following fields.

	network netip.Prefix
	// at is the element of the connection in idleConnections.all; nil while the connection is not counted there.
	at *list.Element
	// sessions is the number of sessions over the connection.
	sessions int
	ended    bool
}

// ErrEvicted is the cause of the end of Connection.Evicted.
var ErrEvicted = errors.New("the memory is used up, and the connection was the oldest without a session")

// leavingShare is the divisor of the memory for connections that were evicted and have not ended yet. If these
// connections hold more, a new connection is refused.
const leavingShare = 8

// idleConnections are the connections without a session. Table.mu guards it.
type idleConnections struct {
	all *list.List // of *Connection, the oldest first
	// held is the memory of connections without a session, and networks is this memory by network.
	held     int64
	networks map[netip.Prefix]int64
	// leaving is the memory of evicted connections that have not ended yet.
	leaving int64
}

// Counted is a Client over a connection that the ledger counts.
type Counted interface {
	// Counted returns the connection.
	Counted() *Connection
}

// Connect counts a new connection to a listener with a protocol. The error is ErrCapacity if sessions hold all memory,
// or if too many evicted connections have not ended yet. End must be called when the memory of the connection is free.
func (t *Table) Connect(source netip.Prefix, p config.Protocol) (*Connection, error) {
	c := &Connection{table: t, network: network(source), memory: PriceOfTransport(p)}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.lacks(c.memory) {
		if t.idle.leaving > t.bounds.Load().Capacity[Memory]/leavingShare || !t.evictOne() {
			return nil, kinds[Memory].full
		}
	}
	c.evicted, c.evict = context.WithCancelCause(context.Background())
	t.idle.add(c)
	return c, nil
}

// Evicted returns a context that ends when the connection must be closed. It does not end while the connection has a
// session.
func (c *Connection) Evicted() context.Context { return c.evicted }

// Attribute charges the connection to another source from now on: to the address of the client, which a load balancer
// has sent. The order in which connections are evicted does not change.
func (c *Connection) Attribute(source netip.Prefix) {
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.at != nil {
		t.idle.leave(c)
		t.idle.networks[network(source)] += c.memory
	}
	c.network = network(source)
}

// End frees the memory of the connection. Further calls do nothing.
func (c *Connection) End() {
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	t.idle.remove(c)
	if c.evicted.Err() != nil {
		t.idle.leaving -= c.memory
	}
}

// pay charges the memory of a connection to the session over it. The caller must hold mu.
func (t *Table) pay(c *Connection) {
	if c != nil {
		c.sessions++
		t.idle.remove(c)
	}
}

// refund reverts pay. The caller must hold mu.
func (t *Table) refund(c *Connection) {
	if c == nil {
		return
	}
	if c.sessions--; c.sessions == 0 && !c.ended && c.evicted.Err() == nil {
		t.idle.add(c)
	}
}

// lacks reports whether n more bytes exceed the memory of sessions and connections. The caller must hold mu.
func (t *Table) lacks(n int64) bool {
	capacity := t.bounds.Load().Capacity[Memory]
	return capacity > 0 && t.total[Memory]+t.idle.held+n > capacity
}

// reclaim evicts connections until sessions and connections fit into the memory. The caller holds mu.
func (t *Table) reclaim() {
	for t.lacks(0) && t.evictOne() {
	}
}

// evictOne evicts a connection. It reports false if there is none. The caller holds mu.
func (t *Table) evictOne() bool {
	if t.idle.all.Len() == 0 {
		return false
	}
	share := t.idle.held / int64(len(t.idle.networks))
	for at := t.idle.all.Front(); ; at = at.Next() {
		if c := at.Value.(*Connection); t.idle.networks[c.network] >= share {
			t.idle.remove(c)
			t.idle.leaving += c.memory
			c.evict(ErrEvicted)
			return true
		}
	}
}

func (w *idleConnections) add(c *Connection) {
	c.at = w.all.PushBack(c)
	w.held += c.memory
	w.networks[c.network] += c.memory
}

func (w *idleConnections) remove(c *Connection) {
	if c.at == nil {
		return
	}
	w.all.Remove(c.at)
	c.at = nil
	w.held -= c.memory
	w.leave(c)
}

// leave subtracts the memory of a connection from the memory of its network.
func (w *idleConnections) leave(c *Connection) {
	if w.networks[c.network] -= c.memory; w.networks[c.network] == 0 {
		delete(w.networks, c.network)
	}
}
