package offload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// stream sends numbered datagrams of 160 bytes in a channel until it is stopped. The peer returns each.
type stream struct {
	*path
	sent, echoed, received atomic.Int64 // by the client, by the peer, by the client
	last                   atomic.Int64 // datagram that reached the peer, by the clock of its interface, in ns since 1970
	workers                sync.WaitGroup
	stop                   chan struct{}
}

const pace = time.Millisecond // between two datagrams

func (p *path) stream() *stream {
	p.t.Helper()
	s := &stream{path: p, stop: make(chan struct{})}
	stamped(p.t, p.peer)
	s.workers.Go(s.send)
	go s.echo()
	go s.receive()
	return s
}

func (s *stream) send() {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		n := s.sent.Add(1)
		if s.Send(ask.ChannelData(s.channel, sequence(uint64(n)))) != nil { // an ICMP message about an earlier one
			_ = s.Send(ask.ChannelData(s.channel, sequence(uint64(n))))
		}
	}
}

// echo runs until the test closes the socket of the peer.
func (s *stream) echo() {
	payload, oob := make([]byte, 2048), make([]byte, 256)
	_ = s.peer.SetReadDeadline(time.Time{})
	for {
		n, m, _, from, err := s.peer.ReadMsgUDPAddrPort(payload, oob)
		if err != nil {
			return
		}
		s.last.Store(stamp(oob[:m]))
		s.echoed.Add(1)
		_, _ = s.peer.WriteToUDPAddrPort(payload[:n], from)
	}
}

func (s *stream) receive() {
	payload := make([]byte, 2048)
	_ = s.Conn.SetReadDeadline(time.Time{})
	for {
		n, err := s.Conn.Read(payload)
		switch {
		case err == nil && n == 164 && bytes.Equal(payload[4:n], sequence(binary.BigEndian.Uint64(payload[4:]))):
			s.received.Add(1)
		case err == nil:
			s.t.Errorf("received %x", payload[:n])
		default:
			if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}
}

// end stops sending, and waits until all datagrams have been echoed. It returns the number of missing echoes.
func (s *stream) end() (lost int64) {
	s.t.Helper()
	close(s.stop)
	s.workers.Wait()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && s.received.Load() < s.sent.Load(); {
		time.Sleep(time.Millisecond) // polls
	}
	return s.sent.Load() - s.received.Load()
}

// flows waits until more datagrams have returned to the client.
func (s *stream) flows(more int64) {
	s.t.Helper()
	want := s.received.Load() + more
	s.gateway.await("datagrams return", func(context.Context) error {
		if n := s.received.Load(); n < want {
			return fmt.Errorf("%d have returned, want %d", n, want)
		}
		return nil
	})
}

// kernel waits until the kernel forwards more datagrams in both directions.
func (s *stream) kernel(more int) {
	s.t.Helper()
	before := s.gateway.counters().kernel
	s.gateway.await("the kernel forwards", func(context.Context) error {
		if k := s.gateway.counters().kernel; k.up < before.up+more || k.down < before.down+more {
			return fmt.Errorf("%+v, before %+v, status %+v", k, before, s.gateway.status().Offload)
		}
		return nil
	})
}

// exact compares the counters with the datagrams that reached the peer and the client. The counters may include
// datagrams that were lost after the gateway.
func (s *stream) exact(before counters, lost int) {
	s.t.Helper()
	differs := func(f flow, n int64) bool {
		return f.Packets < int(n) || f.Packets > int(n)+lost || f.Bytes != 160*f.Packets
	}
	s.gateway.await("counters", func(context.Context) error {
		c, rx, tx := s.gateway.counters().minus(before), s.received.Load(), s.echoed.Load()
		clients := traffic{Rx: frames(flow{int(s.sent.Load()), 160 * int(s.sent.Load())}), Tx: frames(c.session.Rx)}
		if c.session != c.cluster || c.listener != clients || differs(c.session.Rx, rx) || differs(c.session.Tx, tx) {
			return fmt.Errorf("%+v, want %d from the peer, %d to it, listener %+v", c, rx, tx, clients)
		}
		return nil
	})
}

// stamped makes the kernel note when a datagram arrives.
func stamped(t *testing.T, c *net.UDPConn) {
	t.Helper()
	option(t, c, syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
}

func option(t *testing.T, c syscall.Conn, level, name, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), level, name, value) })
		err = errors.Join(err, failed)
	}
	harnesstest.NoError(t, err)
}

// stamp returns the time in a control message, in ns since 1970.
func stamp(oob []byte) int64 {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == syscall.SO_TIMESTAMPNS {
			return (*syscall.Timespec)(unsafe.Pointer(&m.Data[0])).Nano()
		}
	}
	return 0
}

// stopTime bounds the time after which no datagram reaches a peer whose route was removed.
const stopTime = 50 * time.Millisecond

