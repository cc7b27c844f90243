package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// newPeer opens a UDP socket on 127.0.0.1.
func newPeer(t testing.TB) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// closedPort returns a port of 127.0.0.1 without a socket.
func closedPort(t testing.TB) netip.AddrPort {
	t.Helper()
	conn, addr := newPeer(t)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	return addr
}

// open opens a relay socket on 127.0.0.1.
func open(t testing.TB, network Kernel) (s *kernelSocket, addr netip.AddrPort) {
	t.Helper()
	socket, err := network.Open(loopback, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return socket.(*kernelSocket), netip.AddrPortFrom(loopback, socket.Port())
}

// receiverFunc is a Receiver.
type receiverFunc func([]Datagram)

func (f receiverFunc) ReceiveBatch(batch []Datagram, _ time.Time) { f(batch) }

func (f receiverFunc) Unreachable(netip.AddrPort) {}

func write(t testing.TB, from *net.UDPConn, to netip.AddrPort, payload string) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte(payload), to); err != nil {
		t.Fatal(err)
	}
}

// after returns a value from a channel, or fails after a timeout.
func after[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing happened")
	}
	return v
}

// A poller receives from many sockets. Each datagram is passed to the receiver of its socket, while slots are reused
// many times.
func TestPollerServesManySockets(t *testing.T) {
	const sockets, rounds = 300, 3
	network := newKernel(t)
	p := network.Pollers.pollers[0]
	peer, _ := newPeer(t)
	for round := range rounds {
		var open [sockets]Socket
		got := make(chan [2]int, sockets)
		for i := range open {
			s, err := network.Open(loopback, 0)
			if err != nil {
				t.Fatal(err)
			}
			open[i] = s
			if err := s.Start(receiverFunc(func(batch []Datagram) {
				for _, d := range batch {
					got <- [2]int{i, int(d.Payload()[0])<<8 | int(d.Payload()[1])}
				}
			})); err != nil {
				t.Fatal(err)
			}
		}
		for i, s := range open {
			write(t, peer, netip.AddrPortFrom(loopback, s.Port()), string([]byte{byte(i >> 8), byte(i)}))
		}
		for range open {
			if at := after(t, got); at[0] != at[1] {
				t.Fatalf("socket %d received the datagram for socket %d", at[0], at[1])
			}
		}
		closeAll(t, open[:]...)
		if len(p.slots) != sockets || len(p.free) != sockets {
			t.Fatalf("round %d: %d slots, %d of them free, want %d", round, len(p.slots), len(p.free), sockets)
		}
	}
}

// A datagram that arrives while the poller handles another datagram is received without a further event, at the same
// socket and at another socket.
func TestDatagramWhileAnotherIsPassedOn(t *testing.T) {
	network := newKernel(t)
	peer, _ := newPeer(t)
	one, oneAddr := open(t, network)
	other, otherAddr := open(t, network)
	got := make(chan string, 10)
	if err := one.Start(receiverFunc(func(batch []Datagram) {
		for _, d := range batch {
			if string(d.Payload()) == "first" {
				write(t, peer, oneAddr, "second")
				write(t, peer, otherAddr, "third")
			}
			got <- string(d.Payload())
		}
	})); err != nil {
		t.Fatal(err)
	}
	if err := other.Start(receiverFunc(func(batch []Datagram) { got <- string(batch[0].Payload()) })); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		write(t, peer, oneAddr, "first")
		received := []string{after(t, got), after(t, got), after(t, got)}
		slices.Sort(received)
		if !slices.Equal(received, []string{"first", "second", "third"}) {
			t.Fatalf("received %q", received)
		}
	}
}

// An event of a closed socket is not taken for an event of the next socket in its slot.
func TestEventOfAClosedSocketIsIgnored(t *testing.T) {
	network := newKernel(t)
	p := network.Pollers.pollers[0]
	ignore := receiverFunc(func([]Datagram) {})
	first, _ := open(t, network)
	if err := first.Start(ignore); err != nil {
		t.Fatal(err)
	}
	event := unix.EpollEvent{Fd: first.slot, Pad: p.slots[first.slot].use}
	if p.socket(&event) != first {
		t.Fatal("the event does not belong to the socket")
	}
	closeAll(t, first)
	if s := p.socket(&event); s != nil {
		t.Errorf("the event belongs to %v after Close", s)
	}
	second, _ := open(t, network)
	if err := second.Start(ignore); err != nil {
		t.Fatal(err)
	}
	if second.slot != first.slot || p.socket(&event) != nil {
		t.Errorf("slot %d, then %d: the event belongs to the next socket", first.slot, second.slot)
	}
	p.receive(first, unix.EPOLLIN|unix.EPOLLERR, time.Now()) // an event that was in progress during Close
}

