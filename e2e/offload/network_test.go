// Package offload tests media that the kernel forwards: stunnerd with the offload engines TC and XDP, its clients and
// its peers, each in a network namespace of its own. The wrong packets and the contents under all offloads of network
// interfaces, small MTUs, interfaces that change and killed processes are tests of the package
// services/stunnerd/internal/offload.
//
// # Files
//
//	network_test.go   the namespaces; engine XDP behind one interface: e2e/internal/netns/switch.go
//	gateway_test.go   stunnerd and its counters
//	path_test.go      one channel
//	change_test.go    a stream of datagrams
//	bpf_test.go       objects of the kernel
//
// Other users of the network: e2e/abuse/neighbour_test.go; the flag -paths selects all of them.
package offload

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

const (
	user, password = "ann", "opens-the-door"
	timeout        = 10 * time.Second // limit for an event
)

// family is the addresses of one address family.
type family struct {
	name                         string
	gateway, client, relay, peer netip.Addr // the gateway has an interface to clients and an interface to peers
}

var (
	v4 = family{
		"IPv4", netip.MustParseAddr("10.78.1.1"), netip.MustParseAddr("10.78.1.2"), netip.MustParseAddr("10.78.2.1"),
		netip.MustParseAddr("10.78.2.2"),
	}
	v6 = family{
		"IPv6", netip.MustParseAddr("fd78:1::1"), netip.MustParseAddr("fd78:1::2"), netip.MustParseAddr("fd78:2::1"),
		netip.MustParseAddr("fd78:2::2"),
	}
	families = []family{v4, v6}
)

// network has the gateway in the network namespace of this process.
type network struct {
	clients, peers *netns.Space
	engine         string // offload engine in the config
	programs       string
}

// newNetwork returns a network in which the gateway has the interface clients and the interface peers. With engine XDP,
// these are two names of one interface: XDP forwards only packets that leave by the interface at which they have
// arrived.
func newNetwork(t *testing.T, engine string) *network {
	t.Helper()
	n := &network{engine: engine, programs: harnesstest.Build(t, harness.Stunnerd, "e2e/turnprobe")}
	// An interface announces its link-local address after a second, which makes the programs learn again.
	netns.Run(t, "sysctl -q -w net.ipv6.conf.default.addr_gen_mode=1 net.ipv4.ip_forward=0")
	bpf.Statistics(t)
	var lan *netns.Switch
	if engine == "XDP" {
		lan = netns.NewSwitch(t, "lan")
	}
	n.clients, n.peers = lan.New(t, "clients"), lan.New(t, "peers")
	n.clients.Link(t, netip.PrefixFrom(v4.gateway, 24), netip.PrefixFrom(v4.client, 24))
	linkSix(t, n.clients, "clients", v6.gateway, v6.client)
	n.linkPeers(t)
	return n
}

func (n *network) linkPeers(t *testing.T) {
	t.Helper()
	n.peers.Link(t, netip.PrefixFrom(v4.relay, 24), netip.PrefixFrom(v4.peer, 24))
	linkSix(t, n.peers, "peers", v6.relay, v6.peer)
}

// linkSix adds IPv6 to a link.
func linkSix(t *testing.T, s *netns.Space, name string, here, there netip.Addr) {
	t.Helper()
	netns.Run(t, fmt.Sprintf("ip address add %s/64 dev %s nodad", here, name))
	s.Run(t, fmt.Sprintf("ip address add %s/64 dev eth0 nodad", there))
	s.Run(t, fmt.Sprintf("ip route add default via %s", here))
}

// socket opens a UDP socket in a namespace.
func socket(t *testing.T, s *netns.Space, at netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	open := func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0))) }
	if s == nil {
		open()
	} else {
		s.Do(open)
	}
	harnesstest.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
