package kube

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// nodeAddresses sends the external IP address of each node to config discovery, which fills it into configs as the
// relay address. If a node has only an external DNS name, the name is resolved periodically.
type nodeAddresses struct {
	// tell is called with the address of a node, or "" if the node has none.
	tell   func(node, address string)
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	log    *slog.Logger
	wake   chan struct{}

	mu sync.Mutex
	// named are the nodes without an external IP address that have an external DNS name.
	named map[string]namedNode
}

// namedNode is the DNS name of a node, and the last address that it resolved to.
type namedNode struct{ host, address string }

func newNodeAddresses(tell func(node, address string), log *slog.Logger) *nodeAddresses {
	return &nodeAddresses{
		tell: tell, lookup: net.DefaultResolver.LookupNetIP, log: log,
		wake: make(chan struct{}, 1), named: map[string]namedNode{},
	}
}

const (
	lookupEvery = 30 * time.Second
	lookupTime  = 3 * time.Second
)

// update handles a changed node. If the DNS name of a node changes, its last address stays in use until the new name is
// resolved.
func (n *nodeAddresses) update(node *corev1.Node, deleted bool) {
	address, host := externalAddress(node), externalName(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if deleted || address != "" || host == "" {
		delete(n.named, node.Name)
		if deleted {
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

// run resolves names until ctx ends.
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
	return maps.Clone(n.named)
}

// resolve looks up the DNS name of a node. The current address stays in use as long as the DNS answer contains it, and
// also if the answer contains no address.
func (n *nodeAddresses) resolve(ctx context.Context, node string, known namedNode) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	found, err := n.lookup(ctx, "ip", known.host)
	if err != nil {
		n.log.Warn("cannot resolve the name of a node, will retry", "node", node, "name", known.host, "error", err)
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

// preferred selects one of the addresses found by DNS. It returns the address in use if it is among them, so that relay
// addresses change as rarely as possible. Otherwise it returns the lowest IPv4 address, because every client has IPv4,
// or else the lowest IPv6 address.
func preferred(found []netip.Addr, used string) string {
	for i := range found {
		found[i] = found[i].Unmap()
	}
	switch {
	case len(found) == 0:
		return ""
	case slices.ContainsFunc(found, func(a netip.Addr) bool { return a.String() == used }):
		return used
	}
	return slices.MinFunc(found, netip.Addr.Compare).String()
}

// externalAddress returns the first ExternalIP of a node, preferring IPv4; "" if it has none.
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

// externalName returns the ExternalDNS name of a node; "" if it has none.
func externalName(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeExternalDNS && a.Address != "" {
			return a.Address
		}
	}
	return ""
}
