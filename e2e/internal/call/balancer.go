package call

import (
	"net"
	"net/netip"
	"sync"
)

// Balancer selects the pod of a gateway that receives the datagrams of one client, as the nodes of a cluster do.
type Balancer struct {
	mu          sync.Mutex
	pod, before netip.AddrPort
	received    map[netip.AddrPort]int
}

// Select sends the datagrams of the client to a pod from now on. Datagrams that the previous pod has already sent still
// arrive.
func (b *Balancer) Select(pod netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before, b.pod = b.pod, pod
}

// Pod returns the pod that receives the datagrams of the client.
func (b *Balancer) Pod() netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pod
}

// Received returns how many datagrams a pod has sent to the client.
func (b *Balancer) Received(pod netip.AddrPort) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.received[pod]
}

// passes counts a datagram, and reports whether it reaches the client: nodes translate only the source address of the
// pod to which they send the client.
func (b *Balancer) passes(from netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.received == nil {
		b.received = map[netip.AddrPort]int{}
	}
	b.received[from]++
	return from == b.pod || from == b.before
}

// balanced is the socket of a client. To the client, all pods of a gateway have one address.
type balanced struct {
	*net.UDPConn
	gateway  net.Addr
	balancer *Balancer
}

// WriteTo implements net.PacketConn.
func (c balanced) WriteTo(b []byte, _ net.Addr) (int, error) {
	return c.WriteToUDPAddrPort(b, c.balancer.Pod())
}

// ReadFrom implements net.PacketConn.
func (c balanced) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return 0, nil, err
		}
		if c.balancer.passes(netip.AddrPortFrom(from.Addr().Unmap(), from.Port())) {
			return n, c.gateway, nil
		}
	}
}
