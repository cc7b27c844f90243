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
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// over a path with loss, reordering, duplication or delay, calls are set up and continue, also after a blackout.
// The gateway itself loses no datagram that reaches it.
func TestCallsContinueOverABadPath(t *testing.T) {
	one := running(t)
	for name, p := range map[string]*path{
		"loss 20 %":      {loss: 0.2},
		"reorder 25 %":   {reorder: 0.25},
		"duplicate 10 %": {duplicate: 0.1},
		"delay":          {delay: 100 * time.Millisecond, jitter: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := *one
			d.t = t
			o := d.options(call.UDP)
			o.Gateway = p.open(t, o.Gateway)
			c := d.call(o)
			p.black.Store(true)
			time.Sleep(time.Second) // length of the blackout
			p.black.Store(false)
			d.awaitEchoes(c)
			if err := c.Renew(); err != nil {
				t.Errorf("permission after the blackout: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			if err := c.AwaitMore(ctx, 25); err != nil {
				t.Error(err)
			}
			s := c.End(time.Second)
			d.await("every datagram that reached the gateway was echoed", func(context.Context) error {
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
func TestRetransmittedRequestsAreExecutedOnce(t *testing.T) {
	t.Parallel()
	d := running(t)
	c := d.learn(d.client(1))
	allocate := request{stun.MethodAllocate, []stun.Setter{ask.UDP()}}
	for _, r := range append([]request{{stun.MethodBinding, nil}, allocate}, d.ofAllocation()...) {
		raw := c.Request(r.method, r.attrs...)
		first := d.once(c, raw)
		if code := ask.Code(first); code != 0 {
			t.Fatalf("%s: %d", r.method, code)
		}
		for range 3 {
			if again := d.once(c, raw); !bytes.Equal(again.Raw, first.Raw) {
				t.Errorf("%s: response to the retransmission %v, to the first request %v", r.method, again, first)
			}
		}
	}
	d.await("one allocation", d.sessions(1))
	// RFC 8656 §8.3: a client treats 437 as success here, because an earlier copy of the request may have deleted the
	// allocation.
	raw := c.Request(stun.MethodRefresh, ask.Lifetime(0))
	for i, want := range []stun.ErrorCode{0, stun.CodeAllocMismatch, stun.CodeAllocMismatch} {
		if code := ask.Code(d.once(c, raw)); code != want {
			t.Errorf("deletion %d: %d, want %d", i, code, want)
		}
	}
	d.await("no allocation", d.sessions(0))
}

// a client whose NAT assigns another port gets an error at once, and can create a new allocation. The old
// allocation stays until it expires, which the tests of the gate cover in virtual time.
func TestClientAtAnotherPortGetsANewAllocation(t *testing.T) {
	t.Parallel()
	d := running(t)
	c := d.allocated(1)
	for old := 1; old <= 3; old++ {
		c = d.another(c)
		d.unknown(c)
		if code := ask.Code(d.once(c, c.Request(stun.MethodAllocate, ask.UDP()))); code != 0 {
			t.Fatalf("allocate from the new port: %d", code)
		}
		d.bind(c)
		d.echo(c)
		d.await("old and new allocations", d.sessions(old+1))
	}
}

// over a path with an MTU of 1,280 bytes, larger datagrams are fragmented and arrive complete, both ways.
func TestLargeDatagramsCrossASmallPath(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	netns.Run(t, "ip link set lo mtu 1280")
	d := running(t)
	var all []*call.Call
	for _, size := range []int{1400, 4000} {
		for _, network := range networks {
			o := d.options(network)
			o.Size = size
			all = append(all, d.call(o))
		}
	}
	d.undisturbed(all)
}

// path is a path to the gateway with impairments. The first three fields are probabilities. The random decisions use a
// fixed seed.
type path struct {
	loss, duplicate, reorder float64
	delay, jitter            time.Duration

	black atomic.Bool // set during a blackout, in which nothing is delivered
	// up and down count media datagrams, as ChannelData or indications, to and from the gateway.
	up, down atomic.Int64

	mu   sync.Mutex
	dice *rand.Rand
}

// open opens the path for one client, and returns its address.
func (p *path) open(t testing.TB, gateway netip.AddrPort) netip.AddrPort {
	t.Helper()
	p.dice = rand.New(rand.NewPCG(22, 22))
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(harness.Loopback)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	back, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(gateway))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = back.Close() })
	var client atomic.Pointer[netip.AddrPort]
	go receive(front, func(b []byte, from netip.AddrPort) {
		client.Store(&from)
		p.carry(b, func(b []byte) {
			if _, err := back.Write(b); err == nil && isMedia(b) {
				p.up.Add(1)
			}
		})
	})
	go receive(back, func(b []byte, _ netip.AddrPort) {
		if isMedia(b) {
			p.down.Add(1)
		}
		p.carry(b, func(b []byte) { _, _ = front.WriteToUDPAddrPort(b, *client.Load()) })
	})
	return front.LocalAddr().(*net.UDPAddr).AddrPort()
}

// receive calls a function with each datagram, until the socket is closed.
func receive(conn *net.UDPConn, f func([]byte, netip.AddrPort)) {
	for {
		buf := make([]byte, 2048)
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		f(buf[:n], from)
	}
}

// carry delivers the copies of a datagram after their delays. It delivers no copy of a lost datagram.
func (p *path) carry(b []byte, deliver func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const overtaken = 50 * time.Millisecond // overtaken by two or three later datagrams
	if p.black.Load() || p.dice.Float64() < p.loss {
		return
	}
	after := p.delay
	if p.jitter > 0 {
		after += time.Duration(p.dice.Int64N(int64(p.jitter)))
	}
	if p.dice.Float64() < p.reorder {
		after += overtaken
	}
	copies := 1
	if p.dice.Float64() < p.duplicate {
		copies = 2
	}
	for range copies {
		if after == 0 {
			deliver(b)
		} else {
			time.AfterFunc(after, func() { deliver(b) })
		}
	}
}

// isMedia reports whether a datagram is ChannelData or a Send or Data indication.
func isMedia(b []byte) bool {
	return b[0]&0xC0 == 0x40 || len(b) > 1 && b[0] == 0 && (b[1] == 0x16 || b[1] == 0x17)
}
