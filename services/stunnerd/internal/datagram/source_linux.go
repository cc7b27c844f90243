package datagram

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A client accepts an answer only from the address to which it has sent the request (RFC 8489 §6.3.1.1). A host may
// have several addresses, and a socket on the wildcard address sends from the address that the route prefers. So a
// listener asks the kernel for the destination of every received datagram, and sets it as the source of the answer.

// ControlSize is the number of bytes of one control message with an address, of either family.
const ControlSize = 64

// ReportDestination makes a socket deliver the destination address of every datagram as a control message. An IPv6
// socket delivers IPv4 addresses in mapped form. A socket on a host without IPv6 has the IPv4 option only.
func ReportDestination(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); err == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// Source is the source address of a datagram to be sent, as a control message. The zero Source leaves the choice to the
// kernel.
type Source struct {
	message [ControlSize]byte
	length  int
}

// SourceOf returns the Source of an answer to a received datagram: the destination address of that datagram. received
// are the control messages of the datagram. The interface is set only for an IPv6 link-local address, because otherwise
// the answer may use another interface.
func SourceOf(received []byte) (s Source) {
	for len(received) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(received)
		if err != nil {
			return Source{}
		}
		used := len(received) - len(rest)
		if at, ok := interfaceField(header); ok && used <= ControlSize {
			s.length = used
			copy(s.message[:], received[:header.Len]) // the kernel does not write the padding
			if !linkLocal(header, data) {
				binary.NativeEndian.PutUint32(s.message[unix.CmsgLen(0)+at:], 0)
			}
			return s
		}
		received = rest
	}
	return Source{}
}

// Addr returns the address, or the zero Addr.
func (s *Source) Addr() netip.Addr {
	if s.length == 0 {
		return netip.Addr{}
	}
	header, data, _, err := unix.ParseOneSocketControlMessage(s.message[:s.length])
	switch {
	case err != nil:
	case header.Level == unix.IPPROTO_IPV6 && len(data) >= 16:
		return netip.AddrFrom16([16]byte(data)).Unmap()
	case header.Level == unix.IPPROTO_IP && len(data) >= 12:
		return netip.AddrFrom4([4]byte(data[8:])) // after the interface and the local address (struct in_pktinfo)
	}
	return netip.Addr{}
}

// interfaceField returns the offset of the interface index in the data of an IP_PKTINFO or IPV6_PKTINFO control
// message. ok is false for other control messages.
func interfaceField(h unix.Cmsghdr) (offset int, ok bool) {
	switch {
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO:
		return 16, true // after the address (struct in6_pktinfo)
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO:
		return 0, true // before the address (struct in_pktinfo)
	}
	return 0, false
}

// linkLocal reports whether an address is an IPv6 link-local address. Such an address is meaningful only with its
// interface.
func linkLocal(h unix.Cmsghdr, data []byte) bool {
	return h.Level == unix.IPPROTO_IPV6 && len(data) > 1 && data[0] == 0xFE && data[1]&0xC0 == 0x80
}

// errSource is the error of ParseSource.
var errSource = errors.New("read source address: expected two IPv4 addresses, an IPv6 address, or an IPv6 link-local " +
	"address with its interface")

// AppendBinary implements encoding.BinaryAppender, so that another process can send from the same address. For IPv4 the
// form is the local and the destination address of the received datagram (8 bytes). For IPv6 it is the address (16
// bytes), which for a link-local address is followed by the interface index (4 bytes, big endian). The zero Source has
// no bytes. The error is always nil.
func (s *Source) AppendBinary(b []byte) ([]byte, error) {
	if s.length == 0 {
		return b, nil
	}
	header, data, _, err := unix.ParseOneSocketControlMessage(s.message[:s.length])
	switch {
	case err != nil:
	case header.Level == unix.IPPROTO_IP && len(data) >= unix.SizeofInet4Pktinfo:
		b = append(b, data[4:unix.SizeofInet4Pktinfo]...)
	case header.Level == unix.IPPROTO_IPV6 && len(data) >= unix.SizeofInet6Pktinfo:
		b = append(b, data[:16]...)
		if linkLocal(header, data) {
			b = binary.BigEndian.AppendUint32(b, binary.NativeEndian.Uint32(data[16:]))
		}
	}
	return b, nil
}

// ParseSource returns the Source that AppendBinary has written. It returns the same bytes as SourceOf, so that Sources
// can be compared.
func ParseSource(b []byte) (s Source, err error) {
	var message []byte
	switch scoped := linkLocal(unix.Cmsghdr{Level: unix.IPPROTO_IPV6}, b); {
	case len(b) == 0:
	case len(b) == 8:
		message = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(b), Addr: [4]byte(b[4:])})
	case len(b) == 16 && !scoped:
		message = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(b)})
	case len(b) == 20 && scoped:
		message = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(b), Ifindex: binary.BigEndian.Uint32(b[16:])})
	default:
		return Source{}, errSource
	}
	s.length = copy(s.message[:], message)
	return s, nil
}
