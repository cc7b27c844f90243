package offload

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// Both paths send all packets with the type of service and traffic class 0 (RFC 8656 §14: a fixed value).
func headerFields(t *testing.T, n *network) {
	for _, engine := range []string{n.engine, "None"} {
		g := n.start(t, func(c *config.Config) { c.Admin.OffloadEngine = engine })
		for _, f := range families {
			p := g.path(f)
			level, set, report := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVTOS
			if f == v6 {
				level, set, report = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS
			}
			const expedited = 46<<2 | 2 // DSCP EF, and an ECN-capable transport
			for _, c := range []*net.UDPConn{p.Conn, p.peer} {
				option(t, c, level, set, expedited)
				option(t, c, level, report, 1)
			}
			if engine != "None" {
				p.warm()
			}
			kernel := g.counters().kernel
			g.udp.rx.Add(1)
			g.udp.tx.Add(1)
			harnesstest.NoError(t, p.Send(ask.ChannelData(p.channel, sequence(1))))
			up := class(t, p.peer)
			if _, err := p.peer.WriteToUDPAddrPort(sequence(2), p.relay); err != nil {
				t.Fatal(err)
			}
			if down := class(t, p.Conn); up != 0 || down != 0 {
				t.Errorf("engine %s, %s: classes %#x up and %#x down, want 0", engine, f.name, up, down)
			}
			if k := g.counters().kernel; (k != kernel) != (engine != "None") {
				t.Errorf("engine %s, %s: the kernel has forwarded %+v, before %+v", engine, f.name, k, kernel)
			}
		}
		harnesstest.NoError(t, g.Kill())
	}
}

// class returns the type of service or traffic class of the next datagram.
func class(t *testing.T, c *net.UDPConn) byte {
	t.Helper()
	payload, oob := make([]byte, 2048), make([]byte, 256)
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	_, n, _, _, err := c.ReadMsgUDPAddrPort(payload, oob)
	harnesstest.NoError(t, err)
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	harnesstest.NoError(t, err)
	for _, m := range messages {
		if m.Header.Type == unix.IP_TOS || m.Header.Type == unix.IPV6_TCLASS {
			return m.Data[0]
		}
	}
	t.Fatal("the class of a datagram is unknown")
	return 0
}
