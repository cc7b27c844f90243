package datagram

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BatchSize is the largest number of datagrams of one system call.
const BatchSize = 64

// Packet is one datagram to be sent.
type Packet struct {
	Payload []byte
	To      netip.AddrPort
	// From is the source address. If it is nil, the kernel selects it.
	From *Source
	// Whole demands that the datagram is not fragmented. SendWhole respects it, and SendAll does not.
	Whole bool
	// Err is the result of SendAll: an error as Send returns it, or nil.
	Err error
}

// message is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type message struct {
	unix.Msghdr
	length uint32
	_      uint32
}

// segmentControl is the size of the control message UDP_SEGMENT.
const segmentControl = 24

// batch holds the arguments of one sendmmsg call.
type batch struct {
	messages [BatchSize]message
	vectors  [BatchSize]unix.Iovec
	names    [BatchSize]unix.RawSockaddrInet6
	controls [BatchSize][ControlSize + segmentControl]byte
	// ends contains, for each message, the index of the packet after its last packet.
	ends [BatchSize]int
}

var batches Pool[batch]

// segments reports whether the kernel supports UDP_SEGMENT (Linux 4.18). An earlier kernel ignores the control message,
// and would send several datagrams as one datagram.
var segments = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_, err = unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return errors.Join(err, unix.Close(fd)) == nil
})

// SendAll sends datagrams in order without waiting, and sets Err of each. After an error of one datagram, SendAll still
// sends the next datagrams. Consecutive datagrams of one size to one address are passed to the kernel as one message
// (UDP_SEGMENT). The kernel splits the message into datagrams as late as possible.
func (s *Sender) SendAll(packets []Packet) {
	b := batches.Get()
	defer batches.Put(b)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for len(packets) > 0 {
		part := packets[:min(len(packets), BatchSize)]
		packets = packets[len(part):]
		if s.release == nil {
			fail(part, net.ErrClosed)
			continue
		}
		b.send(s, part, segments() && !s.unsegmented.Load())
	}
}

func fail(packets []Packet, err error) {
	for i := range packets {
		packets[i].Err = err
	}
}

// send sends at most BatchSize packets. The caller holds mu of the Sender.
func (b *batch) send(s *Sender, packets []Packet, segments bool) {
	count := b.fill(s.family, packets, segments)
	retried := -1 // index of the last message that was retried
	for at, first := 0, 0; at < count; {
		// RawSyscall does not notify the Go scheduler, which is not needed because the call does not block.
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&b.messages[at])),
			uintptr(count-at), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			at += int(n)
			fail(packets[first:b.ends[at-1]], nil)
			first = b.ends[at-1]
			continue
		}
		failed := packets[first:b.ends[at]]
		switch {
		case errno == unix.EINTR:
			continue
		case retried != at && s.Retry != nil && s.Retry(s.fd, errno):
			retried = at
			continue
		case len(failed) > 1 && refusesSegments(errno):
			s.unsegmented.Store(true)
			b.send(s, packets[first:], false)
			return
		case errno == unix.EAGAIN || errno == unix.ENOBUFS:
			fail(failed, ErrCongested)
		default:
			fail(failed, errno)
		}
		first = b.ends[at]
		at++
	}
}

// refusesSegments reports whether an error may mean that the kernel cannot split a message into datagrams: the device
// computes no checksums (EIO), or a datagram is longer than the MTU of the path (EINVAL, EMSGSIZE).
func refusesSegments(errno syscall.Errno) bool {
	return errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE
}

// Limits of a message that the kernel cuts into datagrams.
const (
	maxSegments = 64 // UDP_MAX_SEGMENTS of Linux 4.18
	maxMessage  = 65_000
)

// fill makes the messages for packets, and returns their number.
func (b *batch) fill(family int, packets []Packet, segments bool) (count int) {
	for first := 0; first < len(packets); count++ {
		end := first + 1
		if segments {
			end = first + run(packets[first:])
		}
		b.message(count, family, packets[first:end], first)
		b.ends[count] = end
		first = end
	}
	return count
}

// run returns how many packets, from the first one, can be sent as one message: they have the same destination, the
// same source address and the same size. Only the last packet may be shorter.
func run(packets []Packet) int {
	first := &packets[0]
	size, total := len(first.Payload), len(first.Payload)
	if size == 0 {
		return 1
	}
	n := 1
	for n < len(packets) && n < maxSegments {
		p := &packets[n]
		total += len(p.Payload)
		if len(p.Payload) == 0 || len(p.Payload) > size || total > maxMessage || p.To != first.To || p.From != first.From {
			break
		}
		n++
		if len(p.Payload) < size {
			break
		}
	}
	return n
}

// message makes one message of packets. first is the index of its first vector.
func (b *batch) message(at, family int, packets []Packet, first int) {
	for i := range packets {
		v := &b.vectors[first+i]
		v.Base = unsafe.SliceData(packets[i].Payload)
		v.SetLen(len(packets[i].Payload))
	}
	m := &b.messages[at]
	m.Name, m.Namelen = (*byte)(unsafe.Pointer(&b.names[at])), fill(&b.names[at], family, packets[0].To)
	m.Iov = &b.vectors[first]
	m.SetIovlen(len(packets))
	control := 0
	if from := packets[0].From; from != nil && from.length > 0 {
		control = (from.length + unix.SizeofPtr - 1) &^ (unix.SizeofPtr - 1) // CMSG_ALIGN
		copy(b.controls[at][:], from.message[:from.length])
	}
	if len(packets) > 1 {
		control += putSegmentSize(b.controls[at][control:], len(packets[0].Payload))
	}
	m.Control = nil
	if control > 0 {
		m.Control = &b.controls[at][0]
	}
	m.SetControllen(control)
}

// putSegmentSize writes a control message UDP_SEGMENT, and returns its length.
func putSegmentSize(control []byte, size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], uint16(size))
	return unix.CmsgSpace(2)
}
