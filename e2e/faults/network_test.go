package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// a thousand clients start within a second. Each is served or refused in time, none gets two allocations because
// of retransmissions, and existing calls have no long gaps.
func TestR21Rush(t *testing.T) {
	const clients, limit = 1000, 10 * time.Second
	b := newBench(t)
	b.run()
	live := b.calls(1)
	before := b.metric("stunner_connections_total")
	rush := make([]*ask.Client, clients)
	for i := range rush {
		rush[i] = b.client(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var served, refused, slow atomic.Int64
	var group sync.WaitGroup
	for i, c := range rush {
		group.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / clients)
			began := time.Now()
			answer, _, err := c.Do(ctx, stun.MethodAllocate, ask.UDP())
			switch code := ask.Code(answer); {
			case err != nil:
				t.Errorf("allocate: %v", err)
			case code == 0:
				served.Add(1)
			default:
				refused.Add(1)
				mustRefuse(t, "allocation during the rush", code, overload...)
			}
			for took := int64(time.Since(began)); ; {
				if most := slow.Load(); took <= most || slow.CompareAndSwap(most, took) {
					return
				}
			}
		})
	}
	group.Wait()
	b.await("one allocation per served client", b.sessions(len(live)+int(served.Load())))
	if made := b.metric("stunner_connections_total") - before; made != float64(served.Load()) {
		t.Errorf("%.0f allocations created for %d clients", made, served.Load())
	}
	b.goOn(live)
	for _, c := range live {
		s := c.End(silence)
		said := fmt.Sprintf("live call: %s; longest stall of the machine %s", s, b.pulse.Worst())
		if s.LongestGap-b.pulse.Worst() > silence {
			t.Error(said)
		}
		t.Log(said)
	}
	t.Logf("%d served, %d refused, the slowest in %s", served.Load(), refused.Load(), time.Duration(slow.Load()))
}

// over a path with loss, reordering, duplication or delay, calls are set up and continue, also after a blackout.
// The gateway itself loses no datagram that reaches it.
func TestR22Path(t *testing.T) {
	bench := newBench(t)
	bench.run()
	for name, weather := range map[string]weather{
		"loss 5 %":       {loss: 0.05},
		"loss 20 %":      {loss: 0.2},
		"reorder 25 %":   {reorder: 0.25},
		"duplicate 10 %": {duplicate: 0.1},
		"delay":          {delay: 100 * time.Millisecond, jitter: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := *bench
			b.t = t
			p := b.path(weather)
			o := b.options(call.UDP)
			o.Gateway = p.addr
			c := b.call(o)
			p.black.Store(true)
			time.Sleep(time.Second) // length of the blackout
			p.black.Store(false)
			b.goOn(calls{c})
			if err := c.Renew(); err != nil {
				t.Errorf("permission after the blackout: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := c.Await(ctx, 100); err != nil {
				t.Error(err)
			}
			s := c.End(time.Second)
			b.await("every datagram that reached the gateway was echoed", func(context.Context) error {
				up, down := p.up.Load(), p.down.Load()
				if lost := up - down; lost*1000 > up {
					return fmt.Errorf("%d datagrams reached the gateway, %d were echoed", up, down)
				}
				return nil
			})
			t.Logf("%s; media: %d to the gateway, %d back", s, p.up.Load(), p.down.Load())
		})
	}
}

// a retransmitted request gets the same response, and is executed once.
func TestR22Retransmissions(t *testing.T) {
	b := newBench(t)
	b.run()
	c := b.client(1)
	b.do(c, stun.MethodRefresh, ask.Lifetime(600)) // refused, but returns the nonce
	requests := []struct {
		method stun.Method
		attrs  []stun.Setter
		again  []stun.ErrorCode // other permitted responses to a retransmission
	}{
		{stun.MethodBinding, nil, nil},
		{stun.MethodAllocate, []stun.Setter{ask.UDP()}, nil},
		{stun.MethodRefresh, []stun.Setter{ask.Lifetime(900)}, nil},
		{stun.MethodCreatePermission, []stun.Setter{ask.Peer(b.peer)}, nil},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(channel), ask.Peer(b.peer)}, nil},
		// RFC 8656 §8.3: a client treats 437 as success here, because an earlier copy of the request may have deleted
		// the allocation.
		{stun.MethodRefresh, []stun.Setter{ask.Lifetime(0)}, []stun.ErrorCode{stun.CodeAllocMismatch}},
	}
	for _, r := range requests {
		raw := c.Request(r.method, r.attrs...)
		first := b.once(c, raw)
		if code := ask.Code(first); code != 0 {
			t.Fatalf("%s: %d", r.method, code)
		}
		for range 3 {
			again := b.once(c, raw)
			if len(r.again) > 0 {
				mustRefuse(t, "repeated "+r.method.String(), ask.Code(again), r.again...)
			} else if !bytes.Equal(again.Raw, first.Raw) {
				t.Errorf("%s: response to the retransmission %v, to the first request %v", r.method, again, first)
			}
		}
		if r.method == stun.MethodAllocate {
			b.await("one allocation", b.sessions(1))
		}
	}
	b.await("no allocation", b.sessions(0))
}

