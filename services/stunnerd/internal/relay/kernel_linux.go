package relay

import (
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
	// ICMP makes sockets pass ICMP messages to clients (RFC 8656 §11.5). Without it, sockets only count them.
	ICMP bool
	// Local reports whether an address is assigned to this host. A nil Local means false for every address.
	Local func(netip.Addr) bool
	// Ports assigns the ports of sockets. If it is nil, the kernel chooses them.
	Ports *Ports
	// Pollers receive the datagrams of peers.
	Pollers *Pollers
}

// Open implements Network.
func (k Kernel) Open(advertised netip.Addr, port uint16) (Socket, error) {
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

// SendsWhole implements Network.
func (Kernel) SendsWhole() bool { return datagram.SendsWhole() }

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
	return k.Ports.openEven(k, advertised, next)
}

// open opens a socket on a port. For port 0 the kernel selects the port. The error is ErrNoRoom if no file descriptor
// is left for clients.
func (k Kernel) open(advertised netip.Addr, port uint16) (*kernelSocket, error) {
	wildcard := netip.IPv4Unspecified()
	if advertised.Is6() {
		wildcard = netip.IPv6Unspecified()
	}
	at := wildcard
	if k.bindsTo(advertised) {
		at = advertised
	}
	most, err := highest()
	if err != nil {
		return nil, err
	}
	sender, err := datagram.Listen(netip.AddrPortFrom(at, port), most)
	if errors.Is(err, unix.EADDRNOTAVAIL) && at != wildcard { // the address was removed meanwhile
		at = wildcard
		sender, err = datagram.Listen(netip.AddrPortFrom(at, port), most)
	}
	switch {
	case errors.Is(err, datagram.ErrScarce), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return nil, errors.Join(ErrNoRoom, err)
	case err != nil:
		return nil, err
	}
	s := &kernelSocket{Sender: sender, pollers: k.Pollers, addr: at, port: port}
	sender.Retry = s.removePending
	s.indicate = k.ICMP
	if err := s.prepare(advertised.Is6()); err != nil {
		return nil, errors.Join(err, sender.Close())
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

// kernelSocket is a UDP socket that a poller reads.
type kernelSocket struct {
	*datagram.Sender
	addr    netip.Addr
	port    uint16
	pollers *Pollers
	// indicate is set if ICMP messages are passed to the client.
	indicate bool
	// closed is a function that is called once when the socket is closed, or nil.
	closed  func()
	closing sync.Once

	// starting serializes Start and Close.
	starting sync.Mutex
	ended    bool // Close was called
	// Start sets these fields.
	receiver Receiver
	poller   *poller
	slot     int32 // in the poller
}

// prepare sets the options of a new socket.
func (s *kernelSocket) prepare(six bool) (err error) {
	if s.port == 0 {
		if s.port, err = s.Sender.Port(); err != nil {
			return fmt.Errorf("get port: %w", err)
		}
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if six {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err := s.Use(func(fd int) error { return unix.SetsockoptInt(fd, level, option, 1) }); err != nil {
		return fmt.Errorf("ask for ICMP errors: %w", err)
	}
	return s.EnlargeBuffer()
}

// Port implements Socket.
func (s *kernelSocket) Port() uint16 { return s.port }

// Bound implements Socket.
func (s *kernelSocket) Bound() netip.AddrPort { return netip.AddrPortFrom(s.addr, s.port) }

// Start implements Socket.
func (s *kernelSocket) Start(r Receiver) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.ended {
		return net.ErrClosed
	}
	s.receiver = r
	if err := s.pollers.add(s); err != nil {
		return fmt.Errorf("receive from relay socket: %w", err)
	}
	return nil
}

// maxErrors bounds the ICMP errors that one Send or one receipt removes from the socket, because a peer may cause
// errors faster than they are removed.
const maxErrors = 32

// Close implements Socket.
func (s *kernelSocket) Close() (err error) {
	s.closing.Do(func() {
		s.stop()
		err = s.Sender.Close()
		if s.closed != nil {
			s.closed()
		}
	})
	return err
}

// stop reverts Start, and makes a later Start fail.
func (s *kernelSocket) stop() {
	s.starting.Lock()
	defer s.starting.Unlock()
	s.ended = true
	if s.poller != nil {
		s.poller.remove(s)
	}
}

// Send implements Socket.
func (s *kernelSocket) Send(packets []datagram.Packet) {
	if len(packets) == 1 && packets[0].Whole {
		s.SendWhole(&packets[0])
		return
	}
	s.SendAll(packets)
}

// removePending removes the pending errors of earlier datagrams from a socket. If an ICMP error is pending, for any
// peer, the kernel returns it instead of sending. removePending reports whether the error of a send may be such an
// error.
func (s *kernelSocket) removePending(fd int, err syscall.Errno) bool {
	if !isPending(err) {
		return false
	}
	more := true
	for n := 0; more && n < maxErrors; n++ {
		var peer netip.AddrPort
		if _, peer, more = nextICMP(fd); peer.IsValid() && s.receiver != nil {
			s.receiver.Unreachable(peer)
		}
	}
	return true
}

// isPending reports whether an error of a send may belong to an earlier datagram. The kernel gets such an error from an
// ICMP message.
func isPending(err syscall.Errno) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENOPROTOOPT,
		unix.EACCES, unix.EPROTO, unix.EMSGSIZE:
		return true
	}
	return false
}

// nextICMP removes one message from the error queue of a socket. peer is invalid if the message is not an ICMP message
// for clients. more is false if the queue was empty.
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
	if !why.forClients(peer) {
		peer = netip.AddrPort{}
	}
	return why, peer, true
}
