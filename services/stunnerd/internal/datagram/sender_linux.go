// Package datagram sends UDP datagrams without waiting.
//
// The kernel charges a datagram to the send buffer of its socket until the datagram has left the host. A datagram to an
// unresolved neighbour stays in the buffer for three seconds, and a datagram for a slow link as long as the link is
// busy. A goroutine that waits for room in the buffer would delay all clients that it serves. So a send never waits:
// without room the datagram is dropped, and the caller counts it. One client could also fill a buffer that it shares
// with others. So a client to which data is sent has a Sender of its own if there are enough file descriptors. Its
// socket does not slow down receiving (see Steer).
//
// # Files
//
//	sender_linux.go batch_linux.go  sends, one and in batches
//	whole_linux.go                  sends without fragmentation
//	receiver_linux.go               receiving in batches
//	steer_linux.go                  which sockets of a port receive
//	source_linux.go                 the stored source address of answers
package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrCongested is the error for a datagram that was dropped because the send buffer of its socket, or the queue of the
// network device, is full.
var ErrCongested = errors.New("send buffer is full")

// Sender sends datagrams from one socket. Its methods may be called from several goroutines at a time.
type Sender struct {
	family int // AF_INET for IPv4 only, AF_INET6 for IPv6 and IPv4
	// unsegmented is set when the kernel has refused to cut a message into datagrams (see SendAll).
	unsegmented atomic.Bool
	// Retry is called with the error of a datagram that SendAll could not send. If it returns true, SendAll sends the
	// datagram once more, before the next datagrams. A nil Retry means that there is no second attempt. Retry must be
	// set before the first SendAll.
	Retry func(fd int, err syscall.Errno) bool

	// mu keeps the descriptor open during a system call, because the kernel reuses the number of a closed descriptor.
	mu      sync.RWMutex
	fd      int
	release func() error // nil when the Sender is closed
}

// NewSender returns a Sender for the socket of conn. Close closes conn.
func NewSender(conn *net.UDPConn) (*Sender, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get descriptor of UDP socket: %w", err)
	}
	s := &Sender{release: conn.Close}
	var opt error
	err = raw.Control(func(fd uintptr) {
		s.fd = int(fd)
		s.family, opt = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	})
	if err := errors.Join(err, opt); err != nil {
		return nil, fmt.Errorf("get family of UDP socket: %w", err)
	}
	return s, nil
}

// Listen opens a UDP socket on an address and returns it as a Sender. Port 0 lets the kernel select the port. A socket
// on an IPv6 address does not serve IPv4. The error is ErrScarce, as for Join, or wraps a syscall.Errno.
func Listen(local netip.AddrPort, most int) (*Sender, error) {
	family := unix.AF_INET6
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := open(family, most)
	if err != nil {
		return nil, err
	}
	var name unix.RawSockaddrInet6
	length := fill(&name, family, local)
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		_, _, errno := syscall.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(length))
		if errno != 0 {
			err = errno
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bind UDP socket to %s: %w", local, err), unix.Close(fd))
	}
	return &Sender{family: family, fd: fd, release: func() error { return unix.Close(fd) }}, nil
}

// Port returns the local port.
func (s *Sender) Port() (port uint16, err error) {
	err = s.Use(func(fd int) error {
		name, err := unix.Getsockname(fd)
		switch name := name.(type) {
		case *unix.SockaddrInet4:
			port = uint16(name.Port)
		case *unix.SockaddrInet6:
			port = uint16(name.Port)
		}
		return err
	})
	return port, err
}

// ErrScarce is the error of Listen and Join if too many file descriptors are in use.
var ErrScarce = errors.New("descriptors are scarce")

// open opens a UDP socket. The error is ErrScarce if the number of the descriptor is above most. The kernel assigns the
// lowest free number, so the number is about the number of open descriptors.
func open(family, most int) (fd int, err error) {
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, fmt.Errorf("open UDP socket: %w", err)
	}
	if fd > most {
		return 0, errors.Join(ErrScarce, unix.Close(fd))
	}
	return fd, nil
}

// Share sets SO_REUSEPORT on a socket that was bound without it, so that Join is possible. The socket is bound without
// the option because the kernel then selects a port that no other socket uses.
func (s *Sender) Share() error {
	return s.Use(func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("share port of UDP socket: %w", err)
		}
		return nil
	})
}

