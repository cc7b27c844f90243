package datagram

import (
	"bytes"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// receiving opens a socket that receives on a loopback address, 127.0.0.1 or ::1.
func receiving(t *testing.T, host string) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// sending opens a Sender on the wildcard address of a family.
func sending(t *testing.T, wildcard string) *Sender {
	t.Helper()
	s, err := Listen(netip.AddrPortFrom(netip.MustParseAddr(wildcard), 0), math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// setOption sets a socket option of the level SOL_SOCKET.
func setOption(t *testing.T, s *Sender, option, value int) {
	t.Helper()
	if err := s.Use(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, value) }); err != nil {
		t.Fatal(err)
	}
}

// expect receives a datagram and compares it.
func expect(t *testing.T, conn *net.UDPConn, want []byte) (from netip.AddrPort) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, MaxPayload)
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil || !bytes.Equal(buf[:n], want) {
		t.Fatalf("got %d bytes %.8x, %v; want %d bytes %.8x", n, buf[:n], err, len(want), want)
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

// expectNothing fails if a datagram was delivered. On loopback the sending call delivers datagrams.
func expectNothing(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, MaxPayload)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes more, %v", n, err)
	}
}

// numberedPayloads returns payloads of the given sizes. Each contains its index.
func numberedPayloads(sizes []int) (payloads [][]byte) {
	for i, size := range sizes {
		payloads = append(payloads, bytes.Repeat([]byte{byte(i + 1)}, size))
	}
	return payloads
}

func repeat(size, times int) []int { return slices.Repeat([]int{size}, times) }

// Datagrams of all sizes arrive whole and in order, however they are grouped into messages.
func TestSendAllKeepsSizesAndOrder(t *testing.T) {
	for name, sizes := range map[string][]int{
		"none":                nil,
		"one":                 {160},
		"empty":               {0},
		"only empty":          repeat(0, 3),
		"one size":            repeat(160, 8),
		"shorter last":        {160, 160, 160, 20},
		"shorter in between":  {160, 20, 160, 20, 20},
		"longer":              {20, 160, 160},
		"empty in between":    {160, 160, 0, 160, 160},
		"empty first":         {0, 160},
		"one byte":            repeat(1, 70),
		"a full batch":        repeat(160, BatchSize),
		"more than a batch":   repeat(160, 3*BatchSize+1),
		"MTU of Ethernet":     repeat(1472, 10),
		"more than a message": repeat(1200, 60),
		"half a message":      repeat(32_500, 3),
		"long":                repeat(40_000, 3),
		"longest of IPv4":     {65_507, 65_507, 1, 65_507},
		"longest of IPv6":     {65_527, 65_527, 1, 65_527},
	} {
		for _, host := range []string{"127.0.0.1", "::1"} {
			if host == "127.0.0.1" && slices.Contains(sizes, 65_527) {
				continue
			}
			t.Run(name+" "+host, func(t *testing.T) {
				conn, to := receiving(t, host)
				s := sending(t, map[string]string{"127.0.0.1": "0.0.0.0", "::1": "::"}[host])
				payloads := numberedPayloads(sizes)
				var packets []Packet
				for _, p := range payloads {
					packets = append(packets, Packet{Payload: p, To: to, Err: os.ErrInvalid})
				}
				s.SendAll(packets)
				for i := range packets {
					if packets[i].Err != nil {
						t.Fatalf("datagram %d: %v", i, packets[i].Err)
					}
					expect(t, conn, payloads[i])
				}
				expectNothing(t, conn)
				if s.unsegmented.Load() {
					t.Error("the kernel has refused to cut a message")
				}
			})
		}
	}
}

