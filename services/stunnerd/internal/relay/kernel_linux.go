package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// Kernel is the Network that opens sockets in the kernel of this host.
type Kernel struct {
	// ICMP makes sockets receive ICMP messages (RFC 8656 §11.5).
	ICMP bool
	// Local reports whether an address is assigned to this host. A nil Local means false for every address.
	Local func(netip.Addr) bool
	// Ports assigns the ports of sockets. If it is nil, the kernel chooses them.
	Ports *Ports
}

// Open implements Network.
func (k Kernel) Open(advertised netip.Addr, port uint16) (Socket, error) {
	if err := Room(); err != nil {
		return nil, fmt.Errorf("open relay socket: %w", err)
	}
	var s Socket
	var err error
	switch {
	case k.Ports == nil:
		s, err = orNone(k.open(advertised, port))
	case port == 0:
		s, err = k.Ports.open(k, advertised)
	default:
		s, err = k.Ports.openAt(k, advertised, port)
	}
	if err != nil {
		return nil, fmt.Errorf("open relay socket: %w", err)
	}
	return s, nil
}

// orNone returns a nil Socket after an error. A nil *kernelSocket that is converted to Socket would not be equal to
// nil.
func orNone(s *kernelSocket, err error) (Socket, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openEven implements evenOpener.
func (k Kernel) openEven(advertised netip.Addr, next bool) (even, odd Socket, err error) {
	if k.Ports == nil {
		return tryEven(k, advertised, next)
	}
	if err := Room(); err != nil {
		return nil, nil, fmt.Errorf("open relay socket: %w", err)
	}
	return k.Ports.openEven(k, advertised, next)
}

// open opens a socket on a port. For port 0 the kernel selects the port.
func (k Kernel) open(advertised netip.Addr, port uint16) (*kernelSocket, error) {
	network, level, option := "udp4", unix.IPPROTO_IP, unix.IP_RECVERR
	if advertised.Is6() {
		network, level, option = "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	at := net.UDPAddr{Port: int(port)}
	if k.bindsTo(advertised) {
		at.IP = advertised.AsSlice()
	}
	conn, err := net.ListenUDP(network, &at)
	if errors.Is(err, unix.EADDRNOTAVAIL) && at.IP != nil { // the address was removed meanwhile
		at.IP = nil
		conn, err = net.ListenUDP(network, &at)
	}
	if err != nil {
		return nil, err
	}
	s, err := k.socket(conn, level, option)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// bindsTo reports whether sockets are bound to an advertised address, so that peers see it (RFC 8656 §11). An address
// that is not assigned to this host, such as the address of a NAT, cannot be bound. 127.0.0.1 and ::1 are not bound:
// loopback peers see them anyway, and a socket that is bound to loopback cannot reach containers of this host.
func (k Kernel) bindsTo(advertised netip.Addr) bool {
	return k.Local != nil && advertised != loopback4 && advertised != netip.IPv6Loopback() && k.Local(advertised)
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// kernelSocket is a UDP socket. In contrast to net.UDPConn, it holds no buffer while it waits for a datagram, it never
// waits for room in the send buffer, and it can report ICMP messages.
type kernelSocket struct {
	*datagram.Sender
	conn    *net.UDPConn
	raw     syscall.RawConn
	attempt func(fd uintptr) bool
	// closed is a function that is called once when the socket is closed, or nil.
	closed  func()
	closing sync.Once

	// Results of tryReceive. Only the goroutine that calls Receive uses them.
	got     *Buffer
	errno   syscall.Errno
	from    unix.RawSockaddrAny
	fromLen uint32
}

func (k Kernel) socket(conn *net.UDPConn, level, option int) (*kernelSocket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get raw socket: %w", err)
	}
	if k.ICMP {
		var opt error
		err := raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), level, option, 1) })
		if err != nil || opt != nil {
			return nil, fmt.Errorf("ask for ICMP errors: %w", errors.Join(err, opt))
		}
	}
	sender, err := datagram.NewSender(conn)
	if err != nil {
		return nil, err
	}
	if err := sender.EnlargeBuffer(); err != nil {
		return nil, err
	}
	s := &kernelSocket{Sender: sender, conn: conn, raw: raw}
	s.attempt = s.tryReceive
	return s, nil
}

