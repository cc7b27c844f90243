package resource

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// networks counts, for each network of the cluster, the objects in it. Only the first and the last object of a network
// change the set of networks, so few translations depend on a new Service or pod.
type networks map[netip.Prefix]int

func (n networks) replace(old, now []netip.Prefix, changed Facts) {
	for _, p := range now {
		if n[p]++; n[p] == 1 && !slices.Contains(old, p) {
			changed.add(theNetworks, types.NamespacedName{})
		}
	}
	for _, p := range old {
		if n[p]--; n[p] == 0 {
			delete(n, p)
			changed.add(theNetworks, types.NamespacedName{})
		}
	}
}

// present returns the networks if the object exists.
func present(networks []netip.Prefix, exists bool) []netip.Prefix {
	if !exists {
		return nil
	}
	return networks
}

// Networks returns the networks of the cluster, as far as objects show them, in no particular order: the pod networks
// of nodes, and the AddressBlock of each cluster IP and of each pod of a Service. A block that contains an address of a
// node is not among them, because it may be the network of the nodes and of hosts that do not belong to the cluster.
func (v *View) Networks() (all []netip.Prefix) {
	v.record(theNetworks, types.NamespacedName{})
	for p := range v.networks {
		if AddressBlock(p.Addr()) != p || len(v.nodeAddresses.of[blockKey(p)]) == 0 {
			all = append(all, p)
		}
	}
	return all
}

func networksOfNode(n *corev1.Node) (all []netip.Prefix) {
	if n == nil {
		return nil
	}
	for _, text := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
		if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(all, p.Masked()) {
			all = append(all, p.Masked())
		}
	}
	return all
}

func networksOfService(s *corev1.Service) (all []netip.Prefix) {
	if s == nil {
		return nil
	}
	for _, text := range append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ClusterIP) {
		all = addBlock(all, text)
	}
	return all
}

func networksOfSlice(s *discoveryv1.EndpointSlice) (all []netip.Prefix) {
	if s == nil {
		return nil
	}
	for _, e := range s.Endpoints {
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
			continue
		}
		for _, a := range e.Addresses { // of a pod on the host network, the address of its node
			all = addBlock(all, a)
		}
	}
	return all
}

// addBlock adds the AddressBlock of an address. Texts that are not addresses, such as None, are skipped.
func addBlock(all []netip.Prefix, text string) []netip.Prefix {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.IsUnspecified() {
		return all
	}
	if block := AddressBlock(a); !slices.Contains(all, block) {
		all = append(all, block)
	}
	return all
}
