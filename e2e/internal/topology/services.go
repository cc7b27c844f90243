package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// clientLink is the interface of the router to the clients.
const clientLink = "clients"

// firewall blocks private addresses for clients, as on the internet. Clients reach them only through a NAT.
const firewall = `
table inet internet {
	chain forward {
		type filter hook forward priority filter;
		iifname "` + clientLink + `" ct status dnat accept
		iifname "` + clientLink + `" ip daddr 10.0.0.0/8 drop
		iifname "` + clientLink + `" ip6 daddr fd00::/8 drop
	}
	chain nat { type nat hook prerouting priority dstnat; }
	chain hairpin {
		type nat hook postrouting priority srcnat;
		iifname != "` + clientLink + `" ct status dnat masquerade
	}
}`

// families are the names of the address families in nftables.
var families = Both[string]{"ip", "ip6"}

// load loads rules of nftables in a namespace.
func load(s *netns.Space, rules string) error {
	file, err := os.CreateTemp("", "*.nft")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(rules)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	_, err = s.Exec("nft -f " + file.Name())
	return err
}

// AddBalancer returns the addresses of a new load balancer, which spreads flows over the nodes. With nat, its own
// addresses are private, and a NAT translates public addresses to them. Otherwise own and public addresses are the
// same.
func (n *Network) AddBalancer(nat bool) (own, public Both[netip.Addr], err error) {
	n.mu.Lock()
	n.balancers++
	number := n.balancers
	n.mu.Unlock()
	own = addrs(host(balancers, number))
	if nat {
		own = addrs(host(n.subnet(balancerNet), number))
	}
	for family, a := range own {
		var hops []netip.Addr
		for _, d := range n.Nodes {
			hops = append(hops, d.Internal[family])
		}
		if err := n.route(a.String(), hops...); err != nil {
			return own, public, err
		}
	}
	if !nat {
		return own, own, nil
	}
	public = n.NextTranslated()
	return own, public, n.Translate(public, own)
}

// NextTranslated returns public addresses of the NAT that nothing uses yet.
func (n *Network) NextTranslated() Both[netip.Addr] {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nats++
	return addrs(host(translated, n.nats))
}

// Translate makes the NAT translate public addresses to private addresses, for clients and for hosts behind it.
func (n *Network) Translate(public, private Both[netip.Addr]) error {
	var rules strings.Builder
	for family, name := range families {
		fmt.Fprintf(&rules, "add rule inet internet nat %s daddr %s dnat %s to %s\n", name, public[family], name, private[family])
	}
	return load(n.router, rules.String())
}

// ServicePort is one port of a Service, with the pods that serve it.
type ServicePort struct {
	// Addresses are the addresses of the load balancer and of the cluster.
	Addresses []netip.Addr
	// NodePort is the port at the nodes; 0 means none.
	NodePort int32
	// Protocol is tcp or udp.
	Protocol string
	Port     int32
	// KeepSource leaves the addresses of clients as they are: externalTrafficPolicy Local.
	KeepSource bool
	// Sticky sends all connections of a client address to one pod: sessionAffinity ClientIP.
	Sticky bool
	// Endpoints are the pods.
	Endpoints []netip.AddrPort
}

// Serve replaces the translations of the nodes. An existing flow keeps its pod until Forget or Move.
func (n *Network) Serve(ports []ServicePort) error {
	n.serving.Lock()
	defer n.serving.Unlock()
	n.ports = ports
	return n.translateServices()
}

// Move makes the nodes send the UDP datagrams of a client to a pod from now on, as a load balancer does when it selects
// another pod.
func (n *Network) Move(client, pod netip.AddrPort) error {
	n.serving.Lock()
	defer n.serving.Unlock()
	n.moves[client] = pod
	if err := n.translateServices(); err != nil {
		return err
	}
	return n.forget(fmt.Sprintf("--orig-src %s --orig-port-src %d", client.Addr(), client.Port()), client.Addr())
}

// Release ends Move for new flows of a client. The existing flow keeps its pod until Forget.
func (n *Network) Release(client netip.AddrPort) error {
	n.serving.Lock()
	defer n.serving.Unlock()
	delete(n.moves, client)
	return n.translateServices()
}

func (n *Network) translateServices() error {
	var rules strings.Builder
	rules.WriteString("table inet services\ndelete table inet services\ntable inet services {\n" +
		"chain nat { type nat hook prerouting priority dstnat;\n")
	for client, pod := range n.moves {
		family := familyOf(pod.Addr())
		fmt.Fprintf(&rules, "%s saddr %s udp sport %d dnat %s to %s\n", family, client.Addr(), client.Port(), family, pod)
	}
	for _, p := range n.ports {
		p.translate(&rules, false)
		p.translate(&rules, true)
	}
	rules.WriteString("}\nchain source { type nat hook postrouting priority srcnat; meta mark 0x1 masquerade\n}\n}\n")
	for _, d := range n.Nodes {
		if err := load(d.Space, rules.String()); err != nil {
			return err
		}
	}
	return nil
}

