package listener

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A socket on the wildcard address answers from whatever address the route prefers. A client takes an answer only from the address
// that it asked (RFC 8489 §6.3.1.1), and a host may have several: so the kernel tells us the destination of what comes, and is
// told to use it as the source of what goes.

// controlSize has room for one control message of either family.
const controlSize = 64

// tellDestination makes a socket deliver the destination address of every datagram. An IPv6 socket does so for IPv4 as well, in mapped
// form; a socket on a host without IPv6 takes the option of IPv4 alone.
func tellDestination(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); err == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// source is a control message that sets the source address of a datagram. The zero source leaves it to the kernel.
type source struct {
	message [controlSize]byte
	length  int
}

func (s *source) control() []byte { return s.message[:s.length] }

// sourceFor makes an answer leave from where a datagram arrived: the control message that came with it, without the interface, over
// which the answer need not go.
func sourceFor(received []byte) (s source) {
	for len(received) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(received)
		if err != nil {
			return source{}
		}
		used := len(received) - len(rest)
		if at, ok := interfaceField(header); ok && used <= controlSize {
			s.length = copy(s.message[:], received[:used])
			if !linkLocal(header, data) {
				binary.NativeEndian.PutUint32(s.message[unix.CmsgLen(0)+at:], 0)
			}
			return s
		}
		received = rest
	}
	return source{}
}

// interfaceField is where the interface's index stands in the data of a control message about addresses.
func interfaceField(h unix.Cmsghdr) (offset int, ok bool) {
	switch {
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO:
		return 16, true // behind the address (struct in6_pktinfo)
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO:
		return 0, true // before it (struct in_pktinfo)
	}
	return 0, false
}

// linkLocal addresses mean something together with their interface only.
func linkLocal(h unix.Cmsghdr, data []byte) bool {
	return h.Level == unix.IPPROTO_IPV6 && len(data) > 1 && data[0] == 0xFE && data[1]&0xC0 == 0x80
}
