package datagram

import (
	"bytes"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newReceiver(t *testing.T) *Receiver {
	t.Helper()
	r, err := NewReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Datagrams of all sizes are received whole, in order and with their source, in batches of at most BatchSize.
func TestReceiverReceivesWholeDatagrams(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		socket := sending(t, host)
		port, err := socket.Port()
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(host), port)
		if err := socket.Use(func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}); err != nil {
			t.Logf("receive buffer: %v", err) // without CAP_NET_ADMIN some datagrams are lost
		}
		from, client := receiving(t, host)
		r := newReceiver(t)
		for _, sizes := range [][]int{
			{0}, {1}, {160, 0, 0, 1472, 9000, longest[host], 1}, repeat(160, BatchSize), repeat(1200, BatchSize+1),
			{longest[host], 1},
		} {
			payloads := numberedPayloads(sizes)
			for _, p := range payloads {
				if _, err := from.WriteToUDPAddrPort(p, to); err != nil {
					t.Fatal(err)
				}
			}
			for len(payloads) > 0 {
				got := receive(t, r, socket)
				if want := min(len(payloads), BatchSize); got != want {
					t.Fatalf("%s: %d datagrams, want %d", host, got, want)
				}
				for i := range got {
					if !bytes.Equal(r.Payload(i), payloads[i]) || r.From(i) != client {
						t.Fatalf("%s: datagram %d has %d bytes from %v, want %d from %v",
							host, i, len(r.Payload(i)), r.From(i), len(payloads[i]), client)
					}
				}
				payloads = payloads[got:]
			}
		}
		if err := socket.Use(func(fd int) error {
			if n, errno := r.Receive(fd); n != 0 || errno != unix.EAGAIN {
				t.Errorf("%s: without a datagram: %d, %v", host, n, errno)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// longest is the length of the longest UDP payload by source: 65,535 without the header of UDP, and over IPv4 also
// without the header of IP.
var longest = map[string]int{"127.0.0.1": 65_507, "::1": 65_527}

func receive(t *testing.T, r *Receiver, s *Sender) (n int) {
	t.Helper()
	if err := s.Use(func(fd int) error {
		var errno syscall.Errno
		if n, errno = r.Receive(fd); errno != 0 {
			return errno
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Before and after each payload there is room for a header and for padding, which no other datagram uses.
func TestRoomOfDatagramsDoesNotOverlap(t *testing.T) {
	r := newReceiver(t)
	for i := range BatchSize {
		room := r.Room(i)
		for j := range room {
			room[j] = byte(i)
		}
	}
	for i := range BatchSize {
		if room := r.Room(i); len(room) != Headroom+MaxPayload+Tailroom || bytes.Count(room, []byte{byte(i)}) != len(room) {
			t.Errorf("the room of datagram %d was overwritten", i)
		}
	}
}

// A socket for both families reports the source of IPv4 as an IPv4 address, and the destination of each datagram.
func TestReceiverReportsSourceAndDestination(t *testing.T) {
	conn, s := reader(t, "", 0)
	if err := s.Use(ReportDestination); err != nil {
		t.Fatal(err)
	}
	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	r := newReceiver(t)
	for _, asked := range []string{"127.0.0.2", "::1", "127.0.0.3"} {
		host := "127.0.0.1"
		if asked == "::1" {
			host = asked
		}
		client, addr := receiving(t, host)
		to := netip.AddrPortFrom(netip.MustParseAddr(asked), port)
		if _, err := client.WriteToUDPAddrPort([]byte("?"), to); err != nil {
			t.Fatal(err)
		}
		if n := receive(t, r, s); n != 1 || r.From(0) != addr {
			t.Fatalf("%d datagrams, from %v, want %v", n, r.From(0), addr)
		}
		source := SourceOf(r.Control(0))
		if err := s.Send([]byte("!"), addr, &source); err != nil {
			t.Fatal(err)
		}
		if from := expect(t, client, []byte("!")); from.Addr() != netip.MustParseAddr(asked) {
			t.Errorf("asked %s, answered from %v", asked, from)
		}
	}
}

// A flood of long datagrams leaves no memory in use.
func TestLongDatagramsLeaveNoMemory(t *testing.T) {
	socket := sending(t, "127.0.0.1")
	port, err := socket.Port()
	if err != nil {
		t.Fatal(err)
	}
	setOption(t, socket, unix.SO_RCVBUF, 1<<20)
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	r := newReceiver(t)
	for range 3 {
		if err := socket.Send(make([]byte, 65_507), to, nil); err != nil {
			t.Fatal(err)
		}
	}
	pages := func() int {
		resident := make([]byte, (len(r.memory)+unix.Getpagesize()-1)/unix.Getpagesize())
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&r.memory[0])), uintptr(len(r.memory)),
			uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
			t.Fatal(errno)
		}
		return bytes.Count(resident, []byte{1})
	}
	if n := receive(t, r, socket); n == 0 || pages() < n*65_507/unix.Getpagesize() {
		t.Fatalf("%d datagrams use %d pages", n, pages())
	}
	if err := socket.Use(func(fd int) error {
		for errno := syscall.Errno(0); errno == 0; {
			_, errno = r.Receive(fd)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := pages(); n != 0 {
		t.Errorf("%d pages are in use", n)
	}
}

// The same link-local address on two links identifies two clients.
func TestLinkLocalSourceHasItsInterface(t *testing.T) {
	name := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: netip.MustParseAddr("fe80::1").As16(), Scope_id: 7}
	other := name
	other.Scope_id = 8
	if addrPort(&name) == addrPort(&other) || addrPort(&name).Addr().WithZone("") != netip.MustParseAddr("fe80::1") {
		t.Errorf("%v and %v", addrPort(&name), addrPort(&other))
	}
	mapped := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: netip.MustParseAddr("::ffff:192.0.2.1").As16()}
	if got := addrPort(&mapped).Addr(); got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("mapped: %v", got)
	}
}

// G-11: receiving a batch and sending one does not allocate.
func TestReceiverAllocatesNothing(t *testing.T) {
	socket := sending(t, "127.0.0.1")
	port, err := socket.Port()
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	r := newReceiver(t)
	packets := make([]Packet, 8)
	for i := range packets {
		packets[i] = Packet{Payload: make([]byte, 160), To: to}
	}
	if n := testing.AllocsPerRun(100, func() {
		socket.SendAll(packets)
		for got := 0; got < len(packets); {
			got += receive(t, r, socket)
		}
		_ = r.From(0)
	}); n != 0 {
		t.Errorf("%.1f allocations a batch", n)
	}
}
