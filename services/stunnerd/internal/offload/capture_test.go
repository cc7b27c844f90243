package offload

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packet is a received frame with a UDP datagram that is not a fragment.
type packet struct {
	v6      bool
	from    netip.AddrPort
	class   byte // type of service or traffic class
	ttl     byte // or hop limit
	payload []byte
	// partial means that the network card was expected to complete the checksum.
	partial bool
}

// capture checks the checksums of all UDP datagrams that an interface receives.
type capture struct {
	fd    int
	ended atomic.Bool

	mu            sync.Mutex
	full, partial int // datagrams with a checksum, and datagrams with the checksum of the pseudo header only
	err           error
	last          packet
}

func (s *space) capture(t testing.TB) *capture {
	t.Helper()
	c := &capture{}
	var err error
	s.do(func() {
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
		t.Fatal(err)
	}
	// Closing the descriptor does not end a blocked recvmsg.
	pause := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause); err != nil {
		t.Fatal(err)
	}
	go c.read()
	t.Cleanup(func() { c.ended.Store(true) })
	return c
}

func htons(p uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p)) }

func (c *capture) read() {
	defer func() { _ = unix.Close(c.fd) }()
	b, control := make([]byte, 65536), make([]byte, 256)
	for !c.ended.Load() {
		n, controlled, _, from, err := unix.Recvmsg(c.fd, b, control, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			return
		}
		if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:controlled])
		if err != nil || len(messages) == 0 || len(messages[0].Data) < 4 {
			continue
		}
		partial := binary.NativeEndian.Uint32(messages[0].Data)&unix.TP_STATUS_CSUMNOTREADY != 0
		p, ok, err := parse(b[:n], partial)
		if !ok && err == nil {
			continue
		}
		c.mu.Lock()
		p.payload = append(c.last.payload[:0], p.payload...)
		switch c.err = errors.Join(c.err, err); {
		case partial:
			c.partial++
		default:
			c.full++
		}
		c.last = p
		c.mu.Unlock()
	}
}

// take waits for n datagrams. It returns the counts since the last call, the last datagram, and an error for wrong
// checksums.
func (c *capture) take(n int) (full, partial int, last packet, err error) {
	for late := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		if c.full+c.partial >= n || time.Now().After(late) {
			break
		}
		c.mu.Unlock()
	}
	defer c.mu.Unlock()
	full, partial, last, err = c.full, c.partial, c.last, c.err
	c.full, c.partial, c.err, c.last = 0, 0, nil, packet{}
	return full, partial, last, err
}

// sum is called for each packet. With the race detector, it would take most of the time of a test.
//
//go:norace
func sum(b []byte) (s uint64) {
	for ; len(b) > 1; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// parse returns the datagram of an Ethernet frame. ok is false for other frames.
func parse(b []byte, partial bool) (p packet, ok bool, err error) {
	const header = 14
	if len(b) < header+20 {
		return p, false, nil
	}
	p.partial = partial
	var pseudo uint64
	ip := b[header:]
	var udp []byte
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_IP:
		if ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return p, false, nil
		}
		length := int(ip[0]&15) * 4
		if fold(sum(ip[:length])) != 0xffff {
			err = errors.New("the checksum of the IPv4 header is wrong")
		}
		p.class, p.ttl = ip[1], ip[8]
		udp, pseudo = ip[length:binary.BigEndian.Uint16(ip[2:])], sum(ip[12:20])
	case unix.ETH_P_IPV6:
		if ip[6] != unix.IPPROTO_UDP || len(ip) < 48 {
			return p, false, nil
		}
		p.v6, p.class, p.ttl = true, byte(binary.BigEndian.Uint16(ip)>>4), ip[7]
		udp, pseudo = ip[40:40+int(binary.BigEndian.Uint16(ip[4:]))], sum(ip[8:40])
	default:
		return p, false, nil
	}
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		return p, true, errors.New("the length of the UDP header is wrong")
	}
	pseudo += unix.IPPROTO_UDP + uint64(len(udp))
	check := binary.BigEndian.Uint16(udp[6:])
	switch {
	case partial && check != fold(pseudo):
		err = errors.Join(err, errors.New("the checksum of the pseudo header is wrong"))
	case !partial && check == 0 && p.v6:
		err = errors.Join(err, errors.New("a UDP checksum is missing"))
	case !partial && check != 0 && fold(pseudo+sum(udp)) != 0xffff:
		err = errors.Join(err, errors.New("a UDP checksum is wrong"))
	}
	p.payload = udp[8:]
	source, _ := netip.AddrFromSlice(ip[12:16])
	if p.v6 {
		source, _ = netip.AddrFromSlice(ip[8:24])
	}
	p.from = netip.AddrPortFrom(source, binary.BigEndian.Uint16(udp))
	return p, true, err
}

// inject sends an Ethernet frame from an interface of the namespace, without changes.
func (s *space) inject(t testing.TB, name string, b []byte) {
	t.Helper()
	var err error
	s.do(func() {
		var i *net.Interface
		if i, err = net.InterfaceByName(name); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer func() { _ = unix.Close(fd) }()
		err = unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: i.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
}