// Each datagram of a batch arrives at its own address, also if a run of datagrams to one address is interrupted by
// another address. The socket serves both families, and its batch was used by another family before.
func TestSendAllToSeveralAddresses(t *testing.T) {
	any4 := sending(t, "0.0.0.0")
	_, s := reader(t, "", 0)
	a, toA := receiving(t, "127.0.0.1")
	b, toB := receiving(t, "::1")
	any4.SendAll([]Packet{{Payload: []byte("4"), To: toA}})
	expect(t, a, []byte("4"))
	mapped := netip.AddrPortFrom(netip.AddrFrom16(toA.Addr().As16()), toA.Port())
	var packets []Packet
	for i, to := range []netip.AddrPort{toA, toA, toB, toA, toB, toB, mapped, toA} {
		packets = append(packets, Packet{Payload: []byte{byte(i)}, To: to})
	}
	s.SendAll(packets)
	for i, conn := range []*net.UDPConn{a, a, b, a, b, b, a, a} {
		if packets[i].Err != nil {
			t.Fatalf("datagram %d: %v", i, packets[i].Err)
		}
		expect(t, conn, []byte{byte(i)})
	}
}

// The flow label of an IPv6 address must not contain bytes of an IPv4 address from an earlier use of the memory.
func TestSocketAddressOverwritesReusedMemory(t *testing.T) {
	var name, fresh unix.RawSockaddrInet6
	to := netip.MustParseAddrPort("[2001:db8::1]:1")
	fill(&name, unix.AF_INET, netip.MustParseAddrPort("192.0.2.1:2"))
	if fill(&name, unix.AF_INET6, to); fill(&fresh, unix.AF_INET6, to) == 0 || name != fresh {
		t.Errorf("got %+v, want %+v", name, fresh)
	}
}

// An error of one datagram is the error of that datagram only. The others are sent in their order.
func TestErrorsOfSendAllHaveTheirIndex(t *testing.T) {
	conn, to := receiving(t, "127.0.0.1")
	s := sending(t, "0.0.0.0")
	unreachable := netip.MustParseAddrPort("255.255.255.255:9") // EACCES without SO_BROADCAST
	for _, bad := range [][]int{{0}, {3}, {7}, {0, 1, 2}, {2, 3, 6}, {0, 1, 2, 3, 4, 5, 6, 7}} {
		for _, size := range []int{0, 1, 160} {
			packets := make([]Packet, 8)
			for i := range packets {
				packets[i] = Packet{Payload: bytes.Repeat([]byte{byte(i)}, size), To: to}
				if slices.Contains(bad, i) {
					packets[i].To = unreachable
				}
			}
			s.SendAll(packets)
			for i := range packets {
				switch err := packets[i].Err; {
				case slices.Contains(bad, i):
					if err != unix.EACCES {
						t.Errorf("bad %v: datagram %d: %v, want %v", bad, i, err, unix.EACCES)
					}
				case err != nil:
					t.Errorf("bad %v: datagram %d: %v", bad, i, err)
				default:
					expect(t, conn, packets[i].Payload)
				}
			}
			expectNothing(t, conn)
		}
	}
}

// A datagram that is too long fails alone.
func TestTooLongDatagramFailsAlone(t *testing.T) {
	conn, to := receiving(t, "127.0.0.1")
	s := sending(t, "0.0.0.0")
	packets := []Packet{
		{Payload: []byte("before"), To: to}, {Payload: make([]byte, 65_508), To: to}, {Payload: []byte("behind"), To: to},
	}
	s.SendAll(packets)
	if packets[0].Err != nil || packets[1].Err != unix.EMSGSIZE || packets[2].Err != nil {
		t.Errorf("errors %v, %v, %v", packets[0].Err, packets[1].Err, packets[2].Err)
	}
	expect(t, conn, []byte("before"))
	expect(t, conn, []byte("behind"))
}

// If Retry reports that the error belongs to an earlier datagram, the datagram is sent again, before later ones.
func TestRetryKeepsTheOrder(t *testing.T) {
	conn, to := receiving(t, "127.0.0.1")
	gone, closed := receiving(t, "127.0.0.1")
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	s := sending(t, "0.0.0.0")
	if err := s.Use(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1) }); err != nil {
		t.Fatal(err)
	}
	var retried []syscall.Errno
	s.Retry = func(_ int, err syscall.Errno) bool {
		retried = append(retried, err)
		return err == unix.ECONNREFUSED
	}
	if err := s.Send([]byte("to the closed port"), closed, nil); err != nil {
		t.Fatal(err)
	}
	packets := make([]Packet, 6)
	for i := range packets { // messages with one and with two datagrams
		packets[i] = Packet{Payload: bytes.Repeat([]byte{byte(i)}, 1+i/2%2), To: to}
	}
	s.SendAll(packets)
	for i := range packets {
		if packets[i].Err != nil {
			t.Fatalf("datagram %d: %v", i, packets[i].Err)
		}
		expect(t, conn, packets[i].Payload)
	}
	expectNothing(t, conn)
	if !slices.Equal(retried, []syscall.Errno{unix.ECONNREFUSED}) {
		t.Errorf("errors %v", retried)
	}
	s.Retry = func(int, syscall.Errno) bool { return true }
	broadcast := []Packet{{To: netip.MustParseAddrPort("255.255.255.255:9")}}
	if s.SendAll(broadcast); broadcast[0].Err != unix.EACCES {
		t.Errorf("an error that remains: %v", broadcast[0].Err)
	}
}