// A removed route stops a channel in the kernel, within 50 ms after the config is in force. With the route the channel
// works again, and returns to the kernel.
func route(t *testing.T, n *network) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			g := n.start(t)
			p := g.path(f)
			p.warm()
			before := g.settled()
			s := p.stream()
			s.kernel(50)
			routes := g.Config.Listeners[0].Routes
			written, applied := g.apply(func(c *config.Config) { c.Listeners[0].Routes = routes[2:] })
			dropped := g.dropped()
			g.await("datagrams of the client are dropped", func(context.Context) error {
				if n := g.dropped(); n < dropped+200 {
					return fmt.Errorf("%d are dropped, want %d", n, dropped+200)
				}
				return nil
			})
			last := time.Unix(0, s.last.Load())
			if last.Sub(applied) > stopTime {
				t.Errorf("a datagram reached the peer %s after the config was in force", last.Sub(applied))
			}
			t.Logf("last datagram at the peer %s after the file was written, %s before the status had the revision",
				last.Sub(written), applied.Sub(last))
			received := s.received.Load()
			if _, err := s.peer.WriteToUDPAddrPort(sequence(0), s.relay); err != nil {
				t.Fatal(err)
			}
			dropped = g.dropped()
			g.await("more datagrams are dropped", func(context.Context) error {
				if n := g.dropped(); n < dropped+20 {
					return fmt.Errorf("%d are dropped", n)
				}
				return nil
			})
			if s.received.Load() != received {
				t.Error("a datagram of the peer reached the client without a route")
			}
			g.apply(func(c *config.Config) { c.Listeners[0].Routes = routes })
			s.kernel(50)
			s.end()
			s.exact(before, 0)
		})
	}
}

// With a byte rate, channels return to user space, because only user space enforces it. Without it they return to the
// kernel.
func byteRate(t *testing.T, n *network) {
	g := n.start(t)
	p := g.path(v4)
	p.inKernel()
	g.apply(func(c *config.Config) { c.Admin.SessionByteRate = 100 << 20 })
	p.inUserSpace()
	g.apply(func(c *config.Config) { c.Admin.SessionByteRate, c.Admin.UserByteRate = 0, 100<<20 })
	p.inUserSpace()
	g.apply(func(c *config.Config) { c.Admin.UserByteRate = 0 })
	p.inKernel()
}

// The kernel forwards the channels of a credential that names a route, until the peer is an endpoint of another route
// only. A session whose credential limits bytes stays in user space.
func caveats(t *testing.T, n *network) {
	g := n.start(t, func(c *config.Config) { c.Auth = harnesstest.Ephemeral("a secret of the gateway") })
	for _, c := range []credential.Caveats{{Bytes: 1 << 40}, {BytesPerSecond: 1 << 30}} {
		p := g.as(c).path(v4)
		p.inUserSpace()
		p.hangUp()
		p.Client.Close()
		harnesstest.NoError(t, p.peer.Close())
	}
	p := g.as(credential.Caveats{Routes: []string{g.Config.Clusters[0].Name}, Allocations: 1}).path(v4)
	p.inKernel()
	s := p.stream()
	s.kernel(50)
	// swap exchanges the endpoints of the named route and of another route of the listener.
	swap := func(c *config.Config) {
		c.Clusters[0].Endpoints, c.Clusters[3].Endpoints = c.Clusters[3].Endpoints, c.Clusters[0].Endpoints
	}
	_, applied := g.apply(swap)
	dropped := g.dropped()
	g.await("datagrams of the client are dropped", func(context.Context) error {
		if n := g.dropped(); n < dropped+200 {
			return fmt.Errorf("%d are dropped, want %d", n, dropped+200)
		}
		return nil
	})
	if last := time.Unix(0, s.last.Load()); last.Sub(applied) > stopTime {
		t.Errorf("a datagram reached the peer %s after the config was in force", last.Sub(applied))
	}
	g.apply(swap)
	s.kernel(50)
	s.end()
}

// The engine changes during a call, and no datagram is lost.
func engine(t *testing.T, n *network) {
	g := n.start(t)
	p := g.path(v4)
	p.warm()
	before := g.settled()
	s := p.stream()
	for range 2 {
		s.kernel(50)
		held := g.objects
		g.apply(func(c *config.Config) { c.Admin.OffloadEngine = "None" })
		if o := g.status(); o.Offload.Mechanism != "None" || o.Admin.Offload != "None" {
			t.Errorf("engine None: the status has %+v", o)
		}
		g.gone(held)
		kernel := g.counters().kernel
		s.flows(100)
		if k := g.counters().kernel; k != kernel {
			t.Errorf("engine None: the kernel has forwarded %+v, and then %+v", kernel, k)
		}
		g.apply(func(c *config.Config) { c.Admin.OffloadEngine = n.engine })
		g.objects = objectsOf(t, g.PID())
	}
	s.kernel(50)
	lost := s.end()
	t.Logf("%d datagrams sent, %d lost in 4 changes of the engine", s.sent.Load(), lost)
	if lost > 0 {
		t.Errorf("%d datagrams were lost", lost)
	}
	s.exact(before, 0)
}
