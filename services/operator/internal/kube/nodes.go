package kube

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// nodes tell config discovery by which address each node is reached from outside. Of one that has a name only, the name is looked up, again and
// again: relays need an address.
type nodeAddresses struct {
	tell   func(node, address string)
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	log    *slog.Logger
	wake   chan struct{}

	mu sync.Mutex
	// named are the nodes that have a name only.
	named map[string]namedNode
}

// named is the name of a node, and the address that it had last.
type namedNode struct{ host, address string }

func newNodeAddresses(tell func(node, address string), log *slog.Logger) *nodeAddresses {
	return &nodeAddresses{tell: tell, lookup: net.DefaultResolver.LookupNetIP, log: log, wake: make(chan struct{}, 1), named: map[string]namedNode{}}
}

// Times of looking up.
const (
	lookupEvery = 30 * time.Second
	lookupTime  = 3 * time.Second
)

// note hears of a node. What is known of its name stays until that has been looked up.
func (n *nodeAddresses) note(node *corev1.Node, gone bool) {
	address, host := externalAddress(node), externalName(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if gone || address != "" || host == "" {
		delete(n.named, node.Name)
		if gone {
			address = ""
		}
		n.tell(node.Name, address)
		return
	}
	if n.named[node.Name].host != host {
		n.named[node.Name] = namedNode{host, n.named[node.Name].address}
		notify(n.wake)
	}
}

// run looks names up until ctx ends.
func (n *nodeAddresses) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(lookupEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-ticker.C:
		}
		for node, known := range n.all() {
			t.begin()
			n.resolve(ctx, node, known)
		}
		t.end()
	}
}

func (n *nodeAddresses) all() map[string]namedNode {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]namedNode, len(n.named))
	for node, known := range n.named {
		all[node] = known
	}
	return all
}

// resolve looks the name of a node up. An address stays for as long as it is among the answers, and while there is none.
func (n *nodeAddresses) resolve(ctx context.Context, node string, known namedNode) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	found, err := n.lookup(ctx, "ip", known.host)
	if err != nil {
		n.log.Warn("look up node, to be tried again", "node", node, "name", known.host, "error", err)
		return
	}
	address := preferred(found, known.address)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.named[node].host == known.host && address != "" {
		n.named[node] = namedNode{known.host, address}
		n.tell(node, address)
	}
}

// preferred is the address that is used already, if it is still one of them, or the first of IPv4, which clients have, or the first.
func preferred(found []netip.Addr, used string) string {
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b)) })
	for _, a := range found {
		if a.String() == used {
			return used
		}
	}
	if len(found) == 0 {
		return ""
	}
	return found[0].String()
}

// externalAddress is the address by which a node is reached from outside, "" when it has none. Of two families IPv4 counts, which clients have.
func externalAddress(n *corev1.Node) (address string) {
	for _, a := range n.Status.Addresses {
		ip := net.ParseIP(a.Address)
		if a.Type != corev1.NodeExternalIP || ip == nil {
			continue
		}
		if ip.To4() != nil {
			return a.Address
		}
		address = cmp.Or(address, a.Address)
	}
	return address
}

// externalName is the name by which a node is reached from outside, "" when it has none.
func externalName(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeExternalDNS && a.Address != "" {
			return a.Address
		}
	}
	return ""
}