// ChannelData that repeatedly arrives before its ChannelBind does no harm.
func TestR22ChannelDataBeforeBind(t *testing.T) {
	b := newBench(t)
	b.run()
	c := b.client(1)
	early := func() {
		for n := range 50 {
			for _, number := range []uint16{channel, 0x4000, 0x7fff} {
				if err := c.Send(ask.ChannelData(number, make([]byte, n))); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	early()
	if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Fatalf("allocate: %d", code)
	}
	early()
	if code, _ := b.do(c, stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...); code != 0 {
		t.Fatalf("bind channel: %d", code)
	}
	b.echoes(c) // not one of the early datagrams
}

// a client whose NAT assigns another port is told at once that it has no allocation, and can create a new one.
// The old allocation stays until it expires, which the tests of the gate cover in virtual time.
func TestR23Rebinding(t *testing.T) {
	b := newBench(t)
	b.run()
	p := b.path(weather{})
	c := b.clientTo(p.addr, 1)
	if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Fatalf("allocate: %d", code)
	}
	for old := 1; old <= 3; old++ {
		p.rebind(c.Addr())
		for method, attrs := range b.three() {
			b.mismatch(c, method, attrs)
		}
		if code := ask.Code(b.once(c, c.Request(stun.MethodAllocate, ask.UDP()))); code != 0 {
			t.Fatalf("allocate from the new port: %d", code)
		}
		if code, _ := b.do(c, stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...); code != 0 {
			t.Fatalf("bind channel: %d", code)
		}
		b.echoes(c)
		b.await("old and new allocations", b.sessions(old+1))
	}
}

// once sends a request without retransmission.
func (b *bench) once(c *ask.Client, raw []byte) *stun.Message {
	b.t.Helper()
	answer, err := c.Once(raw, patience)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

// weather are the impairments of a path. The first three are probabilities.
type weather struct {
	loss, duplicate, reorder float64
	delay, jitter            time.Duration
}

// path is a NAT in front of the gateway with impairments. The random decisions use a fixed seed.
type path struct {
	t       testing.TB
	weather weather
	gateway netip.AddrPort
	front   *net.UDPConn
	addr    netip.AddrPort // address of front
	black   atomic.Bool
	// up and down count media datagrams, as ChannelData or indications, to and from the gateway.
	up, down atomic.Int64

	mu      sync.Mutex
	dice    *rand.Rand
	clients map[netip.AddrPort]*net.UDPConn // sockets to the gateway, by client
}

// path opens a path to the gateway.
func (b *bench) path(w weather) *path {
	b.t.Helper()
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.t.Fatal(err)
	}
	p := &path{t: b.t, weather: w, gateway: b.at(
		call.UDP,
	), front: front, addr: front.LocalAddr().(*net.UDPAddr).AddrPort(),
		dice: rand.New(rand.NewPCG(22, 22)), clients: map[netip.AddrPort]*net.UDPConn{}}
	go p.forth()
	b.t.Cleanup(func() {
		_ = front.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, conn := range p.clients {
			_ = conn.Close()
		}
	})
	return p
}

// forth forwards datagrams of clients to the gateway.
func (p *path) forth() {
	buf := make([]byte, 2048)
	for {
		n, client, err := p.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		conn := p.towards(client)
		p.carry(buf[:n], func(b []byte) {
			if _, err := conn.Write(b); err == nil && isMedia(b) {
				p.up.Add(1)
			}
		})
	}
}

// back forwards datagrams of the gateway to a client.
func (p *path) back(conn *net.UDPConn, client netip.AddrPort) {
	buf := make([]byte, 2048)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if isMedia(buf[:n]) {
			p.down.Add(1)
		}
		p.carry(buf[:n], func(b []byte) { _, _ = p.front.WriteToUDPAddrPort(b, client) })
	}
}

// towards returns the socket for a client.
func (p *path) towards(client netip.AddrPort) *net.UDPConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn := p.clients[client]
	if conn == nil {
		var err error
		if conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(p.gateway)); err != nil {
			panic(err)
		}
		p.clients[client] = conn
		go p.back(conn, client)
	}
	return conn
}

// rebind changes the port of a client, as a NAT does.
func (p *path) rebind(client netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.clients[client].Close()
	delete(p.clients, client)
}

// carry delivers a datagram according to the impairments.
func (p *path) carry(b []byte, deliver func([]byte)) {
	if p.black.Load() {
		return
	}
	for _, after := range p.fate() {
		if after == 0 {
			deliver(b)
			continue
		}
		kept := bytes.Clone(b)
		time.AfterFunc(after, func() { deliver(kept) })
	}
}

// fate returns the delays of the copies of a datagram; none if the datagram is lost.
func (p *path) fate() (copies []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const overtaken = 50 * time.Millisecond // by two or three later datagrams
	w := p.weather
	if p.dice.Float64() < w.loss {
		return nil
	}
	after := w.delay
	if w.jitter > 0 {
		after += time.Duration(p.dice.Int64N(int64(w.jitter)))
	}
	if p.dice.Float64() < w.reorder {
		after += overtaken
	}
	if p.dice.Float64() < w.duplicate {
		copies = append(copies, after)
	}
	return append(copies, after)
}

// isMedia reports whether a datagram is ChannelData or a Send or Data indication.
func isMedia(b []byte) bool {
	return b[0]&0xC0 == 0x40 || len(b) > 1 && b[0] == 0 && (b[1] == 0x16 || b[1] == 0x17)
}

// over a path with an MTU of 1,280 bytes, larger datagrams are fragmented and arrive complete, both ways.
func TestR22SmallPath(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	ip(t, "link set lo mtu 1280")
	b := newBench(t)
	b.run()
	var all calls
	for _, size := range []int{1200, 1400, 4000} {
		for _, network := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
			o := b.options(network)
			o.Size = size
			all = append(all, b.call(o))
		}
	}
	b.unharmed(all, time.Second)
}
