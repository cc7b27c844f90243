package topology

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// AddProxy creates a host that receives TCP connections to ports of public addresses. Its own connections to these
// addresses reach the nodes. It also returns the addresses of the host.
func (n *Network) AddProxy(public Both[netip.Addr], ports []int32) (*netns.Space, Both[netip.Addr], error) {
	n.mu.Lock()
	n.proxies++
	number := n.proxies
	n.mu.Unlock()
	name, subnet := fmt.Sprintf("proxy%d", number), n.subnet(proxyNet+number)
	addresses := addrs(host(subnet, 2))
	space, err := n.open(name)
	if err != nil {
		return nil, addresses, err
	}
	if err := n.join(space, name, host(subnet, 1), host(subnet, 2)); err != nil {
		return nil, addresses, err
	}
	list := strings.Trim(fmt.Sprint(ports), "[]")
	var rules strings.Builder
	for family, protocol := range families {
		// This rule precedes the rule of Translate, which is for all ports of the address.
		fmt.Fprintf(&rules, "insert rule inet internet nat iifname != %q %s daddr %s tcp dport { %s } dnat %s to %s\n",
			name, protocol, public[family], strings.ReplaceAll(list, " ", ", "), protocol, addresses[family])
	}
	return space, addresses, load(n.router, rules.String())
}

// sharedNet are the networks of clients that share an address. A NAT translates the private IPv4 addresses to the
// address of the clients' namespace. IPv6 has no NAT: the clients share a prefix only.
var sharedNet = dual("100.64.0.0/24", "2001:db8:1::/64")

// ShareClients gives the clients more addresses and returns them. They share one public address: the router receives
// IPv4 datagrams of all of them with that address.
func (n *Network) ShareClients(count int) (list []Both[netip.Addr], err error) {
	const first = 10 // after the addresses of client and router in IPv6
	for i := range count {
		one := host(sharedNet, first+i)
		for _, p := range one {
			if err := n.Clients.AddAddress(p, "eth0"); err != nil {
				return nil, err
			}
		}
		list = append(list, addrs(one))
	}
	return list, load(n.Clients, fmt.Sprintf(`table inet home {
	chain source { type nat hook postrouting priority srcnat; ip saddr %s snat ip to %s; }
}`, sharedNet[0], n.Client[0]))
}
