// Package pionturn is the allocation engine that runs pion/turn. It is the only package that imports pion/turn.
//
// pion/turn is a TURN server that expects sockets. This package passes it two implementations of net.PacketConn
// instead: from a pionConn it reads requests, and writes answers to it; a relayConn replaces a relay socket.
//
//	Allocation method ─ exchange ─▶ pionConn.ReadFrom ─▶ pion/turn ─ response ─▶ pionConn.WriteTo ─▶ result
//	                                                        └─ permitted peer ─▶ relayConn.WriteTo ─▶ relay.Send
//
// pion/turn identifies a client by its source address. Each allocation has a unique fake one, its handle: an IPv6
// address of a documentation prefix (RFC 3849), which no socket uses. pion/turn does not verify the credentials of
// clients. The requests to it are signed with a random key of the process, so a change of credentials or of the realm
// does not affect it.
//
// # Files
//
//	conn.go        sockets of pion/turn
//	allocation.go  one allocation
package pionturn

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/pionlog"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Engine implements engine.Engine.
type Engine struct {
	server *turn.Server
	log    *slog.Logger
	conns  []*pionConn
	// next selects the pionConn of the next allocation.
	next atomic.Uint32
	// handle counts allocations. The number of an allocation is the second half of its fake client address.
	handle atomic.Uint64
}

// internalUser and internalRealm are the credential of requests to pion/turn.
const (
	internalUser  = "gate"
	internalRealm = "stunner"
)

// New starts pion/turn with a number of pionConns, at least one. Each has a goroutine, and allocations are spread
// evenly over them.
func New(conns int, log *slog.Logger) (*Engine, error) {
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make internal key: %w", err)
	}
	e := &Engine{log: log}
	var configs []turn.PacketConnConfig
	for range max(conns, 1) {
		c := newPionConn(key)
		e.conns = append(e.conns, c)
		configs = append(configs, turn.PacketConnConfig{PacketConn: c, RelayAddressGenerator: c})
	}
	server, err := turn.NewServer(turn.ServerConfig{
		PacketConnConfigs: configs,
		Realm:             internalRealm,
		AuthHandler:       func(string, string, net.Addr) ([]byte, bool) { return key, true },
		InboundMTU:        stunmsg.MaxSize + 1,
		LoggerFactory:     pionlog.Factory{Log: log},
	})
	if err != nil {
		return nil, fmt.Errorf("start pion/turn: %w", err)
	}
	e.server = server
	return e, nil
}

// New implements engine.Engine.
func (e *Engine) New(r *relay.Relay) engine.Allocation {
	ip := net.IP{0x20, 0x01, 0x0d, 0xb8, 15: 0}
	binary.BigEndian.PutUint64(ip[8:], e.handle.Add(1))
	return &allocation{
		conn:   e.conns[int(e.next.Add(1))%len(e.conns)],
		handle: &net.UDPAddr{IP: ip, Port: 1},
		relay:  r,
		log:    e.log,
	}
}

// Allocations implements engine.Engine.
func (e *Engine) Allocations() (n int) {
	for _, c := range e.conns {
		n += int(c.live.Load())
	}
	return n
}

// Tasks implements engine.Engine. There is one task for each pionConn.
func (e *Engine) Tasks() (tasks []*watch.Task) {
	for _, c := range e.conns {
		tasks = append(tasks, &c.task)
	}
	return tasks
}

// Close implements engine.Engine.
func (e *Engine) Close() error { return e.server.Close() }
