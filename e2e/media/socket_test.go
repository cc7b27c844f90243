package media

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

const (
	batch    = 64       // datagrams of one system call
	roomSize = 10 << 10 // bytes of one message: a burst of 8 datagrams of 1,200 B, which the kernel segments
	rcvBuf   = 16 << 20 // bytes
	pktinfo  = 16 + 12  // length of a control message with IP_PKTINFO, without padding
	segment  = 16 + 2   // size of the control message of UDP_SEGMENT
	control  = 32 + 24  // both, padded; also enough for IP_PKTINFO and SCM_TIMESTAMPNS
	anyPort  = 40000    // of all clients; peers have the same
)

// socket is a UDP socket for all addresses of a subnet. Each datagram has its own source address (IP_PKTINFO). One
// system call sends or receives up to batch messages, so that the generator uses less CPU time than the server.
type socket struct {
	fd                int
	out, in           [batch]message
	outHeads, inHeads [batch]mmsghdr
	queued            int
}

// mmsghdr is struct mmsghdr of Linux.
type mmsghdr struct {
	unix.Msghdr
	n uint32
	_ [4]byte
}

type message struct {
	name    unix.RawSockaddrInet4
	iov     unix.Iovec
	control [control + 8]byte
	data    [roomSize]byte
}

// open opens a socket on all addresses of a namespace, or of this process if it is nil, until the test ends. It sets
// the given options of SOL_SOCKET to 1. With SO_TIMESTAMPNS, datagrams have the time at which the kernel received them.
func open(t testing.TB, in *netns.Space, options ...int) *socket {
	t.Helper()
	s := &socket{}
	var err error
	do := func(f func()) { f() }
	if in != nil {
		do = in.Do
	}
	do(func() {
		if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		err = errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvBuf),
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, rcvBuf),
			unix.SetsockoptInt(s.fd, unix.SOL_IP, unix.IP_PKTINFO, 1),
		)
		for _, o := range options {
			err = errors.Join(err, unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o, 1))
		}
		err = errors.Join(err, unix.Bind(s.fd, &unix.SockaddrInet4{Port: anyPort}))
	})
	if err != nil {
		t.Fatalf("open socket of the generator: %v: run the test as root", err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	for i := range batch {
		for _, side := range []struct {
			m *message
			h *mmsghdr
		}{{&s.out[i], &s.outHeads[i]}, {&s.in[i], &s.inHeads[i]}} {
			side.m.iov.Base, side.m.iov.Len = &side.m.data[0], roomSize
			side.h.Name, side.h.Namelen = (*byte)(unsafe.Pointer(&side.m.name)), unix.SizeofSockaddrInet4
			side.h.Iov, side.h.Iovlen = &side.m.iov, 1
			side.h.Control = &side.m.control[0]
		}
		head(&s.out[i].control[0], unix.SOL_IP, unix.IP_PKTINFO, pktinfo)
		head(&s.out[i].control[32], unix.SOL_UDP, unix.UDP_SEGMENT, segment)
	}
	return s
}

func head(at *byte, level, kind int32, length uint64) {
	*(*unix.Cmsghdr)(unsafe.Pointer(at)) = unix.Cmsghdr{Len: length, Level: level, Type: kind}
}

// put queues a message and returns the room for its data. If the size is larger than a datagram, the kernel cuts the
// message into datagrams. The caller flushes after batch messages.
func (s *socket) put(from [4]byte, to unix.RawSockaddrInet4, size, datagram int) []byte {
	m, h := &s.out[s.queued], &s.outHeads[s.queued]
	s.queued++
	m.name, m.iov.Len = to, uint64(size)
	(*unix.Inet4Pktinfo)(unsafe.Pointer(&m.control[16])).Spec_dst = from
	h.Controllen = 32
	if size > datagram {
		*(*uint16)(unsafe.Pointer(&m.control[48])) = uint16(datagram)
		h.Controllen = control
	}
	return m.data[:size]
}

// flush sends the queued messages.
func (s *socket) flush() error {
	for sent := 0; sent < s.queued; {
		n, _, errno := unix.RawSyscall6(
			unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.outHeads[sent])), uintptr(s.queued-sent), 0, 0,
			0,
		)
		switch errno {
		case 0:
			sent += int(n)
		case syscall.EAGAIN, syscall.EINTR, syscall.ENOBUFS:
		default:
			return fmt.Errorf("generator: send: %w", errno)
		}
	}
	s.queued = 0
	return nil
}

type datagram struct {
	data []byte
	from unix.RawSockaddrInet4
	to   [4]byte
	at   int64 // Unix time in nanoseconds, if the socket has stamps
}

// receive passes on all datagrams of one system call, without waiting, and returns their number.
func (s *socket) receive(each func(datagram)) int {
	for i := range s.inHeads {
		s.inHeads[i].Controllen = control + 8
	}
	n, _, errno := unix.RawSyscall6(
		unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.inHeads)), batch, unix.MSG_DONTWAIT, 0, 0,
	)
	if errno != 0 {
		return 0
	}
	for i := range s.in[:n] {
		m := &s.in[i]
		d := datagram{data: m.data[:s.inHeads[i].n], from: m.name}
		for at := uint64(0); at+16 <= s.inHeads[i].Controllen; {
			c := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
			switch value := unsafe.Pointer(&m.control[at+16]); {
			case c.Level == unix.SOL_IP && c.Type == unix.IP_PKTINFO:
				d.to = (*unix.Inet4Pktinfo)(value).Addr
			case c.Level == unix.SOL_SOCKET && c.Type == unix.SCM_TIMESTAMPNS:
				d.at = (*unix.Timespec)(value).Nano()
			}
			at += (c.Len + 7) &^ 7
		}
		each(d)
	}
	return int(n)
}

// held returns the memory of the datagrams that wait in the socket.
func (s *socket) held(t testing.TB) int {
	t.Helper()
	var info [9]uint32 // SK_MEMINFO_VARS of linux/sock_diag.h; the first one is SK_MEMINFO_RMEM_ALLOC
	length := uint32(unsafe.Sizeof(info))
	if _, _, errno := unix.RawSyscall6(
		unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)),
		uintptr(unsafe.Pointer(&length)), 0,
	); errno != 0 {
		t.Fatalf("read the memory of a socket: %v", errno)
	}
	return int(info[0])
}

// sockaddr returns an address in the form of system calls.
func sockaddr(ip [4]byte, port uint16) unix.RawSockaddrInet4 {
	return unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: ip, Port: port<<8 | port>>8}
}
