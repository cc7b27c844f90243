package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// memoryTable is a table with a capacity of memory, without other bounds.
func memoryTable(memory int64) *Table {
	table := NewTable()
	table.SetBounds(Bounds{Capacity: Amounts{Memory: memory}})
	return table
}

func connect(t *testing.T, table *Table, addr string) *Connection {
	t.Helper()
	c, err := table.Connect(Source(netip.MustParseAddr(addr)), config.TURNTLS)
	if err != nil {
		t.Fatalf("connection from %s: %v", addr, err)
	}
	return c
}

func evicted(c *Connection) bool { return c.Evicted().Err() != nil }

// T-14: if the memory is used up, a new connection takes the memory of the oldest connection of a network that holds at
// least an equal share.
func TestNewConnectionEvictsTheOldest(t *testing.T) {
	const room = 8
	for name, tc := range map[string]struct {
		come []string
		gone []int // in the order of arrival
	}{
		"room for all": {[]string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1"}, nil},
		"one address": {
			[]string{
				"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1",
				"192.0.2.1",
			}, []int{0},
		},
		"a private address": {
			[]string{
				"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1",
			}, []int{0},
		},
		"a flood beside an older connection": {
			[]string{
				"192.0.2.1", "192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.9", "192.0.2.9",
				"192.0.2.9",
			}, []int{1},
		},
		"another after a flood from one /48": {
			[]string{
				"2001:db8:0:1::", "2001:db8:0:2::", "2001:db8:0:3::", "2001:db8:0:4::", "2001:db8:0:5::", "2001:db8:0:6::",
				"2001:db8:0:7::", "2001:db8:1::", "2001:db8:2::",
			}, []int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := memoryTable(room * PriceOfTransport(config.TURNTLS))
			var all []*Connection
			for _, addr := range tc.come {
				all = append(all, connect(t, table, addr))
			}
			var gone []int
			for i, c := range all {
				if evicted(c) {
					gone = append(gone, i)
				}
			}
			if !slices.Equal(gone, tc.gone) {
				t.Errorf("gone: %v, want %v", gone, tc.gone)
			}
		})
	}
}

// T-14: a connection through a load balancer counts for its client. A client that floods through the load balancer
// evicts only its own connections, even while the header of a new connection of another client is incomplete.
func TestConnectionCountsForTheClientBehindALoadBalancer(t *testing.T) {
	const room = 8
	table := memoryTable(room * PriceOfTransport(config.TURNTLS))
	through := func(client string) *Connection {
		c := connect(t, table, "10.0.0.1")
		c.Attribute(Source(netip.MustParseAddr(client)))
		return c
	}
	var others, flood []*Connection
	for _, client := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"} {
		others = append(others, through(client))
	}
	for range 20 {
		flood = append(flood, through("198.51.100.9"))
		for _, c := range flood {
			if evicted(c) {
				c.End()
			}
		}
	}
	waiting := []*Connection{connect(t, table, "10.0.0.1"), connect(t, table, "10.0.0.1")}
	for i, c := range slices.Concat(others, waiting) {
		if evicted(c) {
			t.Errorf("connection %d is evicted", i)
		}
	}
	for i, c := range flood {
		if last := i >= len(flood)-room+len(others)+len(waiting); evicted(c) == last {
			t.Errorf("connection %d of the flood is evicted: %t", i, evicted(c))
		}
	}
	for _, c := range slices.Concat(others, waiting, flood) {
		c.Attribute(Source(netip.MustParseAddr("203.0.113.1"))) // an evicted connection has a new source too
		c.End()
	}
	if len(table.idle.networks) != 0 || table.idle.held != 0 || table.idle.leaving != 0 {
		t.Errorf("after the end %v, %d and %d bytes are left", table.idle.networks, table.idle.held, table.idle.leaving)
	}
}

// T-14: connections without a session never prevent a session. A session evicts as many connections as it needs, and so
// does a Claim of the session.
func TestSessionsEvictConnections(t *testing.T) {
	const memory = 4 << 20
	fresh := func(i int) client { return client{fmt.Sprint(i), fmt.Sprint("192.0.2.", i%250)} }
	fit := fill(t, memoryTable(memory), 1000, fresh)
	table := memoryTable(memory)
	var idle []*Connection
	for table.idle.held+PriceOfTransport(config.TURNTLS) <= memory {
		idle = append(idle, connect(t, table, "192.0.2.1"))
	}
	s := client{"ann", "192.0.2.1"}.session()
	if err := table.Reserve(s); err != nil {
		t.Fatalf("a session beside connections: %v", err)
	}
	claim := s.Claim(Memory)
	if err := claim.Set(1 << 20); err != nil {
		t.Errorf("more memory of the session: %v", err)
	}
	if held := table.total[Memory] + table.idle.held; held > memory {
		t.Errorf("sessions and connections hold %d bytes of %d", held, memory)
	}
	n := 0
	for _, c := range idle {
		if evicted(c) {
			n++
		}
		c.End()
	}
	if most := (priceSession+1<<20)/PriceOfTransport(config.TURNTLS) + 1; n == 0 || n > int(most) {
		t.Errorf("%d connections were evicted, want 1 to %d", n, most)
	}
	claim.Release()
	table.Cancel(s)
	for range 100 {
		connect(t, table, "192.0.2.1").End()
	}
	for range 100 { // connections that were evicted and have not ended
		if c, err := table.Connect(Source(netip.MustParseAddr("192.0.2.1")), config.TURNTLS); err == nil {
			defer c.End()
		}
	}
	if got := fill(t, table, 1000, fresh); got != fit {
		t.Errorf("%d sessions fit beside connections, %d without", got, fit)
	}
}

