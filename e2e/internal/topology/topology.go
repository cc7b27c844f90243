// Package topology makes the networks between clients, nodes, pods and media servers from network namespaces.
//
//	clients ── router ── node 1 ── pods
//	             │   └── node 2 …
//	             ├────── media servers
//	             └────── the test process, with the API server, the operator and the auth service
//
// The router is the internet: it sends the address of a load balancer to the nodes, and translates the public addresses
// of a NAT. Each node translates the addresses of Services to pods, as kube-proxy does. Several networks of one process
// do not see each other.
//
//	topology.go  the namespaces and their addresses
//	services.go  load balancers, NAT and kube-proxy
//	proxy.go     hosts that end connections, and clients that share an address
//	home.go      the route of the test process to public addresses
package topology

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// Both is a pair of values: a value for IPv4 and a value for IPv6.
type Both[T any] [2]T

// Addresses that are the same in each network, because they are visible only inside it.
var (
	clientNet  = dual("203.0.113.0/27", "2001:db8:1::/64")
	nodeNet    = dual("203.0.113.32/27", "2001:db8:2::/64")
	balancers  = dual("203.0.113.64/27", "2001:db8:3::/64")
	translated = dual("198.51.100.0/24", "2001:db8:4::/64")
)

// Numbers of the subnets of a network. Node N has subnet N, and its pods have podNet + N.
const (
	podNet      = 100
	peerNet     = 240
	proxyNet    = 241 // proxy N has proxyNet + N
	balancerNet = 250
	homeNet     = 255
)

// maxPods is the maximum number of pods of a node, including deleted pods.
const maxPods = 250

// bridge is the interface of a node to its pods, which reach each other without the node.
const bridge = "pods"

// maxPeers is the number of addresses of media servers.
const maxPeers = 8

