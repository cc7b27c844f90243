package datagram

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// MaxPayload is the longest UDP payload.
	MaxPayload = 65535
	// Headroom and Tailroom are the numbers of free bytes before and after each received payload.
	Headroom, Tailroom = 4, 4
	// stride is the distance of two datagrams in the memory of a Receiver: an odd number of cache lines, so that the
	// first lines of all datagrams do not map to the same set of a cache.
	stride = 65_536 + 5*64
)

// Receiver receives datagrams in batches. It is not safe for concurrent use.
//
// A Receiver has memory for BatchSize datagrams of any size. The memory is not a part of the Go heap. Only the pages in
// which a datagram was stored use physical memory, and the garbage collector does not count them. After a datagram that
// is longer than keep, all pages are released, so that a flood of long datagrams does not leave 4 MB in use for each
// socket.
type Receiver struct {
	memory   []byte
	messages [BatchSize]message
	vectors  [BatchSize]unix.Iovec
	names    [BatchSize]unix.RawSockaddrInet6
	controls [BatchSize][ControlSize]byte
	received int
	// long reports whether a datagram of the last batch was longer than keep.
	long bool
}

// keep is the length of the longest datagram whose memory is kept. It is longer than the MTU of networks with jumbo
// frames.
const keep = 10_000

// NewReceiver returns a Receiver. Close releases its memory.
func NewReceiver() (*Receiver, error) {
	memory, err := unix.Mmap(-1, 0, BatchSize*stride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate memory for received datagrams: %w", err)
	}
	r := &Receiver{memory: memory, received: BatchSize}
	for i := range r.messages {
		r.vectors[i].Base = &memory[i*stride+Headroom]
		r.vectors[i].SetLen(MaxPayload)
		m := &r.messages[i]
		m.Name, m.Control = (*byte)(unsafe.Pointer(&r.names[i])), &r.controls[i][0]
		m.Iov = &r.vectors[i]
		m.SetIovlen(1)
	}
	return r, nil
}

// Receive receives up to BatchSize datagrams from a socket without waiting, and returns their number. The datagrams of
// the last call become invalid. The error is EAGAIN if there is no datagram.
func (r *Receiver) Receive(fd int) (int, syscall.Errno) {
	for i := range r.received {
		r.messages[i].Namelen = unix.SizeofSockaddrInet6
		r.messages[i].SetControllen(ControlSize)
	}
	r.received = 0
	if r.long {
		r.long = false
		_ = unix.Madvise(r.memory, unix.MADV_DONTNEED) // never fails: the memory is not locked
	}
	for {
		// RawSyscall does not notify the Go scheduler, which is not needed because the call does not block.
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.messages)),
			BatchSize, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			r.received = int(n)
			for i := range r.messages[:n] {
				r.long = r.long || r.messages[i].length > keep
			}
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Payload returns the payload of a datagram.
func (r *Receiver) Payload(i int) []byte { return r.Room(i)[Headroom:][:r.messages[i].length] }

// Room returns the memory around the payload of a datagram, with Headroom bytes before and Tailroom bytes after the
// longest payload.
func (r *Receiver) Room(i int) []byte { return r.memory[i*stride:][:Headroom+MaxPayload+Tailroom] }

// From returns the source of a datagram. An IPv4-mapped address is returned as an IPv4 address. The zone of a
// link-local address is the index of its interface.
func (r *Receiver) From(i int) netip.AddrPort { return addrPort(&r.names[i]) }

// Control returns the control messages of a datagram.
func (r *Receiver) Control(i int) []byte { return r.controls[i][:r.messages[i].Controllen] }

// Close releases the memory. The Receiver and its datagrams must not be used afterwards.
func (r *Receiver) Close() error {
	memory := r.memory
	r.memory = nil
	return unix.Munmap(memory)
}

// addrPort returns a socket address of either family.
func addrPort(name *unix.RawSockaddrInet6) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	if name.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), port)
	}
	addr := netip.AddrFrom16(name.Addr).Unmap()
	if name.Scope_id != 0 { // a link-local address is unique on its link only
		addr = addr.WithZone(strconv.FormatUint(uint64(name.Scope_id), 10))
	}
	return netip.AddrPortFrom(addr, port)
}