// T-14: a new connection is refused if sessions hold all memory, or if many evicted connections have not ended.
func TestConnectionIsRefused(t *testing.T) {
	price := PriceOfTransport(config.TURNTLS)
	table := memoryTable(leavingShare * price)
	s := client{"ann", "192.0.2.1"}.session()
	if err := table.Reserve(s); err != nil {
		t.Fatal(err)
	}
	claim := s.Claim(Memory)
	claim.Force(leavingShare * price)
	source := Source(netip.MustParseAddr("192.0.2.1"))
	if _, err := table.Connect(source, config.TURNTLS); !errors.Is(err, ErrCapacity) {
		t.Errorf("a connection without memory: %v", err)
	}
	claim.Release()
	table.Cancel(s)
	var all []*Connection
	for {
		c, err := table.Connect(source, config.TURNTLS)
		if err != nil {
			break
		}
		if all = append(all, c); len(all) > 100 {
			t.Fatal("evicted connections that do not end are not bounded")
		}
	}
	if want := leavingShare + 2; len(all) != want {
		t.Errorf("%d connections, of which none has ended, want %d", len(all), want)
	}
	for _, c := range all {
		c.End()
	}
	connect(t, table, "192.0.2.1").End()
}

// T-14: a connection is counted once: by itself, or by its session. When the connection and its session have ended, in
// either order, the connection is not counted. When all have ended, nothing is counted.
func TestConnectionIsCountedOnce(t *testing.T) {
	protocols := []config.Protocol{config.TURNTCP, config.TURNTLS, config.TURNDTLS}
	type live struct {
		*Connection
		protocol config.Protocol
		sessions []*Session
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		capacity := int64(r.IntN(3)) << 20
		table := memoryTable(capacity)
		var all []*live
		for range 300 {
			if r.IntN(4) == 0 {
				source := Source(netip.MustParseAddr(fmt.Sprint("192.0.2.", r.IntN(4))))
				p := protocols[r.IntN(3)]
				if c, err := table.Connect(source, p); err == nil {
					all = append(all, &live{Connection: c, protocol: p})
				}
			} else if len(all) > 0 {
				l := all[r.IntN(len(all))]
				switch i := r.IntN(4); {
				case i == 0:
					l.End()
				case i == 1 && len(l.sessions) > 0:
					table.Remove(l.sessions[0])
					l.sessions = l.sessions[1:]
				case i > 1 && !l.ended:
					s := client{fmt.Sprint(r.IntN(4)), fmt.Sprint("192.0.2.", r.IntN(4))}.session()
					s.Connection, s.Protocol = l.Connection, l.protocol
					if table.Reserve(s) == nil {
						table.Add(s)
						l.sessions = append(l.sessions, s)
					}
				}
			}
			var held, leaving int64
			for _, l := range all {
				switch {
				case l.ended:
				case evicted(l.Connection):
					leaving += l.memory
				case len(l.sessions) == 0:
					held += l.memory
				}
			}
			if table.idle.held != held || table.idle.leaving != leaving {
				t.Fatalf("seed %d: %d bytes held, %d leaving, want %d and %d", seed, table.idle.held, table.idle.leaving,
					held, leaving)
			}
			if capacity > 0 && table.total[Memory]+held > capacity {
				t.Fatalf("seed %d: sessions hold %d, connections %d of %d", seed, table.total[Memory], held, capacity)
			}
			consistent(t, table)
		}
		for _, l := range all {
			for _, s := range l.sessions {
				table.Remove(s)
			}
			l.End()
			l.End()
		}
		empty(t, table)
		if w := table.idle; w.held != 0 || w.leaving != 0 || w.all.Len() != 0 || len(w.networks) != 0 {
			t.Fatalf("seed %d: left are %d bytes held, %d leaving, %d connections, %d networks", seed, w.held, w.leaving,
				w.all.Len(), len(w.networks))
		}
	}
}