// A closed Sender sends nothing, and sets the error of every datagram.
func TestSendAllOfAClosedSender(t *testing.T) {
	conn, to := receiving(t, "127.0.0.1")
	s := sending(t, "0.0.0.0")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	packets := make([]Packet, 2*BatchSize)
	for i := range packets {
		packets[i].To = to
	}
	s.SendAll(packets)
	for i := range packets {
		if packets[i].Err != net.ErrClosed {
			t.Fatalf("datagram %d: %v", i, packets[i].Err)
		}
	}
	expectNothing(t, conn)
}

// Close during SendAll: each datagram is sent or has an error. No datagram is sent by another socket that gets the
// number of the closed descriptor.
func TestCloseDuringSendAll(t *testing.T) {
	const rounds = 200
	conn, to := receiving(t, "127.0.0.1")
	if err := conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	for range rounds {
		s := sending(t, "0.0.0.0")
		done := make(chan []Packet)
		started := make(chan struct{})
		go func() {
			packets := make([]Packet, 4*BatchSize)
			for i := range packets {
				packets[i] = Packet{Payload: []byte{1}, To: to}
			}
			close(started)
			s.SendAll(packets)
			done <- packets
		}()
		<-started
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		other := sending(t, "0.0.0.0") // gets the number
		port, err := other.Port()
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range <-done {
			if p.Err != nil && p.Err != net.ErrClosed {
				t.Fatalf("datagram %d: %v", i, p.Err)
			}
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		for {
			_ = conn.SetReadDeadline(time.Now())
			_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 1))
			if err != nil {
				break
			}
			if from.Port() == port {
				t.Fatal("a datagram has left by another socket")
			}
		}
	}
}

// Datagrams with a source address leave from this address, one by one and in runs.
func TestSendAllSetsTheSource(t *testing.T) {
	listening, s := reader(t, "", 0)
	raw, err := listening.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = ReportDestination(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	port := uint16(listening.LocalAddr().(*net.UDPAddr).Port)
	sources := map[netip.Addr]*Source{}
	client, to := receiving(t, "127.0.0.1")
	client6, to6 := receiving(t, "::1")
	for _, asked := range []string{"127.0.0.2", "127.0.0.3", "::1"} {
		addr, conn := netip.MustParseAddr(asked), client
		if addr.Is6() {
			conn = client6
		}
		if _, err := conn.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(addr, port)); err != nil {
			t.Fatal(err)
		}
		control := make([]byte, ControlSize)
		_, n, _, _, err := listening.ReadMsgUDPAddrPort(make([]byte, 1), control)
		if err != nil {
			t.Fatal(err)
		}
		source := SourceOf(control[:n])
		sources[addr] = &source
	}
	two, three, six := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.IPv6Loopback()
	var packets []Packet
	order := []netip.Addr{two, two, two, three, three, two, six, six, three}
	for i, from := range order {
		p := Packet{Payload: bytes.Repeat([]byte{byte(i)}, 100), To: to, From: sources[from]}
		if from == six {
			p.To = to6
		}
		packets = append(packets, p)
	}
	s.SendAll(packets)
	for i, from := range order {
		conn := client
		if from == six {
			conn = client6
		}
		if packets[i].Err != nil {
			t.Fatalf("datagram %d: %v", i, packets[i].Err)
		}
		if got := expect(t, conn, packets[i].Payload); got != netip.AddrPortFrom(from, port) {
			t.Errorf("datagram %d came from %v, want %v", i, got, from)
		}
	}
	if s.unsegmented.Load() {
		t.Error("the kernel has refused to cut a message")
	}
}