func dual(v4, v6 string) Both[netip.Prefix] {
	return Both[netip.Prefix]{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

// host returns the addresses with a number in two networks, with the length of their networks.
func host(of Both[netip.Prefix], number int) (both Both[netip.Prefix]) {
	for i, p := range of {
		b := p.Addr().AsSlice()
		b[len(b)-1] += byte(number)
		a, _ := netip.AddrFromSlice(b)
		both[i] = netip.PrefixFrom(a, p.Bits())
	}
	return both
}

func addrs(of Both[netip.Prefix]) Both[netip.Addr] {
	return Both[netip.Addr]{of[0].Addr(), of[1].Addr()}
}

// Options of a network.
type Options struct {
	// Number distinguishes the networks of a process: 1 to 254.
	Number int
	// Nodes is the number of nodes, at most 9.
	Nodes int
	// XDP connects nodes by interfaces whose driver supports XDP.
	XDP bool
}

// Network is a set of connected network namespaces.
type Network struct {
	Clients, Peers *netns.Space
	Nodes          []*Node
	// Home are the addresses of the test process for nodes and pods. Client are the addresses of clients.
	Home, Client Both[netip.Addr]

	options Options
	router  *netns.Space
	closers []io.Closer

	mu                       sync.Mutex // guards closers and the numbers of balancers, NATs, proxies and pods
	balancers, nats, proxies int

	serving sync.Mutex // guards ports, moves and the rules at nodes
	ports   []ServicePort
	moves   map[netip.AddrPort]netip.AddrPort // pods of clients that Move has moved
}

// Node is a node of a cluster.
type Node struct {
	*netns.Space
	Name string
	// Internal and External are the addresses of the node. The node has both, and clients reach the external addresses
	// only.
	Internal, External Both[netip.Addr]

	net    *Network
	podNet Both[netip.Prefix]
	pods   int // number of pods, including deleted ones
}

// Pod is the network of a pod.
type Pod struct {
	*netns.Space
	Addrs Both[netip.Addr]

	node *Node
	port string // port of the bridge
}

// New makes a network. The test process must be in a network namespace of its own (netns.Isolated).
func New(o Options) (*Network, error) {
	n := &Network{options: o, moves: map[netip.AddrPort]netip.AddrPort{}}
	if err := n.build(); err != nil {
		return nil, fmt.Errorf("make network %d: %w", o.Number, errors.Join(err, n.Close()))
	}
	return n, nil
}

func (n *Network) build() (err error) {
	if n.router, err = n.open("router"); err != nil {
		return err
	}
	if err := n.reachHome(); err != nil {
		return err
	}
	if n.Clients, err = n.open("clients"); err != nil {
		return err
	}
	n.Client = addrs(host(clientNet, 2))
	if err := n.join(n.Clients, clientLink, host(clientNet, 1), host(clientNet, 2)); err != nil {
		return err
	}
	if n.Peers, err = n.open("peers"); err != nil {
		return err
	}
	if err := n.join(n.Peers, "peers", host(n.subnet(peerNet), 1), host(n.subnet(peerNet), 2)); err != nil {
		return err
	}
	for i := 1; i < maxPeers; i++ {
		for _, p := range host(n.subnet(peerNet), 2+i) {
			if err := n.Peers.AddAddress(p, "eth0"); err != nil {
				return err
			}
		}
	}
	for i := range n.options.Nodes {
		if err := n.addNode(i + 1); err != nil {
			return err
		}
	}
	return load(n.router, firewall)
}

// Close ends the namespaces. Processes in them must have ended.
func (n *Network) Close() (err error) {
	for _, c := range n.closers {
		err = errors.Join(err, c.Close())
	}
	n.closers = nil
	return err
}

// closer makes a namespace an io.Closer.
type closer struct{ *netns.Space }

// Close ends the namespace.
func (c closer) Close() error {
	c.Space.Close()
	return nil
}

// open makes a namespace that forwards packets.
func (n *Network) open(name string) (*netns.Space, error) {
	s, err := netns.Open(name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.closers = append(n.closers, closer{s})
	n.mu.Unlock()
	if _, err := s.Exec("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 " +
		"net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1"); err != nil {
		return nil, err
	}
	return s, nil
}

// reachHome connects the router to the namespace of the test process.
func (n *Network) reachHome() error {
	home, name := n.subnet(homeNet), fmt.Sprintf("net%d", n.options.Number)
	n.Home = addrs(host(home, 1))
	commands := []string{
		fmt.Sprintf("ip link add %s type veth peer name home netns %d", name, n.router.Thread()), "ip link set " + name + " up",
	}
	for _, c := range commands {
		if _, err := netns.Exec(c); err != nil {
			return err
		}
	}
	if _, err := n.router.Exec("ip link set home up"); err != nil {
		return err
	}
	whole := dual(fmt.Sprintf("10.%d.0.0/16", n.options.Number), fmt.Sprintf("fd00:%d::/32", n.options.Number))
	for family := range families {
		here, there := host(home, 1)[family], host(home, 2)[family]
		if err := errors.Join(netns.AddAddress(here, name), n.router.AddAddress(there, "home")); err != nil {
			return err
		}
		if _, err := netns.Exec(fmt.Sprintf("ip route add %s via %s", whole[family], there.Addr())); err != nil {
			return err
		}
	}
	return nil
}

func (n *Network) subnet(number int) Both[netip.Prefix] {
	return dual(fmt.Sprintf("10.%d.%d.0/24", n.options.Number, number),
		fmt.Sprintf("fd00:%d:%x::/64", n.options.Number, number))
}

// join connects a namespace to the router.
func (n *Network) join(s *netns.Space, name string, here, there Both[netip.Prefix]) error {
	return s.Join(n.router, name, here[:], there[:])
}

func (n *Network) addNode(number int) (err error) {
	d := &Node{Name: fmt.Sprintf("net%d-node%d", n.options.Number, number), net: n}
	if d.Space, err = n.open(d.Name); err != nil {
		return err
	}
	here, there := host(n.subnet(number), 1), host(n.subnet(number), 2)
	name := fmt.Sprintf("node%d", number)
	if n.options.XDP {
		var taps io.Closer
		if taps, err = d.JoinByTAP(n.router, name, here[:], there[:]); err == nil {
			n.closers = append(n.closers, taps)
		}
	} else {
		err = n.join(d.Space, name, here, there)
	}
	if err != nil {
		return err
	}
	d.Internal, d.External = addrs(there), addrs(host(nodeNet, number))
	for family, a := range d.External {
		if err := d.AddAddress(netip.PrefixFrom(a, a.BitLen()), "lo"); err != nil {
			return err
		}
		if err := n.route(a.String(), d.Internal[family]); err != nil {
			return err
		}
	}
	if err := d.addBridge(number); err != nil {
		return err
	}
	n.Nodes = append(n.Nodes, d)
	return nil
}

// addBridge makes the network of the pods of a node.
func (d *Node) addBridge(number int) error {
	d.podNet = d.net.subnet(podNet + number)
	// Snooping is off: with it, neighbour solicitations (RFC 4861) stop when the memberships expire, because no host is a
	// querier. The bridge has an address of its own: otherwise it would have the address of one of its ports, and after
	// the deletion of that pod, the other pods would send to the old address for half a minute.
	add := "ip link add " + bridge + " address 02:00:00:00:00:01 type bridge mcast_snooping 0"
	for _, command := range []string{add, "ip link set " + bridge + " up"} {
		if _, err := d.Exec(command); err != nil {
			return err
		}
	}
	for family, p := range host(d.podNet, 1) {
		if err := d.AddAddress(p, bridge); err != nil {
			return err
		}
		if err := d.net.route(d.podNet[family].String(), d.Internal[family]); err != nil {
			return err
		}
	}
	return nil
}

// route makes the router send packets for a destination to one or several next hops.
func (n *Network) route(destination string, hops ...netip.Addr) error {
	command := "ip route add " + destination
	for _, h := range hops {
		command += fmt.Sprintf(" nexthop via %s", h)
	}
	_, err := n.router.Exec(command)
	return err
}

// AddPod connects a new pod to the node. The pods of a node are neighbours: they reach each other without the node.
func (d *Node) AddPod() (*Pod, error) {
	n := d.net
	n.mu.Lock()
	d.pods++
	number := d.pods
	n.mu.Unlock()
	if number > maxPods {
		return nil, fmt.Errorf("add a pod to %s: a node has at most %d pods", d.Name, maxPods)
	}
	name := fmt.Sprintf("pod%d", number)
	space, err := n.open(name)
	if err != nil {
		return nil, err
	}
	gateways, addresses := host(d.podNet, 1), host(d.podNet, 1+number)
	if err := space.Plug(d.Space, bridge, name, gateways[:], addresses[:]); err != nil {
		return nil, err
	}
	return &Pod{Space: space, Addrs: addrs(addresses), node: d, port: name}, nil
}

// Unplug separates the pod from the network, as the failure of a cable does. Plug connects it again.
func (p *Pod) Unplug() error {
	_, err := p.node.Exec("ip link set " + p.port + " nomaster")
	return err
}

// Plug connects the pod after Unplug.
func (p *Pod) Plug() error {
	_, err := p.node.Exec("ip link set " + p.port + " master " + bridge)
	return err
}

// Pods returns the IPv4 network of the pods of the node.
func (d *Node) Pods() netip.Prefix { return d.podNet[0] }

// Unresolve makes the pod forget the link-layer addresses of its neighbours.
func (p *Pod) Unresolve() error {
	_, err := p.Exec("ip neigh flush dev eth0")
	return err
}

// Router returns the namespace of the router, which is the NAT of its clients.
func (n *Network) Router() *netns.Space { return n.router }

// Peer returns the addresses of a media server, 0 to 7.
func (n *Network) Peer(number int) Both[netip.Addr] { return addrs(host(n.subnet(peerNet), 2+number)) }
