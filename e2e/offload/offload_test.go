package offload

import (
	"bytes"
	"crypto/x509"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// The parts share the namespaces and their links. Each starts its own stunnerd.
func TestOffload(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	n := newNetwork(t, "TC")
	n.run(t)
	t.Run("user space only", func(t *testing.T) { userSpace(t, n) })
	t.Run("byte rate", func(t *testing.T) { byteRate(t, n) })
	t.Run("caveats", func(t *testing.T) { caveats(t, n) })
	t.Run("header fields", func(t *testing.T) { headerFields(t, n) })
	t.Run("refresh", func(t *testing.T) { refresh(t, n) })
	t.Run("clsact", func(t *testing.T) { clsact(t, n) })
}

// With engine XDP, the program in the driver forwards the packets that the programs of TC forward with engine TC. Which
// channels are forwarded in the kernel does not depend on the engine.
func TestXDP(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	newNetwork(t, "XDP").run(t)
}

func (n *network) run(t *testing.T) {
	for _, f := range families {
		t.Run("channel over "+f.name, func(t *testing.T) { channel(t, n, f) })
	}
	t.Run("route", func(t *testing.T) { route(t, n) })
	t.Run("engine", func(t *testing.T) { engine(t, n) })
	t.Run("nomination", func(t *testing.T) { nomination(t, n) })
	t.Run("end of an allocation", func(t *testing.T) { allocationEnd(t, n) })
	t.Run("drain", func(t *testing.T) { drain(t, n) })
	t.Run("prober", func(t *testing.T) { prober(t, n.start(t)) })
}

// The first packets of a channel pass through user space, and the following packets through the kernel. The contents
// are equal and the counters exact, for every size. User space forwards packets of a peer that are shorter than the
// header of ChannelData.
func channel(t *testing.T, n *network, f family) {
	g := n.start(t)
	p := g.path(f)
	p.warm()
	p.up(1400) // user space forwards a packet that is longer than all earlier packets
	p.down(1400)
	before, up, down, short := g.settled(), flow{}, flow{}, 0
	for size := 1400; size >= 0; size -= 1 + size/16 {
		if p.up(size); size > 0 {
			p.down(size)
			down = flow{down.Packets + 1, down.Bytes + size}
			if size < 4 {
				short++
			}
		}
		up = flow{up.Packets + 1, up.Bytes + size}
	}
	k := g.counted(before, up, down)
	if k.up != up.Packets || k.down != down.Packets-short {
		t.Errorf("the kernel forwarded %d up and %d down of %d and %d", k.up, k.down, up.Packets, down.Packets-short)
	}
	t.Logf("%d packets up and %d down in the kernel, %d down in user space", k.up, k.down, short)
}

// Calls that the kernel does not forward, for example over TCP, work while it forwards others.
func userSpace(t *testing.T, n *network) {
	g := n.start(t)
	roots := x509.NewCertPool()
	cert, err := os.ReadFile(g.CA)
	if err != nil || !roots.AppendCertsFromPEM(cert) {
		t.Fatal(err)
	}
	var echo netip.AddrPort
	n.peers.Do(func() { echo = harnesstest.Echo(t, v4.peer) })
	for over, port := range map[call.Network]int{call.TCP: g.Plain, call.TLS: g.Secure, call.DTLS: g.Secure} {
		t.Run(string(over)+" client", func(t *testing.T) {
			g := g.in(t)
			before := g.counters()
			var c *call.Call
			var err error
			n.clients.Do(func() {
				c, err = call.Start(t.Context(), call.Options{
					Gateway: netip.AddrPortFrom(v4.gateway, uint16(port)), Network: over, Roots: roots, Username: user,
					Password: password, Peer: echo, Interval: time.Millisecond,
				})
			})
			harnesstest.NoError(t, err)
			if err := c.Await(t.Context(), 100); err != nil {
				t.Error(err)
			}
			s := c.End(timeout)
			grown := g.counters().minus(before)
			if s.Lost > 0 || grown.kernel.up != 0 || grown.kernel.down != 0 {
				t.Errorf("%s; the kernel forwarded %+v", s, grown.kernel)
			}
			if grown.cluster.Tx.Packets != s.Sent || grown.cluster.Rx.Packets != s.Received {
				t.Errorf("%s; the cluster has %+v", s, grown.cluster)
			}
		})
	}
	t.Run("indications", func(t *testing.T) {
		g := g.in(t)
		p := g.phone(v4, v4)
		p.peer = socket(t, n.peers, v4.peer)
		p.permit()
		before := g.settled()
		g.udp.rx.Add(20)
		g.udp.tx.Add(20)
		payload := bytes.Repeat([]byte("media"), 32)
		for range 20 {
			harnesstest.NoError(t, p.Send(ask.SendIndication(p.peerAddr(), payload)))
			got, err := read(p.peer)
			if err != nil || !bytes.Equal(got, payload) {
				t.Fatalf("peer: %v, %q", err, got)
			}
			if _, err := p.peer.WriteToUDPAddrPort(payload, p.relay); err != nil {
				t.Fatal(err)
			}
			raw, err := p.Receive(timeout)
			answer := &stun.Message{Raw: raw}
			if err == nil {
				err = answer.Decode()
			}
			if got, _ := answer.Get(stun.AttrData); err != nil || !bytes.Equal(got, payload) {
				t.Fatalf("client: %v, %q", err, got)
			}
		}
		if grown := g.settled().minus(before); grown.kernel.up != 0 || grown.kernel.down != 0 ||
			grown.session.Tx.Packets != 20 || grown.session.Rx.Packets != 20 {
			t.Errorf("counters have grown by %+v", grown)
		}
		p.hangUp()
	})
	t.Run("peer on loopback", func(t *testing.T) {
		g := g.in(t)
		p := g.phone(v4, v4)
		p.peer = socket(t, nil, netip.MustParseAddr("127.0.0.1"))
		p.bind()
		p.inUserSpace()
		p.hangUp()
	})
	t.Run("IPv4 client, IPv6 peer", func(t *testing.T) {
		g := g.in(t)
		p := g.phone(v4, v6)
		p.peer = socket(t, n.peers, v6.peer)
		p.bind()
		p.inUserSpace()
		p.hangUp()
	})
	t.Run("byte rate", func(t *testing.T) {
		g := g.in(t)
		g.apply(func(c *config.Config) { c.Admin.UserByteRate = 100 << 20 })
		g.path(v4).inUserSpace()
	})
	if n := g.status().Offload.Bindings; n > 0 {
		t.Errorf("the kernel may forward %d bindings, want 0", n)
	}
}