// Join returns a Sender with its own socket on the address and port of s. All sockets of the port must have
// SO_REUSEPORT. The new socket receives nothing if Steer was called for the port. The error is ErrScarce if the number
// of the new descriptor is above most, and net.ErrClosed if s is closed.
func (s *Sender) Join(most int) (joined *Sender, err error) {
	err = s.Use(func(of int) error {
		fd, err := open(s.family, most)
		if err != nil {
			return err
		}
		if err := bindShared(fd, of, s.family); err != nil {
			return errors.Join(fmt.Errorf("bind UDP socket to a shared port: %w", err), unix.Close(fd))
		}
		joined = &Sender{family: s.family, fd: fd, release: func() error { return unix.Close(fd) }}
		return nil
	})
	return joined, err
}

// bindShared binds a socket to the address and port of another socket of the same family (SO_REUSEPORT).
func bindShared(fd, of, family int) error {
	at, err := unix.Getsockname(of)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		only, err := unix.GetsockoptInt(of, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
		}
		if err != nil {
			return err
		}
	}
	return unix.Bind(fd, at)
}

// neighbourQueue is how many bytes the kernel queues while it resolves one neighbour, at the default of the sysctl
// net.ipv4.neigh.*.unres_qlen_bytes. The default size of a send buffer is the same. The kernel doubles the number that
// is passed to SO_SNDBUF.
const neighbourQueue = 212992

// EnlargeBuffer sets the size of the send buffer to twice neighbourQueue, so that datagrams to one unresolved neighbour
// do not fill it. The sysctl net.core.wmem_max bounds the size. Its default is enough.
func (s *Sender) EnlargeBuffer() error {
	return s.Use(func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, neighbourQueue); err != nil {
			return fmt.Errorf("set size of send buffer: %w", err)
		}
		return nil
	})
}

// Send sends one datagram without waiting. A non-nil from sets its source address. The error is ErrCongested if the
// send buffer is full, net.ErrClosed after Close, or a syscall.Errno.
func (s *Sender) Send(payload []byte, to netip.AddrPort, from *Source) error {
	var name unix.RawSockaddrInet6
	message := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&name)), Namelen: fill(&name, s.family, to)}
	var vector unix.Iovec
	if len(payload) > 0 {
		vector.Base = &payload[0]
		vector.SetLen(len(payload))
	}
	message.Iov = &vector
	message.SetIovlen(1)
	if from != nil && from.length > 0 {
		message.Control = &from.message[0]
		message.SetControllen(from.length)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.release == nil {
		return net.ErrClosed
	}
	// RawSyscall does not notify the Go scheduler, which is not needed because the call does not block.
	_, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG,
		uintptr(s.fd), uintptr(unsafe.Pointer(&message)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	switch errno {
	case 0:
		return nil
	case unix.EAGAIN, unix.ENOBUFS:
		return ErrCongested
	}
	return errno
}

// fill writes the address to as a socket address of the family of a socket, and returns its length. For an IPv6 socket
// an IPv4 address becomes an IPv4-mapped one. name may contain an address of the other family.
func fill(name *unix.RawSockaddrInet6, family int, to netip.AddrPort) (length uint32) {
	if family == unix.AF_INET {
		name4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		name4.Family, name4.Addr = unix.AF_INET, to.Addr().Unmap().As4()
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name4.Port))[:], to.Port())
		return unix.SizeofSockaddrInet4
	}
	name.Family, name.Flowinfo, name.Addr = unix.AF_INET6, 0, to.Addr().As16()
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], to.Port())
	return unix.SizeofSockaddrInet6
}

// Drops returns the number of datagrams that the kernel dropped and did not deliver to this socket, most of them
// because the receive buffer was full. It is 0 after Close, and if the kernel does not report it.
func (s *Sender) Drops() (n uint64) {
	const drops = 8 // SK_MEMINFO_DROPS
	_ = s.Use(func(fd int) error {
		var info [drops + 1]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			n = uint64(info[drops])
		}
		return nil
	})
	return n
}

// Use calls a function with the descriptor, which stays open until the function returns.
func (s *Sender) Use(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.release == nil {
		return net.ErrClosed
	}
	return f(s.fd)
}

// Close closes the socket. The kernel still sends the datagrams in the send buffer.
func (s *Sender) Close() error {
	s.mu.Lock()
	release := s.release
	s.release = nil
	// The goroutine must not hold mu here. Close waits for the goroutine that reads from the socket, and that goroutine
	// may wait for mu to send.
	s.mu.Unlock()
	if release == nil {
		return nil
	}
	return release()
}