// Port implements Socket.
func (s *kernelSocket) Port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// maxErrors bounds the ICMP errors that one Send removes from the socket, because a peer may cause errors faster than
// they are removed.
const maxErrors = 32

// Close implements Socket.
func (s *kernelSocket) Close() error {
	err := s.Sender.Close()
	if s.closed != nil {
		s.closing.Do(s.closed)
	}
	return err
}

// Send implements Socket. If an ICMP error for an earlier datagram is pending, for any peer, the kernel returns it and
// does not send. Then Send removes the pending errors and sends again.
func (s *kernelSocket) Send(payload []byte, peer netip.AddrPort) error {
	err := s.Sender.Send(payload, peer, nil)
	if !isPending(err) {
		return err
	}
	_ = s.raw.Control(func(fd uintptr) {
		more := true
		for n := 0; more && n < maxErrors; n++ {
			_, _, more = nextICMP(int(fd))
		}
	})
	return s.Sender.Send(payload, peer, nil)
}

// isPending reports whether an error of a send may be the error of an earlier datagram, which the kernel has learned
// from an ICMP message.
func isPending(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENOPROTOOPT,
		unix.EACCES, unix.EPROTO, unix.EMSGSIZE:
		return true
	}
	return false
}

// Receive implements Socket.
func (s *kernelSocket) Receive() (*Buffer, error) {
	if err := s.raw.Read(s.attempt); err != nil {
		return nil, err
	}
	got := s.got
	s.got = nil
	if s.errno != 0 {
		got.release()
		return nil, s.errno
	}
	return got, nil
}

// tryReceive receives one datagram without waiting. It reports false if there was none.
func (s *kernelSocket) tryReceive(fd uintptr) bool {
	b := newBuffer()
	for {
		s.fromLen = unix.SizeofSockaddrAny
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd,
			uintptr(unsafe.Pointer(&b.bytes[headerSize])), maxDatagram, unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(&s.from)), uintptr(unsafe.Pointer(&s.fromLen)))
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			b.release()
			return false
		case errno == 0:
			b.n, b.peer = int(n), s.peer()
		default:
			if why, peer, _ := nextICMP(int(fd)); peer.IsValid() {
				b.n, b.peer, b.icmp, errno = 0, peer, why, 0
			}
		}
		s.got, s.errno = b, errno
		return true
	}
}

func (s *kernelSocket) peer() netip.AddrPort {
	if s.from.Addr.Family == unix.AF_INET {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.from))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), port(&sa.Port))
	}
	sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.from))
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port(&sa.Port))
}

// port returns a port that is stored in network byte order.
func port(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// nextICMP removes one message from the error queue of a socket. peer is invalid if the message is not an ICMP message.
// more is false if the queue was empty.
func nextICMP(fd int) (why ICMP, peer netip.AddrPort, more bool) {
	var control [256]byte
	_, n, _, to, err := unix.Recvmsg(fd, nil, control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return why, peer, false
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 || len(messages[0].Data) < int(unsafe.Sizeof(unix.SockExtendedErr{})) {
		return why, peer, true
	}
	said := (*unix.SockExtendedErr)(unsafe.Pointer(&messages[0].Data[0]))
	if said.Origin != unix.SO_EE_ORIGIN_ICMP && said.Origin != unix.SO_EE_ORIGIN_ICMP6 {
		return why, peer, true
	}
	why.Type, why.Code = said.Type, said.Code
	if said.Errno == uint32(unix.EMSGSIZE) {
		why.Data = said.Info
	}
	switch to := to.(type) {
	case *unix.SockaddrInet4:
		peer = netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port))
	case *unix.SockaddrInet6:
		peer = netip.AddrPortFrom(netip.AddrFrom16(to.Addr), uint16(to.Port))
	}
	return why, peer, true
}