// translate writes the rules for IPv4 or IPv6.
func (p ServicePort) translate(rules *strings.Builder, six bool) {
	var pods []string
	for _, e := range p.Endpoints {
		if e.Addr().Is6() == six {
			pods = append(pods, fmt.Sprintf("%d : %s . %d", len(pods), e.Addr(), e.Port()))
		}
	}
	if len(pods) == 0 && p.Protocol != "udp" {
		return
	}
	family, protocol := families[0], "ipv4"
	if six {
		family, protocol = families[1], "ipv6"
	}
	mark := "meta mark set 0x1 "
	if p.KeepSource {
		mark = ""
	}
	pick := fmt.Sprintf("numgen random mod %d", len(pods))
	if p.Sticky {
		pick = fmt.Sprintf("jhash %s saddr mod %d", family, len(pods))
	}
	verdict := fmt.Sprintf("%sdnat %s to %s map { %s }", mark, family, pick, strings.Join(pods, ", "))
	if len(pods) == 0 {
		verdict = "drop" // otherwise conntrack would record a flow without a translation
	}
	rule := func(match string) { fmt.Fprintf(rules, "%s %s\n", match, verdict) }
	for _, a := range p.Addresses {
		if a.Is6() == six {
			rule(fmt.Sprintf("%s daddr %s %s dport %d", family, a, p.Protocol, p.Port))
		}
	}
	if p.NodePort != 0 {
		rule(fmt.Sprintf("meta nfproto %s fib daddr type local %s dport %d", protocol, p.Protocol, p.NodePort))
	}
}

// Forget deletes the UDP flows to a pod at all nodes, as kube-proxy does when the pod stops serving.
func (n *Network) Forget(pod netip.Addr) error { return n.forget("--reply-src "+pod.String(), pod) }

// forget deletes the UDP flows of a family that a filter of conntrack selects, at all nodes.
func (n *Network) forget(filter string, family netip.Addr) error {
	for _, d := range n.Nodes {
		if err := forget(d.Space, filter, family); err != nil {
			return err
		}
	}
	return nil
}

func forget(s *netns.Space, filter string, family netip.Addr) error {
	which := " -p udp -f ipv4 " + filter
	if family.Is6() {
		which = " -p udp -f ipv6 " + filter
	}
	// If a flow ends during the deletion, conntrack stops before it has deleted all flows, so the command is repeated.
	var deleting error
	for range 5 {
		list, err := s.Exec("conntrack -L" + which)
		if err != nil || !strings.Contains(list, "src=") {
			return err
		}
		if _, deleting = s.Exec("conntrack -D" + which); deleting == nil {
			return nil
		}
	}
	return deleting
}

// familyOf returns the name of the family of an address in nftables.
func familyOf(a netip.Addr) string {
	if a.Is6() {
		return families[1]
	}
	return families[0]
}

// Neighbour is a client in the network of the pods of a node, so no router is between the pods and the client. Rules in
// the namespace of the client select the pod of a Service.
type Neighbour struct {
	*Pod
	pods map[netip.AddrPort]string // rules by address and port of the client
}

// AddNeighbour connects a client to the network of the pods.
func (d *Node) AddNeighbour() (*Neighbour, error) {
	p, err := d.AddPod()
	if err != nil {
		return nil, err
	}
	return &Neighbour{p, map[netip.AddrPort]string{}}, nil
}

// Send makes the datagrams from an address and port of the client to a Service go to a pod from now on.
func (n *Neighbour) Send(client, service, pod netip.AddrPort) error {
	family := familyOf(pod.Addr())
	n.pods[client] = fmt.Sprintf("%[1]s saddr %[2]s udp sport %[3]d %[1]s daddr %[4]s dnat %[1]s to %[5]s\n",
		family, client.Addr(), client.Port(), service.Addr(), pod)
	var rules strings.Builder
	rules.WriteString("table inet sends\ndelete table inet sends\ntable inet sends {\n" +
		"chain nat { type nat hook output priority -100;\n")
	for _, rule := range n.pods {
		rules.WriteString(rule)
	}
	rules.WriteString("}\n}\n")
	if err := load(n.Space, rules.String()); err != nil {
		return err
	}
	return forget(n.Space, fmt.Sprintf("--orig-src %s --orig-port-src %d", client.Addr(), client.Port()), client.Addr())
}
