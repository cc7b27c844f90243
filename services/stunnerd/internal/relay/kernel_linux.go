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

// Kernel is the network of this host.
type Kernel struct {
	// ICMP has its sockets hear of datagrams that did not arrive (RFC 8656 §11.5).
	ICMP bool
	// Local tells whether an address is one of this host. Without it none is.
	Local func(netip.Addr) bool
	// Ports are those that sockets may have; nil leaves the choice to the kernel.
	Ports *Ports
}

// Open is part of Network.
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

// orNone keeps a nil pointer from becoming a Socket that is not nil.
func orNone(s *kernelSocket, err error) (Socket, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openEven is part of evenOpener.
func (k Kernel) openEven(advertised netip.Addr, next bool) (even, odd Socket, err error) {
	if k.Ports == nil {
		return tryEven(k, advertised, next)
	}
	if err := Room(); err != nil {
		return nil, nil, fmt.Errorf("open relay socket: %w", err)
	}
	return k.Ports.openEven(k, advertised, next)
}

// open opens a socket on a port, or on one that the kernel chooses when that is 0.
func (k Kernel) open(advertised netip.Addr, port uint16) (*kernelSocket, error) {
	network, level, option := "udp4", unix.IPPROTO_IP, unix.IP_RECVERR
	if advertised.Is6() {
		network, level, option = "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	at := net.UDPAddr{Port: int(port)}
	if k.speaksFrom(advertised) {
		at.IP = advertised.AsSlice()
	}
	conn, err := net.ListenUDP(network, &at)
	if errors.Is(err, unix.EADDRNOTAVAIL) && at.IP != nil { // the host has just lost the address
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

// speaksFrom tells whether sockets are bound to the address that clients are told, so that peers see it (RFC 8656 §11). An address that is
// not of this host, such as that of a NAT, cannot be bound. 127.0.0.1 and ::1 need not be: loopback peers see them anyway, and a socket that
// is bound to them reaches no container of this host.
func (k Kernel) speaksFrom(advertised netip.Addr) bool {
	return k.Local != nil && advertised != loopback4 && advertised != netip.IPv6Loopback() && k.Local(advertised)
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// kernelSocket is a UDP socket. It differs from net.UDPConn in three ways: it takes a buffer only once there is something to read, it never
// waits when it sends, and it can report ICMP messages.
type kernelSocket struct {
	*datagram.Sender
	conn    *net.UDPConn
	raw     syscall.RawConn
	attempt func(fd uintptr) bool
	// closed is called, once, when the socket is closed; nil where nobody needs to know.
	closed  func()
	closing sync.Once

	// What attempt has read; it belongs to the goroutine that receives.
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
		if err := raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil || opt != nil {
			return nil, fmt.Errorf("ask for ICMP errors: %w", errors.Join(err, opt))
		}
	}
	sender, err := datagram.NewSender(conn)
	if err != nil {
		return nil, err
	}
	if err := sender.Widen(); err != nil {
		return nil, err
	}
	s := &kernelSocket{Sender: sender, conn: conn, raw: raw}
	s.attempt = s.tryReceive
	return s, nil
}

// Port is part of Socket.
func (s *kernelSocket) Port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// maxErrors bounds the ICMP errors that one send takes from the socket. A peer may cause more of them than there is time for.
const maxErrors = 32

// Close is part of Socket.
func (s *kernelSocket) Close() error {
	err := s.Sender.Close()
	if s.closed != nil {
		s.closing.Do(s.closed)
	}
	return err
}

// Send is part of Socket. In place of sending a datagram the kernel reports the ICMP error of an earlier one, to any peer. Then the datagram is sent
// again.
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

// isPending tells the errors that ICMP leaves on a socket.
func isPending(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENOPROTOOPT, unix.EACCES, unix.EPROTO, unix.EMSGSIZE:
		return true
	}
	return false
}

// Receive is part of Socket.
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

// tryReceive reads without waiting and reports whether there was something to read, an error included.
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

// port reads a port in network byte order.
func port(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// nextICMP takes one message from a socket's error queue, as long as there is one: what came back, and for which peer; no peer when it
// was not ICMP.
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