// If the MTU of the path is smaller than a datagram, the kernel cannot segment messages. The datagrams arrive
// nevertheless, in order, and later datagrams are sent one by one.
func TestDatagramsAboveTheMTUAreSentSingly(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	testnet.IP(t, "link set lo mtu 1400")
	for host, wildcard := range map[string]string{"127.0.0.1": "0.0.0.0", "::1": "::"} {
		conn, to := receiving(t, host)
		s := sending(t, wildcard)
		for range 2 {
			var packets []Packet
			for i, size := range append(append(repeat(100, 3), repeat(1500, 4)...), repeat(100, 3)...) {
				packets = append(packets, Packet{Payload: bytes.Repeat([]byte{byte(i)}, size), To: to})
			}
			s.SendAll(packets)
			for i := range packets {
				if packets[i].Err != nil {
					t.Fatalf("%s: datagram %d: %v", host, i, packets[i].Err)
				}
				expect(t, conn, packets[i].Payload)
			}
			expectNothing(t, conn)
			if !s.unsegmented.Load() {
				t.Error("messages are still cut by the kernel")
			}
		}
	}
}

// If the kernel does not know UDP_SEGMENT, every datagram is a message.
func TestWithoutSegmentationEveryDatagramIsAMessage(t *testing.T) {
	known := segments
	t.Cleanup(func() { segments = known })
	segments = func() bool { return false }
	conn, to := receiving(t, "127.0.0.1")
	s := sending(t, "0.0.0.0")
	setOption(t, s, unix.SO_NO_CHECK, 1)
	packets := make([]Packet, 4)
	for i := range packets {
		packets[i] = Packet{Payload: []byte{byte(i)}, To: to}
	}
	s.SendAll(packets)
	for i := range packets {
		expect(t, conn, packets[i].Payload)
	}
	if s.unsegmented.Load() { // the kernel does not split messages of a socket without checksums
		t.Error("several datagrams were one message")
	}
}

// A full send buffer drops datagrams. Later datagrams are sent as soon as the buffer has room.
func TestFullSendBufferDropsSingleDatagrams(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	// A neighbour that is never resolved keeps its datagrams in the send buffer.
	testnet.IP(t, "link add near type veth peer name far")
	testnet.IP(t, "link set far up")
	testnet.IP(t, "link set near up")
	testnet.IP(t, "address add 192.0.2.1/24 dev near")
	conn, loopback := receiving(t, "127.0.0.1")
	s := sending(t, "0.0.0.0")
	setOption(t, s, unix.SO_SNDBUF, 1)
	packets := make([]Packet, BatchSize)
	for i := range packets {
		packets[i] = Packet{Payload: make([]byte, 100+i%2), To: netip.MustParseAddrPort("192.0.2.2:9")}
	}
	s.SendAll(packets)
	congested := 0
	for i := range packets {
		switch packets[i].Err {
		case nil:
		case ErrCongested:
			congested++
		default:
			t.Fatalf("datagram %d: %v", i, packets[i].Err)
		}
	}
	if congested == 0 || congested == len(packets) {
		t.Fatalf("%d of %d datagrams found no room", congested, len(packets))
	}
	setOption(t, s, unix.SO_SNDBUF, 1<<20)
	behind := []Packet{{Payload: []byte("behind"), To: loopback}}
	if s.SendAll(behind); behind[0].Err != nil {
		t.Fatal(behind[0].Err)
	}
	expect(t, conn, []byte("behind"))
}

// The messages to the kernel have the layout of the C structures of 64-bit architectures.
func TestLayoutOfMessages(t *testing.T) {
	var b batch
	for what, got := range map[string]uintptr{
		"mmsghdr":      unsafe.Sizeof(b.messages[0]) - 64,
		"control":      uintptr(unsafe.Pointer(&b.controls[0])) % 8,
		"next control": uintptr(unsafe.Pointer(&b.controls[1])) % 8,
		"segment":      uintptr(unix.CmsgSpace(2)) - segmentControl,
	} {
		if got != 0 {
			t.Errorf("%s is off by %d", what, got)
		}
	}
}
