package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func view(endpoints ...string) *View {
	return NewView([]config.Cluster{{Name: "media/sfu", Type: config.Static, Endpoints: endpoints}}, []string{"media/sfu"})
}

func TestMatch(t *testing.T) {
	cases := []struct {
		endpoints []string
		peer      string
		want      Verdict
	}{
		{nil, "192.0.2.1:1", Denied},
		{[]string{"192.0.2.1"}, "192.0.2.1:1", Allowed},
		{[]string{"192.0.2.1"}, "192.0.2.2:1", Denied},
		{[]string{"192.0.2.1:<10-20>"}, "192.0.2.1:10", Allowed},
		{[]string{"192.0.2.1:<10-20>"}, "192.0.2.1:20", Allowed},
		{[]string{"192.0.2.1:<10-20>"}, "192.0.2.1:21", PortDenied},
		{[]string{"192.0.2.1:<10-20>", "192.0.2.1:<30-40>"}, "192.0.2.1:35", Allowed},
		{[]string{"192.0.2.0/24:<10-20>"}, "192.0.2.99:15", Allowed},
		{[]string{"192.0.2.0/24:<10-20>"}, "192.0.2.99:9", PortDenied},
		{[]string{"192.0.2.0/24:<10-20>", "192.0.0.0/16:<30-40>"}, "192.0.2.99:33", Allowed},
		{[]string{"2001:db8::/32"}, "[2001:db8::7]:5", Allowed},
		{[]string{"2001:db8::7:<5-6>"}, "[2001:db8::7]:7", PortDenied},
		{[]string{"0.0.0.0/0"}, "[2001:db8::7]:5", Denied},
		{[]string{"0.0.0.0/0"}, "203.0.113.9:5", Allowed},
		// An IPv4 address in IPv6 clothes is the IPv4 address.
		{[]string{"192.0.2.1"}, "[::ffff:192.0.2.1]:1", Allowed},
		{[]string{"::/0"}, "[::ffff:192.0.2.1]:1", Denied},
	}
	for _, tc := range cases {
		t.Run(fmt.Sprint(tc.endpoints, " ", tc.peer), func(t *testing.T) {
			if _, got := view(tc.endpoints...).Match(netip.MustParseAddrPort(tc.peer)); got != tc.want {
				t.Errorf("verdict %d, want %d", got, tc.want)
			}
		})
	}
}

// T-01: no wildcard opens these; all but loopback are closed even to an endpoint that names them.
func TestNoRouteOpensSpecialAddresses(t *testing.T) {
	never := []string{
		"0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "100.100.100.200",
		"::", "fe80::1", "ff02::1", "fd00:ec2::254",
	}
	for _, a := range never {
		for _, endpoints := range [][]string{{"0.0.0.0/0", "::/0"}, {a}} {
			if view(endpoints...).AllowsAddr(netip.MustParseAddr(a)) {
				t.Errorf("%s is reached through %v", a, endpoints)
			}
		}
	}
	for _, a := range []string{"127.0.0.1", "127.9.9.9", "::1"} {
		addr := netip.MustParseAddr(a)
		if view("0.0.0.0/0", "::/0", "64.0.0.0/2").AllowsAddr(addr) {
			t.Errorf("%s is reached through a wildcard", a)
		}
		if !view(a).AllowsAddr(addr) {
			t.Errorf("%s is not reached though an endpoint names it", a)
		}
	}
}

// T-02: for every address, whatever form it comes in, the verdict is the same.
func TestDisguisesChangeNothing(t *testing.T) {
	v := view("0.0.0.0/0", "::/0")
	for i := range 1 << 16 {
		a := netip.AddrFrom4([4]byte{byte(i >> 8), byte(i), 1, 2})
		mapped := netip.AddrFrom16(a.As16())
		if v.AllowsAddr(a) != v.AllowsAddr(mapped) {
			t.Fatalf("%s and %s differ", a, mapped)
		}
	}
}

// T-02: an IPv4 address inside an IPv6 address is reached only where both are allowed.
func TestEmbeddedAddressesNeedBothRoutes(t *testing.T) {
	for _, disguise := range []string{"::%s", "64:ff9b::%s"} {
		metadata := netip.MustParseAddr(fmt.Sprintf(disguise, "169.254.169.254"))
		if view("0.0.0.0/0", "::/0").AllowsAddr(metadata) {
			t.Errorf("%s is reached", metadata)
		}
		media := netip.MustParseAddr(fmt.Sprintf(disguise, "192.0.2.1"))
		if view("::/0").AllowsAddr(media) {
			t.Errorf("%s is reached without a route to 192.0.2.1", media)
		}
		if !view("::/0", "192.0.2.1").AllowsAddr(media) {
			t.Errorf("%s is not reached with both routes", media)
		}
	}
	if view("0.0.0.0/0", "::/0").AllowsAddr(netip.MustParseAddr("2002:a9fe:a9fe::1")) {
		t.Error("6to4 form of 169.254.169.254 is reached")
	}
}

// T-03: the process's own sockets are no peers, whatever address of the host they are called by; other ports of the host are.
func TestOwnListenersAreNoPeers(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.9")
	v := view("192.0.2.0/24", "127.0.0.0/8").Sparing(Self{Addrs: []netip.Addr{own}, Ports: []uint16{3478}})
	for peer, want := range map[string]Verdict{
		"192.0.2.9:3478": PortDenied, "127.0.0.1:3478": PortDenied, "127.9.9.9:3478": PortDenied, "[::ffff:192.0.2.9]:3478": PortDenied,
		"192.0.2.9:40000": Allowed, "192.0.2.8:3478": Allowed,
	} {
		if _, got := v.Match(netip.MustParseAddrPort(peer)); got != want {
			t.Errorf("%s: verdict %d, want %d", peer, got, want)
		}
	}
}

func TestOnlyNamedStaticClustersCount(t *testing.T) {
	clusters := []config.Cluster{
		{Name: "media/a", Type: config.Static, Endpoints: []string{"192.0.2.1"}},
		{Name: "media/b", Type: config.Static, Endpoints: []string{"192.0.2.2"}},
		{Name: "media/c", Type: config.StrictDNS, Endpoints: []string{"192.0.2.3"}},
	}
	v := NewView(clusters, []string{"media/a", "media/c", "media/missing"})
	for peer, want := range map[string]bool{"192.0.2.1": true, "192.0.2.2": false, "192.0.2.3": false} {
		if got := v.AllowsAddr(netip.MustParseAddr(peer)); got != want {
			t.Errorf("%s allowed: %t, want %t", peer, got, want)
		}
	}
	if name, _ := v.Match(netip.MustParseAddrPort("192.0.2.1:1")); name != "media/a" {
		t.Errorf("reached through %q", name)
	}
}

// BenchmarkMatch shows that a verdict costs the same whatever the number of endpoints.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 1_000, 50_000} {
		endpoints := make([]string, n)
		for i := range endpoints {
			endpoints[i] = fmt.Sprintf("10.%d.%d.%d:<10000-20000>", i>>16, i>>8&255, i&255)
		}
		v := view(endpoints...)
		peer := netip.MustParseAddrPort("10.0.0.7:15000")
		b.Run(fmt.Sprint(n, " endpoints"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v.Match(peer)
			}
		})
	}
}
