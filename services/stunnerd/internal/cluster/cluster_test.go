package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func view(endpoints ...string) *View {
	return NewView(
		[]config.Cluster{{Name: "media/sfu", Type: config.Static, Endpoints: endpoints}}, []string{"media/sfu"},
	)
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
		// An IPv4-mapped IPv6 address is the IPv4 address.
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

// A limited view has the verdicts of a view of the named routes only. If these deny an address that another route
// allows, the verdict is Unnamed.
func TestOnly(t *testing.T) {
	clusters := []config.Cluster{
		{Name: "m/a", Type: config.Static, Endpoints: []string{"10.0.0.0/8:<1-100>", "192.0.2.1", "64:ff9b::/96"}},
		{Name: "m/b", Type: config.Static, Endpoints: []string{"10.1.0.0/16:<50-200>", "192.0.2.1:<5-6>", "2001:db8::/32"}},
		{Name: "m/c", Type: config.Static, Endpoints: []string{"10.1.2.3", "64:ff9b::/96", "198.51.100.0/24:<7-8>"}},
	}
	all := []string{"m/a", "m/b", "m/c"}
	self := NewSelf(nil, nil, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5")})
	whole := NewView(clusters, all).WithoutSelf(self)
	for _, names := range [][]string{{"m/a"}, {"m/b"}, {"m/c"}, {"m/a", "m/c"}, {"m/c", "m/b"}, all, {"m/d"}, {"m/d", "m/a"}} {
		limited, alone := whole.Only(names), NewView(clusters, names).WithoutSelf(self)
		for _, addr := range []string{
			"10.0.0.1", "10.1.0.1", "10.1.2.3", "192.0.2.1", "192.0.2.2", "198.51.100.9", "2001:db8::1", "2001:db9::1",
			"64:ff9b::10.1.2.3", "64:ff9b::198.51.100.9", "64:ff9b::203.0.113.1", "::ffff:10.1.2.3", "127.0.0.1",
		} {
			for _, port := range []uint16{0, 5, 7, 60, 150, 300} {
				peer := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
				name, got := limited.Match(peer)
				wantName, want := alone.Match(peer)
				if _, most := whole.Match(peer); want == Denied && most != Denied {
					want = Unnamed
				}
				if got != want || name != wantName {
					t.Errorf("%v: %s by %q %d, want %q %d", names, peer, name, got, wantName, want)
				}
				if limited.Permits(peer) != alone.Permits(peer) {
					t.Errorf("%v: %s permitted: %v", names, peer, limited.Permits(peer))
				}
				if limited.OnlyOthersAllow(peer.Addr()) && !whole.AllowsAddr(peer.Addr()) {
					t.Errorf("%v: no route allows %s", names, addr)
				}
			}
		}
	}
	if (*View)(nil).Only(all) != nil {
		t.Error("a nil view becomes another one")
	}
}

// Explain agrees with Match, and returns the endpoint that Match has used.
func TestExplain(t *testing.T) {
	v := view("10.0.0.0/8:<1-100>", "10.1.0.0/16:<1-100>", "10.1.2.3:<200-300>", "10.1.0.0/16:<50-60>", "2001:db8::/32")
	for peer, want := range map[string]string{
		"10.9.0.1:80":          "10.0.0.0/8:<1-100>",
		"10.1.0.1:80":          "10.1.0.0/16:<1-100>",
		"10.1.2.3:250":         "10.1.2.3:<200-300>",
		"10.1.2.3:80":          "10.1.0.0/16:<1-100>",
		"[2001:db8::1]:80":     "2001:db8::/32",
		"10.1.2.3:301":         "",
		"192.0.2.1:80":         "",
		"[2001:db9::1]:80":     "",
		"[::ffff:10.9.0.1]:80": "10.0.0.0/8:<1-100>",
	} {
		at := netip.MustParseAddrPort(peer)
		name, verdict := v.Match(at)
		byName, endpoint, explained := v.Explain(at)
		got := ""
		if explained == Allowed {
			got = endpoint.String()
		}
		if got != want || byName != name || explained != verdict {
			t.Errorf("%s: %q, %q, %v, want %q and %q, %v of Match", peer, got, byName, explained, want, name, verdict)
		}
	}
	if _, _, verdict := (*View)(nil).Explain(netip.MustParseAddrPort("10.0.0.1:1")); verdict != Denied {
		t.Error("a nil view allows a peer")
	}
}

// T-01: a prefix does not allow the addresses that its cluster excepts, in any form of the address. A route for a
// single excepted address allows it, and so does another cluster without the exception.
func TestExceptedAddressesAreNotReachedThroughAPrefix(t *testing.T) {
	wide := config.Cluster{
		Name: "media/wide", Type: config.Static, Endpoints: []string{"10.0.0.0/8", "2001:db8::/32", "64:ff9b::/96"},
		Except: []string{"10.1.2.3", "2001:db8::7"},
	}
	named := config.Cluster{Name: "media/named", Type: config.Static, Endpoints: []string{"10.1.2.3:<5000-5001>"}}
	other := config.Cluster{Name: "media/other", Type: config.Static, Endpoints: []string{"10.1.0.0/16"}}
	for _, tc := range []struct {
		clusters []config.Cluster
		peer     string
		want     Verdict
	}{
		{[]config.Cluster{wide}, "10.1.2.4:53", Allowed},
		{[]config.Cluster{wide}, "10.1.2.3:53", Denied},
		{[]config.Cluster{wide}, "[::ffff:10.1.2.3]:53", Denied},
		{[]config.Cluster{wide}, "[64:ff9b::a01:203]:53", Denied},
		{[]config.Cluster{wide}, "[2001:db8::8]:53", Allowed},
		{[]config.Cluster{wide}, "[2001:db8::7]:53", Denied},
		{[]config.Cluster{wide, named}, "10.1.2.3:5000", Allowed},
		{[]config.Cluster{wide, named}, "10.1.2.3:53", PortDenied},
		{[]config.Cluster{wide, other}, "10.1.2.3:53", Allowed},
	} {
		var routes []string
		for _, c := range tc.clusters {
			routes = append(routes, c.Name)
		}
		if _, got := NewView(tc.clusters, routes).Match(netip.MustParseAddrPort(tc.peer)); got != tc.want {
			t.Errorf("%v to %s: verdict %d, want %d", routes, tc.peer, got, tc.want)
		}
	}
}

// T-01: no wildcard allows these addresses. Except for loopback, no endpoint allows them.
func TestNoRouteOpensSpecialAddresses(t *testing.T) {
	never := []string{
		"0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"100.100.100.200",
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

// T-01: a special-purpose prefix is allowed only by an endpoint with this prefix or a part of it, and not by a prefix
// that is one bit shorter.
func TestWideRoutesDoNotReachSpecialPrefixes(t *testing.T) {
	for _, list := range [][]string{named4, named6} {
		for _, text := range list {
			p := netip.MustParsePrefix(text)
			for _, addr := range []netip.Addr{p.Addr(), lastOf(p)} {
				inside := []string{"0.0.0.0/1", "128.0.0.0/1"} // the IPv4 addresses inside are allowed
				for bits := range p.Bits() {
					wide := netip.PrefixFrom(p.Addr(), bits).Masked().String()
					if view(append(inside, wide)...).AllowsAddr(addr) {
						t.Errorf("%s is reached through %s", addr, wide)
					}
				}
				if p.Addr().Is4() || !hasForm(p) {
					for _, narrow := range []string{p.String(), addr.String()} {
						if !view(append(inside, narrow)...).AllowsAddr(addr) {
							t.Errorf("%s is not reached though a route names %s", addr, narrow)
						}
					}
				}
			}
		}
	}
	for _, a := range []string{
		"168.63.129.16", "192.0.0.192", "192.88.99.1", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1::808:808", "::ffff:0:8.8.8.8",
		"2001:0:4136:e378::1", "2001:10::1",
		"fec0::1", "feff::1", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:ec2::23", "fd00:42::42", "100::1", "5f00::1",
	} {
		if view("0.0.0.0/0", "::/0").AllowsAddr(netip.MustParseAddr(a)) {
			t.Errorf("%s is reached through a wildcard", a)
		}
	}
}

// Addresses of pods, nodes and laboratories are reachable through wide routes.
func TestWideRoutesReachPrivateAddresses(t *testing.T) {
	v := view("0.0.0.0/0", "::/0")
	for _, a := range []string{
		"10.0.0.1", "10.255.255.254", "172.16.0.1", "172.31.9.9", "192.168.1.1", "100.64.0.1", "100.127.255.254",
		"198.18.0.1", "192.0.2.1", "198.51.100.7",
		"203.0.113.9", "8.8.8.8", "168.63.129.15", "192.0.1.1", "fc00::1", "fd00::1", "fd00:ec3::1", "fd20:ce::253",
		"fd00:c1::1", "fd12:3456::7",
		"2001:200::1", "2001:db8::7", "2a00:1450::1", "2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1",
	} {
		if !v.AllowsAddr(netip.MustParseAddr(a)) {
			t.Errorf("%s is not reached", a)
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(raw)
	return last
}

func hasForm(p netip.Prefix) bool {
	return slices.ContainsFunc(forms, func(f form) bool { return f.prefix.Overlaps(p) })
}

// disguises are the IPv6 addresses that a translator or a tunnel may forward to an IPv4 address.
func disguises(a netip.Addr) map[string]netip.Addr {
	b := a.As4()
	all := map[string]netip.Addr{"mapped": netip.AddrFrom16(a.As16())}
	for name, format := range map[string]string{
		"compatible": "::%s", "translated": "::ffff:0:%s", "NAT64": "64:ff9b::%s", "local NAT64 /96": "64:ff9b:1::%s",
		"local NAT64 /96 with a subnet": "64:ff9b:1:fffe::%s", "ISATAP": "2001:db8::5efe:%s",
		"ISATAP, global":   "2001:db8::200:5efe:%s",
		"ISATAP over 6to4": "2002:808:808::5efe:%s",
	} {
		all[name] = netip.MustParseAddr(fmt.Sprintf(format, a))
	}
	for name, format := range map[string]string{
		"local NAT64 /48":               "64:ff9b:1:%02x%02x:00%02x:%02x00::",
		"local NAT64 /48 with a suffix": "64:ff9b:1:%02x%02x:00%02x:%02x08:808:808",
		"local NAT64 /56":               "64:ff9b:1:00%02x:00%02x:%02x%02x::",
		"local NAT64 /64":               "64:ff9b:1:0:00%02x:%02x%02x:%02x00:0",
		"6to4":                          "2002:%02x%02x:%02x%02x::1",
		"Teredo server":                 "2001:0:%02x%02x:%02x%02x:0:0:f7f7:f7f7",
	} {
		all[name] = netip.MustParseAddr(fmt.Sprintf(format, b[0], b[1], b[2], b[3]))
	}
	all["Teredo"] = netip.MustParseAddr(fmt.Sprintf(
		"2001:0:%02x%02x:%02x%02x:0:0:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], ^b[0], ^b[1], ^b[2], ^b[3],
	))
	all["Teredo client"] = netip.MustParseAddr(
		fmt.Sprintf("2001:0:808:808:0:0:%02x%02x:%02x%02x", ^b[0], ^b[1], ^b[2], ^b[3]),
	)
	return all
}

// exact are the disguises whose verdict is exactly the verdict of the IPv4 address. The others may be refused because
// of another IPv4 address that they contain. An address in 64:ff9b:1::/48 does not show the prefix length of the
// translator.
var exact = []string{"mapped", "translated", "NAT64", "local NAT64 /96", "6to4", "Teredo", "ISATAP", "ISATAP, global"}

// T-02: no form of an address is allowed if the address is not.
func TestEmbeddedAddressesAreNotAllowed(t *testing.T) {
	wide := []string{"0.0.0.0/0", "::/0", "64:ff9b:1::/48", "2001::/32", "::ffff:0:0:0/96"}
	views := map[string]*View{
		"all": view(wide...), "none of IPv4": view(wide[1:]...),
		"some":     view(append(wide[1:], "10.0.0.0/8", "192.168.7.0/24")...),
		"loopback": view(append(wide, "127.0.0.0/8", "168.63.129.16")...),
	}
	for i := range 1 << 16 {
		compareDisguises(t, views, netip.AddrFrom4([4]byte{byte(i >> 8), byte(i), 1, 2}))
	}
	for _, a := range []string{
		"169.254.169.254", "127.0.0.1", "168.63.129.16", "192.0.0.192", "0.0.0.0", "255.255.255.255", "100.100.100.200",
		"192.168.7.7",
	} {
		compareDisguises(t, views, netip.MustParseAddr(a))
	}
}

func compareDisguises(t *testing.T, views map[string]*View, a netip.Addr) {
	t.Helper()
	for form, disguise := range disguises(a) {
		if first := a.As4()[0]; strings.HasPrefix(form, "local") && (first == 0 || first >= 224) {
			continue // no translator forwards to these addresses
		}
		for routes, v := range views {
			plain, disguised := v.AllowsAddr(a), v.AllowsAddr(disguise)
			if disguised && !plain || plain && !disguised && slices.Contains(exact, form) {
				t.Fatalf(
					"routes to %s: %s is reached: %t, but %s (%s): %t", routes, a, plain, disguise, form, disguised,
				)
			}
		}
	}
}

// T-02: a translator with a prefix in the local-use prefix reaches media servers, for every prefix length.
func TestLocalTranslatorsAreUsable(t *testing.T) {
	v := view("0.0.0.0/0", "64:ff9b:1::/48")
	for form, disguise := range disguises(netip.MustParseAddr("198.51.100.7")) {
		if strings.HasPrefix(form, "local NAT64") && !v.AllowsAddr(disguise) {
			t.Errorf("%s (%s) is not reached", disguise, form)
		}
	}
}

// T-02: an IPv6 address that contains an IPv4 address is allowed only if both are allowed.
func TestEmbeddedAddressesNeedBothRoutes(t *testing.T) {
	for _, disguise := range []string{"::%s", "64:ff9b::%s"} {
		media := netip.MustParseAddr(fmt.Sprintf(disguise, "192.0.2.1"))
		if view("::/0").AllowsAddr(media) {
			t.Errorf("%s is reached without a route to 192.0.2.1", media)
		}
		if view("192.0.2.1").AllowsAddr(media) {
			t.Errorf("%s is reached without a route to it", media)
		}
		if !view("::/0", "192.0.2.1").AllowsAddr(media) {
			t.Errorf("%s is not reached with both routes", media)
		}
	}
}

// T-03: the sockets of a gateway are not allowed as peers, by any of their addresses: an address of the host, of
// loopback or of a load balancer, or an IPv6 address that contains such an address. Other ports of the same addresses
// are allowed.
func TestOwnListenersAreDeniedAsPeers(t *testing.T) {
	own, balancer := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddrPort("203.0.113.5:443")
	self := NewSelf(
		[]netip.Addr{own}, []uint16{3478}, []netip.AddrPort{balancer, netip.MustParseAddrPort("[2001:db8::5]:443")},
	)
	v := view("0.0.0.0/0", "127.0.0.0/8", "::/0").WithoutSelf(self)
	for peer, want := range map[string]Verdict{
		"192.0.2.9:3478": PortDenied, "127.0.0.1:3478": PortDenied, "127.9.9.9:3478": PortDenied,
		"[::ffff:192.0.2.9]:3478": PortDenied,
		"203.0.113.5:443":         PortDenied, "[::ffff:203.0.113.5]:443": PortDenied,
		"[64:ff9b::203.0.113.5]:443": PortDenied,
		"[2002:cb00:7105::1]:443":    PortDenied,
		"[64:ff9b::192.0.2.9]:3478":  PortDenied, "[2001:db8::5]:443": PortDenied,
		"192.0.2.9:40000": Allowed, "192.0.2.8:3478": Allowed, "192.0.2.9:443": Allowed, "203.0.113.5:3478": Allowed,
		"203.0.113.6:443":    Allowed,
		"[2001:db8::5]:3478": Allowed,
	} {
		addr := netip.MustParseAddrPort(peer)
		if _, got := v.Match(addr); got != want {
			t.Errorf("%s: verdict %d, want %d", peer, got, want)
		}
		if got := v.Permits(addr); got != (want == Allowed) {
			t.Errorf("%s: permitted %t", peer, got)
		}
	}
	if _, got := view("0.0.0.0/0").Match(balancer); got != Allowed {
		t.Errorf("without a Self: verdict %d", got)
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

// BenchmarkMatch shows that the cost of a verdict does not depend on the number of endpoints.
func BenchmarkMatch(b *testing.B) {
	self := NewSelf(
		[]netip.Addr{netip.MustParseAddr("192.0.2.9")}, []uint16{3478},
		[]netip.AddrPort{netip.MustParseAddrPort("203.0.113.5:443")},
	)
	match := func(name string, v *View, peer string) {
		b.Run(name, func(b *testing.B) {
			addr := netip.MustParseAddrPort(peer)
			v := v.WithoutSelf(self)
			b.ReportAllocs()
			for b.Loop() {
				v.Match(addr)
			}
		})
	}
	for _, n := range []int{10, 1_000, 50_000} {
		endpoints := make([]string, n)
		for i := range endpoints {
			endpoints[i] = fmt.Sprintf("10.%d.%d.%d:<10000-20000>", i>>16, i>>8&255, i&255)
		}
		match(fmt.Sprint(n, " endpoints"), view(endpoints...), "10.0.0.7:15000")
	}
	match("wide", view("0.0.0.0/0", "::/0"), "198.51.100.7:15000")
	match("wide, IPv6", view("0.0.0.0/0", "::/0"), "[2001:db8::7]:15000")
	match("wide, NAT64", view("0.0.0.0/0", "::/0"), "[64:ff9b::198.51.100.7]:15000")
}
