package offload

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// Both paths send all packets with the type of service and traffic class 0 (RFC 8656 §14: a fixed value).
func headerFields(t *testing.T, w *world) {
	for _, engine := range []string{w.engine, "None"} {
		g := w.start(t, func(c *config.Config) { c.Admin.OffloadEngine = engine })
		for _, f := range families {
			p := g.path(f)
			client := p.Conn
			level, set, report := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVTOS
			if f == v6 {
				level, set, report = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS
			}
			const expedited = 46<<2 | 2 // DSCP EF, and an ECN-capable transport
			for _, c := range []*net.UDPConn{client, p.peer} {
				option(t, c, level, set, expedited)
				option(t, c, level, report, 1)
			}
			if engine != "None" {
				p.warm()
			}
			kernel := g.counters().kernel
			g.udp.rx.Add(1)
			g.udp.tx.Add(1)
			if err := p.Send(ask.ChannelData(p.channel, sequence(1))); err != nil {
				t.Fatal(err)
			}
			up := class(t, p.peer)
			if _, err := p.peer.WriteToUDPAddrPort(sequence(2), p.relay); err != nil {
				t.Fatal(err)
			}
			if down := class(t, client); up != 0 || down != 0 {
				t.Errorf("engine %s, %s: classes %#x up and %#x down, want 0", engine, f.name, up, down)
			}
			if k := g.counters().kernel; (k != kernel) != (engine != "None") {
				t.Errorf("engine %s, %s: the kernel has forwarded %+v, before %+v", engine, f.name, k, kernel)
			}
		}
		if err := g.process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// class returns the type of service or traffic class of the next datagram.
func class(t *testing.T, c *net.UDPConn) byte {
	t.Helper()
	payload, oob := make([]byte, 2048), make([]byte, 256)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, n, _, _, err := c.ReadMsgUDPAddrPort(payload, oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if m.Header.Type == unix.IP_TOS || m.Header.Type == unix.IPV6_TCLASS {
			return m.Data[0]
		}
	}
	t.Fatal("the class of a datagram is unknown")
	return 0
}

// With a path whose MTU is smaller than that of the interface, long packets pass through user space, which has them
// fragmented, and shorter ones through the kernel.
func pathMTU(t *testing.T, w *world) {
	g := w.start(t)
	for _, f := range families {
		p := g.path(f)
		p.warm()
		bits := f.peer.BitLen()
		for _, to := range []struct {
			route string
			send  func(size int)
		}{
			{fmt.Sprintf("%s/%d dev peers", f.peer, bits), p.up}, {fmt.Sprintf("%s/%d dev clients", f.client, bits), p.down},
		} {
			inKernel := func(size int, want bool) {
				t.Helper()
				const packets = 5
				for range 3 { // a packet that is longer than those before passes through user space
					to.send(min(size, 1200))
				}
				before := g.counters().kernel
				for range packets {
					to.send(size)
				}
				k := g.counters().kernel
				if n := k.up + k.down - before.up - before.down; n != 0 && !want || n < packets-1 && want {
					t.Errorf("%s: the kernel has forwarded %d of %d packets of %d bytes", to.route, n, packets, size)
				}
			}
			inKernel(1400, true)
			netns.Run(t, "ip route add "+to.route+" mtu 1300")
			time.Sleep(settle)
			inKernel(1400, false)
			inKernel(1200, true)
			netns.Run(t, "ip route del "+to.route)
			time.Sleep(settle)
			inKernel(1400, true)
		}
	}
}

// settle is longer than the programs learn again after a change of the network.
const settle = 300 * time.Millisecond
