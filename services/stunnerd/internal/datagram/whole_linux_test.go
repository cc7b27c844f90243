package datagram

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// T-A11, P-10: a datagram that must not be fragmented has the DF bit, and is not sent if it is longer than the MTU.
// Earlier and later datagrams of the socket are fragmented.
func TestWholeDatagrams(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	testnet.IP(t, "link set lo mtu 1400")
	// Sockets do not set the DF bit by default then.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_no_pmtu_disc", []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !SendsWhole() {
		t.Fatal("the kernel cannot send datagrams that are not fragmented")
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		peer, _ := reader(t, host, 0)
		to := peer.LocalAddr().(*net.UDPAddr).AddrPort()
		to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
		s, err := Listen(netip.AddrPortFrom(to.Addr(), 0), math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		sniffer := headers(t)
		long, short := make([]byte, 3000), make([]byte, 100)
		for _, c := range []struct {
			what    string
			payload []byte
			whole   bool
			want    error
		}{
			{"long, before", long, false, nil},
			{"long and whole", long, true, unix.EMSGSIZE},
			{"short and whole", short, true, nil},
			{"short", short, false, nil},
			{"long, after", long, false, nil},
		} {
			p := []Packet{{Payload: c.payload, To: to, Whole: c.whole}}
			if c.whole {
				s.SendWhole(&p[0])
			} else {
				s.SendAll(p)
			}
			if !errors.Is(p[0].Err, c.want) || c.want == nil && p[0].Err != nil {
				t.Errorf("%s to %s: %v, want %v", c.what, host, p[0].Err, c.want)
			}
			if c.want != nil {
				continue
			}
			if n := arrived(t, peer); n != len(c.payload) {
				t.Errorf("%s to %s: %d bytes arrive, want %d", c.what, host, n, len(c.payload))
			}
			if len(c.payload) > 1400 || to.Addr().Is6() {
				continue // dontFragment reads whole IPv4 packets only
			}
			if df := sniffer.dontFragment(); df != c.whole {
				t.Errorf("%s to %s: DF bit %t, want %t", c.what, host, df, c.whole)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		p := Packet{Payload: short, To: to, Whole: true}
		if s.SendWhole(&p); !errors.Is(p.Err, net.ErrClosed) {
			t.Errorf("after Close: %v, want %v", p.Err, net.ErrClosed)
		}
	}
}

func arrived(t *testing.T, peer *net.UDPConn) int {
	t.Helper()
	if err := peer.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := peer.Read(make([]byte, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sniff reads the IPv4 headers of all UDP packets of the host.
type sniff struct {
	t  *testing.T
	fd int
}

func headers(t *testing.T) sniff {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}); err != nil {
		t.Fatal(err)
	}
	return sniff{t, fd}
}

// dontFragment returns the DF bit of the next packet of at most 1,400 bytes.
func (s sniff) dontFragment() bool {
	s.t.Helper()
	b := make([]byte, 1<<16)
	for {
		n, err := unix.Read(s.fd, b)
		if err != nil {
			s.t.Fatal(err)
		}
		if n > 20 && n <= 1400 {
			return b[6]&0x40 != 0
		}
	}
}
