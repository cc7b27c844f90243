package netns

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
)

// RawSocket sends UDP datagrams over IPv4 with any source.
type RawSocket int

// NewRawSocket opens a socket in the network namespace of the calling thread, until the end of the test.
func NewRawSocket(t *testing.T) RawSocket {
	t.Helper()
	raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(raw) })
	return RawSocket(raw)
}

// Send sends a datagram. The kernel fills in the IP checksum, and the UDP checksum is optional.
func (r RawSocket) Send(from, to netip.AddrPort, payload []byte) error {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, syscall.IPPROTO_UDP, 0, 0}
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	for _, n := range []uint16{from.Port(), to.Port(), uint16(8 + len(payload)), 0} {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return syscall.Sendto(int(r), append(b, payload...), 0, &syscall.SockaddrInet4{Addr: to.Addr().As4()})
}
