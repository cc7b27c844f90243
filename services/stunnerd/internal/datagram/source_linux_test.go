package datagram

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A Source that was stored and parsed equals the Source of the next datagram to the same address, byte for byte.
func TestStoredSourceIsTheSameSource(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "127.3.2.1", "::1"} {
		conn, _ := reader(t, "", 0) // on all addresses, of both families
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) { err = ReportDestination(int(fd)) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		to := netip.AddrPortFrom(netip.MustParseAddr(address), port)
		client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if _, err := client.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		control := bytes.Repeat([]byte{0xEE}, 128)
		_, n, _, _, err := conn.ReadMsgUDPAddrPort(make([]byte, 10), control)
		if err != nil {
			t.Fatal(err)
		}
		want := SourceOf(control[:n])
		if want.Addr() != to.Addr() {
			t.Fatalf("source %v, want %v", want.Addr(), to.Addr())
		}
		stored, err := want.AppendBinary([]byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseSource(stored[1:])
		if err != nil || got != want {
			t.Errorf("%s: restored %v, %v, want %v", address, got, err, want)
		}
	}
}

func TestStoredSourceIsTheAddress(t *testing.T) {
	scoped := func(s string) []byte {
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: netip.MustParseAddr(s).As16(), Ifindex: 7})
	}
	for _, row := range []struct {
		control []byte
		stored  string
	}{
		{nil, ""},
		{unix.UnixRights(0), ""},
		{
			unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 7, Spec_dst: [4]byte{10, 0, 0, 1}, Addr: [4]byte{10, 0, 0, 255}}),
			"\x0a\x00\x00\x01\x0a\x00\x00\xff",
		},
		{scoped("2001:db8::1"), "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"},
		{scoped("fe80::1"), "\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x07"},
	} {
		want := SourceOf(row.control)
		stored, err := want.AppendBinary(nil)
		if err != nil || string(stored) != row.stored {
			t.Errorf("stored %x, %v, want %x", stored, err, row.stored)
		}
		if got, err := ParseSource(stored); err != nil || got != want {
			t.Errorf("restored %v, %v, want %v", got, err, want)
		}
	}
}

// Only the exact forms are accepted: with any other control message, the kernel would refuse each answer to the client.
func TestMalformedSourceIsRefused(t *testing.T) {
	scoped := netip.MustParseAddr("fe80::1").AsSlice()
	for size := range 100 {
		_, err := ParseSource(make([]byte, size))
		if valid := size == 0 || size == 8 || size == 16; (err == nil) != valid {
			t.Errorf("%d bytes: %v", size, err)
		}
		_, err = ParseSource(append(bytes.Clone(scoped), make([]byte, size)...))
		if (err == nil) != (size == 4) {
			t.Errorf("link-local address and %d bytes: %v", size, err)
		}
	}
}
