package datagram

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reader opens a receiving socket on a port, 0 for any.
func reader(t *testing.T, host string, port int) (*net.UDPConn, *Sender) {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(
			c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }),
			err,
		)
	}}
	conn, err := lc.ListenPacket(context.Background(), "udp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSender(conn.(*net.UDPConn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return conn.(*net.UDPConn), s
}

// All datagrams of a client are received by the same reader, with any number of other sockets of the port that only
// send or are closed.
func TestSteeredPortIsReadByItsFirstSockets(t *testing.T) {
	const readers, senders, clients = 3, 40, 60
	var conns []*net.UDPConn
	first, s := reader(t, "", 0)
	port := first.LocalAddr().(*net.UDPAddr).Port
	conns = append(conns, first)
	for range readers - 1 {
		conn, _ := reader(t, "", port)
		conns = append(conns, conn)
	}
	if err := s.Steer(readers); err != nil {
		t.Fatal(err)
	}
	for i := range senders {
		own, err := s.Join(math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = own.Close() })
		if i%3 == 0 {
			if err := own.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		used := map[int]bool{}
		for range clients {
			conn, err := net.Dial("udp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			at := readBy(t, conn, conns)
			used[at] = true
			if again := readBy(t, conn, conns); again != at {
				t.Fatalf("%v was read by socket %d, then by %d", conn.LocalAddr(), at, again)
			}
		}
		if len(used) != readers {
			t.Errorf("%s: %d clients are read by sockets %v, want all %d", host, clients, used, readers)
		}
	}
}

// readBy sends one datagram and returns the index of the socket that has received it.
func readBy(t *testing.T, client net.Conn, conns []*net.UDPConn) int {
	t.Helper()
	if _, err := client.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	i := readable(t, conns)
	if _, _, err := conns[i].ReadFrom(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return i
}

// readable waits for a datagram at one of the sockets and returns its index.
func readable(t *testing.T, conns []*net.UDPConn) int {
	t.Helper()
	sockets := make([]unix.PollFd, len(conns))
	for i, c := range conns {
		raw, err := c.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { sockets[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const timeout = 5000 // ms
	n, err := unix.Poll(sockets, timeout)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(sockets, timeout)
	}
	if n != 1 || err != nil {
		t.Fatalf("%d sockets have received the datagram, %v", n, err)
	}
	return slices.IndexFunc(sockets, func(s unix.PollFd) bool { return s.Revents&unix.POLLIN != 0 })
}

func TestSenderSendsFromItsPortToEitherFamily(t *testing.T) {
	conn, s := reader(t, "", 0)
	port := conn.LocalAddr().(*net.UDPAddr).Port
	own, err := s.Join(math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, host := range []string{"127.0.0.1", "::1"} {
		client, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		to := client.LocalAddr().(*net.UDPAddr).AddrPort()
		for _, size := range []int{0, 1, 1200, 60_000} {
			if err := own.Send(make([]byte, size), to, nil); err != nil {
				t.Fatal(err)
			}
			if err := client.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, from, err := client.ReadFrom(make([]byte, 65535))
			if err != nil || n != size || from.(*net.UDPAddr).Port != port {
				t.Errorf("%s: %d bytes from %v, %v; want %d from port %d", host, n, from, err, size, port)
			}
		}
	}
}

func TestSenderOfIPv4(t *testing.T) {
	conn, s := reader(t, "127.0.0.1", 0)
	to := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	for _, to := range []netip.AddrPort{to, netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())} {
		if err := s.Send([]byte("hello"), to, nil); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 16)); n != 5 || err != nil {
			t.Errorf("to %v: %d bytes, %v", to, n, err)
		}
	}
}

func TestSenderLeavesScarceDescriptorsAlone(t *testing.T) {
	_, s := reader(t, "", 0)
	if own, err := s.Join(2); !errors.Is(err, ErrScarce) || own != nil {
		t.Errorf("%v, %v, want %v", own, err, ErrScarce)
	}
}

func TestClosedSenderSendsNothing(t *testing.T) {
	_, s := reader(t, "", 0)
	own, err := s.Join(math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := own.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := own.Send(nil, netip.MustParseAddrPort("127.0.0.1:9"), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("send: %v, want %v", err, net.ErrClosed)
	}
	if n := own.Drops(); n != 0 {
		t.Errorf("%d drops", n)
	}
}

// A socket can be closed while its reader sends from it.
func TestSenderIsClosedWhileItsReaderSends(t *testing.T) {
	conn, s := reader(t, "127.0.0.1", 0)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	self := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	reading, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = raw.Read(func(uintptr) bool {
			close(reading)
			for s.Send(nil, self, nil) != net.ErrClosed {
			}
			return true
		})
	}()
	<-reading
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for range 2 {
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
			closed = nil
		case <-done:
			done = nil
		case <-time.After(30 * time.Second):
			t.Fatal("Close and the reader wait for each other")
		}
	}
}

func TestDropsOfAFullReceiveBufferAreCounted(t *testing.T) {
	conn, s := reader(t, "127.0.0.1", 0)
	if err := conn.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	to := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	for range 1000 {
		if err := s.Send(make([]byte, 1000), to, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Drops(); n < 900 || n >= 1000 {
		t.Errorf("%d of 1,000 datagrams were dropped", n)
	}
}

// BenchmarkSend measures a datagram over loopback, with its delivery.
func BenchmarkSend(b *testing.B) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	s, err := NewSender(conn)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	to, frame := conn.LocalAddr().(*net.UDPAddr).AddrPort(), make([]byte, 160)
	b.Run("Sender", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = s.Send(frame, to, nil)
		}
	})
	b.Run("UDPConn", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = conn.WriteToUDPAddrPort(frame, to)
		}
	})
}
