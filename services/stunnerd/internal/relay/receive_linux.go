package relay

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffer holds one datagram of any size behind room for a ChannelData header, and room for its padding.
type buffer [headerSize + 65535 + 3]byte

// buffers are shared by all relays: a relay that waits for a datagram holds none, so that an idle allocation costs no buffer.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

func (b *buffer) release() { buffers.Put(b) }

func (b *buffer) payload(n int) []byte { return b[headerSize : headerSize+n] }

// channelData returns the ChannelData frame around the first n bytes of payload.
func (b *buffer) channelData(number uint16, n int, pad bool) []byte {
	binary.BigEndian.PutUint16(b[0:], number)
	binary.BigEndian.PutUint16(b[2:], uint16(n))
	end := headerSize + n
	if pad {
		for ; end%4 != 0; end++ {
			b[end] = 0
		}
	}
	return b[:end]
}

// receiver reads datagrams from a socket. It differs from UDPConn.ReadFromUDPAddrPort in when it needs a buffer: only once there is
// something to read.
type receiver struct {
	raw     syscall.RawConn
	attempt func(fd uintptr) bool

	buf     *buffer
	n       int
	errno   syscall.Errno
	from    unix.RawSockaddrAny
	fromLen uint32
}

func newReceiver(conn *net.UDPConn) (*receiver, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get raw socket: %w", err)
	}
	r := &receiver{raw: raw}
	r.attempt = r.tryReceive
	return r, nil
}

// receive waits for a datagram. The caller releases the buffer.
func (r *receiver) receive() (*buffer, int, netip.AddrPort, error) {
	if err := r.raw.Read(r.attempt); err != nil {
		return nil, 0, netip.AddrPort{}, err
	}
	buf := r.buf
	r.buf = nil
	if r.errno != 0 {
		buf.release()
		return nil, 0, netip.AddrPort{}, r.errno
	}
	return buf, r.n, r.peer(), nil
}

// tryReceive reads without waiting and reports whether there was something to read, an error included.
func (r *receiver) tryReceive(fd uintptr) bool {
	buf := buffers.Get().(*buffer)
	for {
		r.fromLen = unix.SizeofSockaddrAny
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd,
			uintptr(unsafe.Pointer(&buf[headerSize])), 65535, unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(&r.from)), uintptr(unsafe.Pointer(&r.fromLen)))
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			buf.release()
			return false
		}
		r.buf, r.n, r.errno = buf, int(n), errno
		return true
	}
}

func (r *receiver) peer() netip.AddrPort {
	if r.from.Addr.Family == unix.AF_INET {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.from))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), port(&sa.Port))
	}
	sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&r.from))
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port(&sa.Port))
}

// port reads a port in network byte order.
func port(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
