package listener

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// forwardingListener opens a listener that forwards.
func forwardingListener(t testing.TB, protocol config.Protocol) Forwarding {
	t.Helper()
	g, m := newGate(t, protocol)
	c := config.Listener{Name: "test", Protocol: protocol, Port: testport.Free(t)}
	if protocol == config.TURNDTLS {
		c.Cert, c.Key = keyPair(t, "turn.example.org")
	}
	l, err := Open(c, g, Options{Sockets: 2, Limits: NewLimits(0), Meter: m, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.(Forwarding)
}

// answerAll sends answers of another pod to clients, and to clients that have vanished. It returns an error if an
// answer does not arrive.
func answerAll(l Forwarding, clients []*net.UDPConn, vanished []netip.AddrPort) error {
	const batches, each = 50, 4
	frame := make([]byte, 1200)
	for batch := range batches {
		for _, c := range vanished {
			for range datagram.BatchSize / 4 {
				l.Answer(c, frame, nil)
			}
		}
		for _, c := range clients {
			for range each {
				l.Answer(c.LocalAddr().(*net.UDPAddr).AddrPort(), frame[:100], nil)
			}
		}
		l.Flush(time.Now())
		for i, c := range clients {
			for n := range each {
				if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
					return err
				}
				if _, err := c.Read(make([]byte, len(frame))); err != nil {
					return fmt.Errorf("batch %d, client %d: %d of %d answers arrive: %w", batch, i, n, each, err)
				}
			}
		}
	}
	return nil
}

// Clients of this pod with a session in another pod lose no data when other clients with a session in another pod
// vanish. The kernel keeps the datagrams to a vanished client in the send buffer of their socket for three seconds.
func TestVanishedForwardedClientsAffectNoOthers(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	testnet.IP(t, "link add near type veth peer name far")
	testnet.IP(t, "link set far up")
	testnet.IP(t, "link set near up")
	testnet.IP(t, "address add 192.0.2.1/24 dev near")
	for _, protocol := range []config.Protocol{config.TURNUDP, config.TURNDTLS} {
		l := forwardingListener(t, protocol)
		var clients []*net.UDPConn
		for range 4 {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			clients = append(clients, c)
		}
		var vanished []netip.AddrPort
		for i := range 3 {
			address := fmt.Sprintf("192.0.2.%d:5000", 10+i)
			if protocol == config.TURNDTLS {
				address = fmt.Sprintf("192.0.2.%d:5000", 20+i)
			}
			vanished = append(vanished, netip.MustParseAddrPort(address))
		}
		if err := answerAll(l, clients, nil); err != nil {
			t.Errorf("%s, control: %v", protocol, err)
		}
		if err := answerAll(l, clients, vanished); err != nil {
			t.Errorf("%s, with vanished clients: %v", protocol, err)
		}
	}
}

// newAnswers returns a frontAnswers without a listener.
func newAnswers(t testing.TB) *frontAnswers {
	t.Helper()
	port, err := openPort(testport.Free(t), 2, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a := newFrontAnswers(port, new(meter.Listener), 0, func(c netip.AddrPort, why meter.Reason) { t.Errorf("%s: %s", c, why) })
	t.Cleanup(func() {
		_ = port.Close()
		a.closeAll()
		if a.number != 0 || len(a.senders) != 0 {
			t.Errorf("%d sockets are open", a.number)
		}
	})
	return &a
}

// own returns which clients have sockets of their own.
func (a *frontAnswers) own(clients ...netip.AddrPort) (own []bool) {
	for _, c := range clients {
		own = append(own, a.senders[session.Source(c.Addr())][c] != nil)
	}
	return own
}

func addrs(list ...string) (clients []netip.AddrPort) {
	for _, s := range list {
		clients = append(clients, netip.MustParseAddrPort(s))
	}
	return clients
}

// A socket is closed only when its client gets no more answers.
func TestFrontClosesSocketsOfIdleClients(t *testing.T) {
	a, now := newAnswers(t), time.Now()
	clients := addrs("127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.2:9001")
	for _, c := range clients {
		a.sender(c, now)
	}
	a.sender(clients[1], now.Add(idleSender/2))
	for _, step := range []struct {
		after time.Duration
		want  []bool
	}{
		{idleSender - 1, []bool{true, true, true}},
		{idleSender, []bool{false, true, false}},
		{2 * idleSender, []bool{false, false, false}},
	} {
		if a.sweep(now.Add(step.after)); !slices.Equal(a.own(clients...), step.want) {
			t.Errorf("after %s sockets %v, want %v", step.after, a.own(clients...), step.want)
		}
	}
	if a.number != 0 || len(a.senders) != 0 {
		t.Errorf("%d sockets of %d sources are left", a.number, len(a.senders))
	}
}

// At the limit, the source with the most sockets loses one for each client of another source. It gets no further
// socket.
func TestFrontTakesSocketsFromTheSourceWithTheMost(t *testing.T) {
	a, now := newAnswers(t), time.Now()
	a.limit = 8
	many := func(source string, number int) (own int) {
		for i := range number {
			c := netip.AddrPortFrom(netip.MustParseAddr(source), uint16(9000+i))
			if s := a.sender(c, now); !slices.Contains(a.port.senders, s) {
				own++
			}
		}
		return own
	}
	count := func(source string) int { return len(a.senders[session.Source(netip.MustParseAddr(source))]) }
	for _, step := range []struct {
		source       string
		clients, own int
		want         [3]int
	}{
		{"198.51.100.1", 100, 8, [3]int{8, 0, 0}},
		{"198.51.100.2", 1, 1, [3]int{7, 1, 0}},
		{"198.51.100.1", 100, 7, [3]int{7, 1, 0}},
		{"198.51.100.2", 100, 4, [3]int{4, 4, 0}},
		{"2001:db8::1", 1, 1, [3]int{}}, // either of the two may lose a socket
		{"2001:db8::2", 100, 100, [3]int{}},
	} {
		// Clients of the same source that have a socket keep it.
		own := many(step.source, step.clients)
		got := [3]int{count("198.51.100.1"), count("198.51.100.2"), count("2001:db8::1")}
		switch {
		case a.number != a.limit || got[0]+got[1]+got[2] != a.limit:
			t.Errorf("%v: %d sockets, want %d", got, a.number, a.limit)
		case step.want == [3]int{} && (got[2] < 1 || got[2] > 3 || got[0] < 2 || got[1] < 2):
			t.Errorf("%s: %v", step.source, got)
		case step.want != [3]int{} && (got != step.want || own != step.own):
			t.Errorf("%s: %v, %d got one; want %v, %d", step.source, got, own, step.want, step.own)
		}
	}
}

// If descriptors are scarce, clients share the sockets of the readers. When descriptors are free again, a new client
// gets a socket of its own.
func TestClientsShareSocketsIfDescriptorsAreScarce(t *testing.T) {
	a, now := newAnswers(t), time.Now()
	c, most := addrs("127.0.0.1:9001")[0], a.port.most
	a.port.most = 0
	if s := a.sender(c, now); !slices.Contains(a.port.senders, s) {
		t.Error("a client has a socket of its own")
	}
	a.port.most = most
	for after, want := range map[time.Duration]bool{0: false, retrySender: true} {
		if s := a.sender(c, now.Add(after)); slices.Contains(a.port.senders, s) == want {
			t.Errorf("after %s: own socket %t", after, !want)
		}
		a.closeAll()
	}
}

// batchClients are the tested numbers of clients in a batch of datagrams.
var batchClients = []int{1, 8, datagram.BatchSize}

// fill adds a batch of answers. The answers to one client are in succession.
func fill(add func(netip.AddrPort, []byte, *datagram.Source), clients int, frame []byte) {
	for i := range datagram.BatchSize {
		add(netip.AddrPortFrom(loopback, uint16(9000+i*clients/datagram.BatchSize)), frame, nil)
	}
}

var loopback = netip.MustParseAddr("127.0.0.1")

// G-11: an answer of another pod allocates nothing.
func TestAnswersAllocateNothing(t *testing.T) {
	frame := make([]byte, 160)
	for _, clients := range batchClients {
		a := newAnswers(t)
		if n := testing.AllocsPerRun(100, func() {
			fill(a.add, clients, frame)
			a.flush(time.Now())
		}); n != 0 {
			t.Errorf("%d clients: %.1f allocations a batch", clients, n)
		}
	}
}

func BenchmarkAnswers(b *testing.B) {
	frame := make([]byte, 160)
	for _, clients := range batchClients {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			for i := range clients { // otherwise the kernel answers with ICMP messages
				c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice(), Port: 9000 + i})
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
			}
			l, batch := forwardingListener(b, config.TURNUDP), 0
			b.ReportAllocs()
			for b.Loop() {
				if batch++; batch%datagram.BatchSize == 0 {
					fill(l.Answer, clients, frame)
					l.Flush(time.Now())
				}
			}
		})
	}
}