// While datagrams are received, the receiver and other goroutines may close the socket.
func TestCloseWhileReceiving(t *testing.T) {
	network := newKernel(t)
	peer, _ := newPeer(t)
	for range 200 {
		s, addr := open(t, network)
		received := make(chan struct{}, 1)
		closed := make(chan error, 2)
		if err := s.Start(receiverFunc(func([]Datagram) {
			select {
			case received <- struct{}{}:
				closed <- s.Close()
			default:
			}
		})); err != nil {
			t.Fatal(err)
		}
		write(t, peer, addr, "one")
		after(t, received)
		go func() { closed <- s.Close() }()
		for range 2 {
			if err := after(t, closed); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Start of a socket that is being closed leaves no slot in use.
func TestStartDuringClose(t *testing.T) {
	network := newKernel(t)
	p := network.Pollers.pollers[0]
	for range 1000 {
		s, _ := open(t, network)
		var both sync.WaitGroup
		begin := make(chan struct{})
		both.Go(func() {
			<-begin
			if err := s.Start(receiverFunc(func([]Datagram) {})); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
		both.Go(func() {
			<-begin
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		close(begin)
		both.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) != len(p.slots) {
		t.Errorf("%d of %d slots are free", len(p.free), len(p.slots))
	}
	s, _ := open(t, network)
	closeAll(t, s)
	if err := s.Start(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("start after Close: %v", err)
	}
}

// Starting a socket after the pollers were closed returns an error.
func TestStartAfterTheEndOfThePollers(t *testing.T) {
	pollers, err := NewPollers(2)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(pollers.Tasks()); n != 2 {
		t.Errorf("%d tasks", n)
	}
	s, _ := open(t, Kernel{Pollers: pollers})
	if err := pollers.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(receiverFunc(func([]Datagram) {})); err == nil {
		t.Error("the socket was started")
	}
}

// A socket with a full receive buffer does not delay other sockets: their datagrams are received before its buffer is
// empty, and each batch is bounded.
func TestFloodedSocketDelaysNoOther(t *testing.T) {
	network := newKernel(t)
	peer, _ := newPeer(t)
	blocking, blockingAddr := open(t, network)
	held, hold := make(chan struct{}), make(chan struct{})
	if err := blocking.Start(receiverFunc(func([]Datagram) { close(held); <-hold })); err != nil {
		t.Fatal(err)
	}
	write(t, peer, blockingAddr, "hold")
	after(t, held) // the poller is busy until all datagrams are in the receive buffers
	flooded, floodedAddr := open(t, network)
	other, otherAddr := open(t, network)
	const datagrams = 3 * datagram.BatchSize
	order := make(chan string, datagrams+1)
	for s, name := range map[*kernelSocket]string{flooded: "flooded", other: "other"} {
		if err := s.Start(receiverFunc(func(batch []Datagram) {
			if len(batch) > datagram.BatchSize+maxErrors {
				t.Errorf("a batch of %d", len(batch))
			}
			for range batch {
				order <- name
			}
		})); err != nil {
			t.Fatal(err)
		}
	}
	for range datagrams {
		write(t, peer, floodedAddr, "x")
	}
	write(t, peer, otherAddr, "y")
	close(hold)
	before := 0
	for after(t, order) == "flooded" {
		before++
	}
	if before > datagram.BatchSize {
		t.Errorf("%d datagrams of the flooded socket were received before the one of the other", before)
	}
	for range datagrams - before {
		after(t, order)
	}
}

// While ICMP errors arrive faster than they are read, datagrams of other peers are received.
func TestICMPFloodDoesNotStopDatagrams(t *testing.T) {
	network := newKernel(t)
	network.ICMP = true
	s, addr := open(t, network)
	peer, _ := newPeer(t)
	gone := closedPort(t)
	const rounds = 20
	got := make(chan string, 1000)
	if err := s.Start(receiverFunc(func(batch []Datagram) {
		for _, d := range batch {
			if d.icmp == (ICMP{}) {
				got <- string(d.Payload())
			}
		}
		flood(s, gone) // an error is pending at the next receive
	})); err != nil {
		t.Fatal(err)
	}
	flood(s, gone)
	for range rounds {
		write(t, peer, addr, "data")
		if after(t, got) != "data" {
			t.Error("another payload")
		}
	}
	closeAll(t, s)
}

// flood causes more ICMP errors than one call of receive removes.
func flood(s *kernelSocket, gone netip.AddrPort) {
	_ = s.Use(func(fd int) error {
		to := &unix.SockaddrInet4{Port: int(gone.Port()), Addr: gone.Addr().As4()}
		for range 2 * maxErrors {
			_ = unix.Sendto(fd, []byte("to nobody"), unix.MSG_DONTWAIT, to)
		}
		return nil
	})
}

// When the ICMP errors of a socket have been read, its poller sleeps.
func TestReadErrorsLeaveNoEvent(t *testing.T) {
	network := newKernel(t)
	network.ICMP = true
	s, _ := open(t, network)
	p := network.Pollers.pollers[0]
	gone := closedPort(t)
	messages := make(chan struct{}, 100)
	if err := s.Start(receiverFunc(func(batch []Datagram) {
		for range batch {
			messages <- struct{}{}
		}
	})); err != nil {
		t.Fatal(err)
	}
	packet := []datagram.Packet{{Payload: []byte("to nobody"), To: gone}}
	if s.Send(packet); packet[0].Err != nil {
		t.Fatal(packet[0].Err)
	}
	after(t, messages)
	if err := p.raw.Control(func(epoll uintptr) {
		if n, err := unix.EpollWait(int(epoll), make([]unix.EpollEvent, 1), 0); n > 0 || err != nil {
			t.Errorf("%d events, %v", n, err)
		}
	}); err != nil {
		t.Error(err)
	}
}

// A pending ICMP error about one peer neither drops nor reorders the datagrams to others.
func TestPendingErrorReordersNothing(t *testing.T) {
	network := newKernel(t)
	network.ICMP = true
	s, _ := open(t, network)
	one, toOne := newPeer(t)
	other, toOther := newPeer(t)
	gone := closedPort(t)
	for range 20 {
		packets := []datagram.Packet{{Payload: []byte("to nobody"), To: gone}}
		if s.Send(packets); packets[0].Err != nil {
			t.Fatal(packets[0].Err)
		}
		packets = packets[:0]
		for i := range 6 {
			packets = append(packets, datagram.Packet{Payload: []byte{byte(i)}, To: []netip.AddrPort{toOne, toOther}[i%2]})
		}
		s.Send(packets)
		for i, p := range packets {
			if p.Err != nil {
				t.Fatalf("datagram %d: %v", i, p.Err)
			}
			buf, conn := make([]byte, 16), []*net.UDPConn{one, other}[i%2]
			if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(buf); err != nil || !bytes.Equal(buf[:n], p.Payload) {
				t.Fatalf("datagram %d: got %x, %v", i, buf[:n], err)
			}
		}
	}
}

// An ICMPv6 message of type 0, which has no meaning, is not taken for a datagram of the peer that the message quotes.
func TestICMPOfAnUnknownTypeIsIgnored(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	network := newKernel(t)
	network.ICMP = true
	socket, err := network.Open(netip.IPv6Loopback(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	in := make(inbox, 2)
	if err := socket.Start(in); err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv6Loopback(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	raw, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	one := netip.IPv6Loopback().As16()
	message := make([]byte, 8) // type 0, code 0
	// The datagram that the message quotes: IPv6 header, then UDP header.
	message = append(message, 0x60, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 64)
	message = append(append(message, one[:]...), one[:]...)
	for _, field := range []uint16{socket.Port(), peer.Port(), 8, 0} {
		message = binary.BigEndian.AppendUint16(message, field)
	}
	if err := unix.Sendto(raw, message, 0, &unix.SockaddrInet6{Addr: one}); err != nil {
		t.Fatal(err)
	}
	write(t, conn, netip.AddrPortFrom(netip.IPv6Loopback(), socket.Port()), "data")
	if d := after(t, in); string(d.Payload()) != "data" || d.peer != peer {
		t.Errorf("got %q from %v and ICMP %+v", d.Payload(), d.peer, d.icmp)
	}
}

// The use of a slot is compared as it is stored in an event, also after it has overflowed.
func TestUseOfASlotOverflows(t *testing.T) {
	network := newKernel(t)
	p := network.Pollers.pollers[0]
	p.slots, p.free = []slot{{use: math.MaxInt32}}, []int32{0}
	peer, _ := newPeer(t)
	for range 2 {
		s, addr := open(t, network)
		in := make(inbox, 1)
		if err := s.Start(in); err != nil {
			t.Fatal(err)
		}
		write(t, peer, addr, "data")
		after(t, in)
		closeAll(t, s)
	}
}
