package cluster

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

var named = []config.Cluster{
	{Name: "media/static", Type: config.Static, Endpoints: []string{"192.0.2.1", "127.0.0.5"}},
	{Name: "media/names", Type: config.StrictDNS, Endpoints: []string{"sfu.example", "mcu.example"}},
	{Name: "media/other", Type: config.StrictDNS, Endpoints: []string{"sfu.example"}},
}

func resolved(answers ...string) []config.Cluster {
	var addrs []netip.Addr
	for _, a := range answers {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return Resolve(
		named, map[string][]netip.Addr{"sfu.example": addrs, "gone.example": {netip.MustParseAddr("192.0.2.9")}},
	)
}

func TestNames(t *testing.T) {
	if got, want := Names(named), []string{"sfu.example", "mcu.example", "sfu.example"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
}

func TestAnswersOpenTheirAddressesAtAllPorts(t *testing.T) {
	v := NewView(resolved("192.0.2.7", "2001:db8::7"), []string{"media/names"})
	for peer, want := range map[string]Verdict{
		"192.0.2.7:1": Allowed, "192.0.2.7:65535": Allowed, "[2001:db8::7]:5004": Allowed,
		"[::ffff:192.0.2.7]:5004": Allowed,
		"192.0.2.8:5004":          Denied, "192.0.2.1:5004": Denied, "192.0.2.9:5004": Denied,
	} {
		if name, got := v.Match(netip.MustParseAddrPort(peer)); got != want || got == Allowed && name != "media/names" {
			t.Errorf("%s: verdict %d through %q, want %d", peer, got, name, want)
		}
	}
}

// a name without an answer allows no address.
func TestNoAnswerOpensNothing(t *testing.T) {
	for _, clusters := range [][]config.Cluster{Resolve(named, nil), resolved(), named} {
		v := NewView(clusters, []string{"media/names", "media/other"})
		for _, a := range []string{"192.0.2.1", "192.0.2.7", "10.0.0.1", "127.0.0.1", "2001:db8::7"} {
			if v.AllowsAddr(netip.MustParseAddr(a)) {
				t.Errorf("%s is reached", a)
			}
		}
	}
}

// T-01: an answer of a name server never allows loopback or the metadata service. A static endpoint in the same config
// still can.
func TestAnswersDoNotOpenSpecialAddresses(t *testing.T) {
	special := []string{
		"127.0.0.1", "127.0.0.5", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254",
		"::ffff:169.254.169.254",
		"fe80::1", "fe80::1%eth0", "224.0.0.1", "255.255.255.255", "100.100.100.200", "fd00:ec2::254",
		"168.63.129.16", "192.0.0.192", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fec0::1", "2001::1",
		"64:ff9b:1::c000:207", "::ffff:0:192.0.2.7",
	}
	v := NewView(resolved(append(special, "192.0.2.7")...), []string{"media/names"})
	for _, a := range special {
		if v.AllowsAddr(netip.MustParseAddr(a)) {
			t.Errorf("%s is reached because an answer names it", a)
		}
	}
	if !v.AllowsAddr(netip.MustParseAddr("192.0.2.7")) {
		t.Error("the good address among them is not reached")
	}
	if v := NewView(resolved(special...), []string{"media/names", "media/static"}); !v.AllowsAddr(
		netip.MustParseAddr("127.0.0.5"),
	) {
		t.Error("loopback is not reached though a static endpoint names it")
	}
}

func TestResolveDoesNotModifyTheConfig(t *testing.T) {
	resolved("192.0.2.7")
	if named[1].Type != config.StrictDNS || named[1].Endpoints[0] != "sfu.example" {
		t.Errorf("the config was changed: %v", named[1])
	}
}
