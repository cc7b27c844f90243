package relay

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// own are the addresses of the host in the namespace of these tests, without loopback.
var own = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1"),
	netip.MustParseAddr("2001:db8::2"),
}

// isOwn is a Local for own.
func isOwn(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(own, a) }

func addOwn(t *testing.T) {
	t.Helper()
	for _, a := range own {
		testnet.IP(t, "address add "+netip.PrefixFrom(a, a.BitLen()).String()+" dev lo")
	}
	for _, a := range own {
		// The kernel makes an IPv6 address usable asynchronously.
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
			conn, err := net.DialUDP("udp", at, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
			if err == nil {
				_ = conn.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
}

// inbox is a receiver that copies datagrams.
type inbox chan Datagram

func (i inbox) ReceiveBatch(batch []Datagram, _ time.Time) {
	for _, d := range batch {
		i <- d.clone()
	}
}

func (i inbox) Unreachable(netip.AddrPort) {}

// newKernel returns a network with one poller, which ends with the test.
func newKernel(t testing.TB) Kernel {
	t.Helper()
	pollers, err := NewPollers(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pollers.Close(); err != nil {
			t.Error(err)
		}
	})
	return Kernel{Pollers: pollers}
}

// roundTrip sends a datagram from a relay socket to a peer and back. It returns the source address that the peer has
// seen.
func roundTrip(t *testing.T, s Socket, peer netip.Addr) netip.AddrPort {
	t.Helper()
	network := "udp4"
	if peer.Is6() {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	ping := []datagram.Packet{{Payload: []byte("ping"), To: at}}
	if s.Send(ping); ping[0].Err != nil {
		t.Fatalf("send to %s: %v", at, ping[0].Err)
	}
	buffer := make([]byte, 16)
	_, from, err := conn.ReadFromUDPAddrPort(buffer)
	if err != nil {
		t.Fatalf("peer %s: %v", at, err)
	}
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	if _, err := conn.WriteToUDPAddrPort([]byte("pong"), from); err != nil {
		t.Fatal(err)
	}
	in := make(inbox, 1)
	if err := s.Start(in); err != nil {
		t.Fatal(err)
	}
	got := <-in
	if string(got.Payload()) != "pong" || got.peer != at {
		t.Errorf("got %q from %s, want the answer of %s", got.Payload(), got.peer, at)
	}
	return from
}

// A peer sees the relayed transport address of the client (RFC 8656 §11), even if the peer is on the same host.
func TestPeersSeeTheRelayedAddress(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	addOwn(t)
	peers := append(
		slices.Clone(own), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.9.9.9"), netip.IPv6Loopback(),
	)
	ports := NewPorts(portRange(40000, 40099))
	pollers := newKernel(t).Pollers
	for name, network := range map[string]Kernel{
		"kernel's choice": {Local: isOwn, Pollers: pollers}, "range": {Local: isOwn, Ports: ports, Pollers: pollers},
	} {
		for _, told := range append(slices.Clone(own), netip.MustParseAddr("127.0.0.77")) {
			for _, peer := range peers {
				if peer.Is4() != told.Is4() {
					continue
				}
				s, err := network.Open(told, 0)
				if err != nil {
					t.Fatal(err)
				}
				if from := roundTrip(t, s, peer); from != netip.AddrPortFrom(told, s.Port()) {
					t.Errorf("%s: told %s:%d, peer %s saw %s", name, told, s.Port(), peer, from)
				}
				even, odd, err := OpenEven(network, told, true)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range []Socket{even, odd} {
					if from := roundTrip(t, s, peer); from != netip.AddrPortFrom(told, s.Port()) {
						t.Errorf("%s, pair: told %s:%d, peer %s saw %s", name, told, s.Port(), peer, from)
					}
				}
				closeAll(t, s, even, odd)
			}
		}
	}
}

// For an advertised address that this host does not have, such as the address of a NAT, the kernel chooses the source
// address. It does so for 127.0.0.1 too, from which no other address of the host could be reached.
func TestForeignRelayAddressesAreNotBound(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	addOwn(t)
	for _, family := range []string{"ipv4", "ipv6"} {
		if err := os.WriteFile("/proc/sys/net/"+family+"/ip_nonlocal_bind", []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for told, peer := range map[string]string{
		"198.51.100.77": "192.0.2.1", "2001:db8:77::7": "2001:db8::1", "127.0.0.1": "192.0.2.2", "::1": "2001:db8::2",
	} {
		network := newKernel(t)
		network.Local = isOwn
		s, err := network.Open(netip.MustParseAddr(told), 0)
		if err != nil {
			t.Fatal(err)
		}
		if from := roundTrip(t, s, netip.MustParseAddr(peer)); from.Addr() != netip.MustParseAddr(peer) ||
			from.Port() != s.Port() {
			t.Errorf("told %s: peer %s saw %s", told, peer, from)
		}
		closeAll(t, s)
	}
}

// An allocation succeeds even if the address of the relay is removed at the same time. A socket on the address works
// again when the address is restored.
func TestRelayAddressThatIsRemovedAndAddedAgain(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	addOwn(t)
	lost, peer := own[1], own[0]
	network := newKernel(t)
	network.Local = isOwn
	before, err := network.Open(lost, 0)
	if err != nil {
		t.Fatal(err)
	}
	testnet.IP(t, "address delete "+lost.String()+"/32 dev lo")
	meanwhile, err := network.Open(lost, 0)
	if err != nil {
		t.Fatalf("without the address: %v", err)
	}
	roundTrip(t, meanwhile, peer)
	testnet.IP(t, "address add "+lost.String()+"/32 dev lo")
	if from := roundTrip(t, before, peer); from.Addr() != lost {
		t.Errorf("with the address again, the peer saw %s, want %s", from, lost)
	}
	closeAll(t, before, meanwhile)
}

func closeAll(t *testing.T, sockets ...Socket) {
	t.Helper()
	for _, s := range sockets {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
