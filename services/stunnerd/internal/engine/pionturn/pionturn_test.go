package pionturn

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a transport that keeps the frames that are sent to it.
type client struct{ frames [][]byte }

func (c *client) Send(frame []byte) error {
	c.frames = append(c.frames, bytes.Clone(frame))
	return nil
}

func (c *client) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = c.Send(packets[i].Payload)
	}
}

func (c *client) Addr() netip.AddrPort  { return netip.MustParseAddrPort("192.0.2.1:1000") }
func (c *client) Connected() bool       { return false }
func (c *client) Local() netip.AddrPort { return netip.AddrPort{} }
func (c *client) Released()             {}

// fixture is an engine with one allocation that has not been started, in virtual time.
type fixture struct {
	t *testing.T
	*Engine
	engine.Allocation
	relay  *relay.Relay
	client *client
	net    relaytest.Network
	routes relay.Routes
}

func inFixture(t *testing.T, test func(b *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, err := New(2, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		b := &fixture{t: t, Engine: e, client: &client{}}
		b.routes.Store(cluster.NewView(
			[]config.Cluster{{Name: "c", Type: config.Static, Endpoints: []string{"127.0.0.1"}}}, []string{"c"},
		))
		advertised := netip.MustParseAddr("127.0.0.1")
		socket, err := b.net.Open(advertised, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &session.Session{Client: b.client, Started: time.Now()}
		b.relay = relay.New(s, socket, advertised, &b.routes, meter.New(), func(*relay.Relay) { b.RelayClosed() })
		b.Allocation = e.New(b.relay)
		b.must(b.relay.Start(b.Permitted))
		test(b)
		_ = b.relay.Close()
		synctest.Wait()
		if n := e.Allocations(); n != 0 {
			t.Errorf("%d allocations are left after the relay was closed", n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (b *fixture) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *fixture) peer() relaytest.Peer { return b.net.Peer(netip.MustParseAddrPort("127.0.0.1:4000")) }

// An allocation exists from Start to End, for any time between them, and End closes its relay.
func TestAllocationLastsUntilEnd(t *testing.T) {
	inFixture(t, func(b *fixture) {
		b.must(b.Start())
		for range 100 {
			time.Sleep(15 * time.Minute)
			b.must(b.Permit([]netip.AddrPort{b.peer().Addr()}))
		}
		if n := b.Allocations(); n != 1 {
			t.Errorf("%d allocations, want 1", n)
		}
		b.must(b.End())
		if n := b.Allocations(); n != 0 || !b.relay.Closed() {
			t.Errorf("%d allocations after End, relay closed: %t", n, b.relay.Closed())
		}
	})
}

// Every method but End fails with ErrNoAllocation if there is no allocation: before Start, after End, after the relay
// was closed, and after the engine was closed.
func TestNoAllocation(t *testing.T) {
	for name, end := range map[string]func(b *fixture){
		"before Start":         func(*fixture) {},
		"after End":            func(b *fixture) { b.must(b.Start()); b.must(b.End()) },
		"relay closed":         func(b *fixture) { b.must(b.Start()); b.must(b.relay.Close()); synctest.Wait() },
		"engine closed":        func(b *fixture) { b.must(b.Start()); b.must(b.Engine.Close()); synctest.Wait() },
		"closed, then started": func(b *fixture) { b.must(b.Engine.Close()); _ = b.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			inFixture(t, func(b *fixture) {
				end(b)
				b.Send([]byte("data"), b.peer().Addr())
				if err := b.Permit([]netip.AddrPort{b.peer().Addr()}); !errors.Is(err, engine.ErrNoAllocation) {
					t.Errorf("Permit: %v, want %v", err, engine.ErrNoAllocation)
				}
				synctest.Wait()
				if got := b.peer().Got(); len(got) != 0 {
					t.Errorf("the peer got %v", got)
				}
			})
		})
	}
}

// Data of a peer without a channel reaches the client, and data of a Send indication reaches the peer, only with a
// permission for the IP address, on any port.
func TestDataNeedsAPermission(t *testing.T) {
	inFixture(t, func(b *fixture) {
		b.must(b.Start())
		relayed := b.relay.Session().Relay
		pass := func() (toPeer, toClient bool) {
			b.client.frames = nil
			b.Send([]byte("there"), b.peer().Addr())
			b.peer().Send(relayed, "back")
			synctest.Wait()
			for _, frame := range b.client.frames {
				m := &stun.Message{Raw: frame}
				b.must(m.Decode())
				data, err := m.Get(stun.AttrData)
				toClient = err == nil && string(data) == "back" &&
					m.Type == stun.NewType(stun.MethodData, stun.ClassIndication)
			}
			got := b.peer().Got()
			return len(got) == 1 && got[0].Payload == "there", toClient
		}
		if a, b := pass(); a || b {
			t.Errorf("without a permission data passes: to the peer %t, to the client %t", a, b)
		}
		b.must(b.Permit([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}))
		if a, b := pass(); !a || !b {
			t.Errorf("with a permission data passes: to the peer %t, to the client %t", a, b)
		}
		time.Sleep(5*time.Minute + time.Second)
		if a, b := pass(); a || b {
			t.Errorf("after the permission has expired data passes: to the peer %t, to the client %t", a, b)
		}
	})
}

// If the allocation exists already, Start is refused with a code. The gate and the engine may disagree.
func TestRefusalHasACode(t *testing.T) {
	inFixture(t, func(b *fixture) {
		b.must(b.Start())
		var refused engine.Refusal
		if err := b.Start(); !errors.As(err, &refused) || refused.Code != stun.CodeAllocMismatch {
			t.Errorf("%v, want a refusal with %d", err, stun.CodeAllocMismatch)
		}
	})
}

// pion/turn measures the age of its nonces by the wall clock. If it refuses a nonce after a jump, the request is
// repeated with a new nonce.
func TestStaleNonceIsReplaced(t *testing.T) {
	inFixture(t, func(b *fixture) {
		for _, request := range []func() error{
			b.Start, func() error { return b.Permit([]netip.AddrPort{b.peer().Addr()}) },
		} {
			for _, c := range b.conns {
				c.nonce, c.fetched = stun.Nonce("of another day"), time.Now()
			}
			b.must(request())
		}
	})
}

// Several allocations of one client address, on the same pionConns, are independent.
func TestAllocationsAreIndependent(t *testing.T) {
	inFixture(t, func(b *fixture) {
		b.must(b.Start())
		for range 4 {
			socket, err := b.net.Open(netip.MustParseAddr("127.0.0.1"), 0)
			b.must(err)
			s := &session.Session{Client: b.client, Started: time.Now()}
			other := b.Engine.New(
				relay.New(s, socket, netip.MustParseAddr("127.0.0.1"), &b.routes, meter.New(), func(*relay.Relay) {}),
			)
			b.must(other.Start())
			if n := b.Allocations(); n != 2 {
				t.Fatalf("%d allocations, want 2", n)
			}
			b.must(other.End())
		}
		b.must(b.Permit([]netip.AddrPort{b.peer().Addr()}))
	})
}

// An idle allocation has no goroutine, because its stack would be a third of the memory of the allocation.
func TestIdleAllocationHasNoGoroutine(t *testing.T) {
	inFixture(t, func(b *fixture) {
		synctest.Wait()
		before := runtime.NumGoroutine()
		b.must(b.Start())
		b.must(b.Permit([]netip.AddrPort{b.peer().Addr()}))
		b.peer().Send(b.relay.Session().Relay, "back")
		synctest.Wait()
		for deadline := 1000; runtime.NumGoroutine() > before && deadline > 0; deadline-- {
			runtime.Gosched() // the runtime counts a goroutine until shortly after its end
		}
		// There may be fewer: goroutines of an earlier test end at any time.
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines, want %d", n, before)
		}
	})
}

// A relay that is closed before its allocation starts leaves no allocation.
func TestClosedRelayLeavesNoAllocation(t *testing.T) {
	inFixture(t, func(b *fixture) {
		b.must(b.relay.Close())
		synctest.Wait()
		_ = b.Start()
	})
}
