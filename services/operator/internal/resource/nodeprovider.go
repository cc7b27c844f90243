package resource

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeProviders counts the Nodes by the scheme of their provider ID. The list of schemes changes only with the first
// and the last Node of a provider, so that few translations depend on a new Node.
type nodeProviders map[string]int

// replace replaces the provider of a Node. old is nil if the Node is new.
func (n nodeProviders) replace(old, now *corev1.Node, del bool, changed Facts) {
	before, after := schemeOf(old), schemeOf(now)
	if del {
		after = ""
	}
	if before == after {
		return
	}
	if after != "" {
		if n[after]++; n[after] == 1 {
			changed.add(theNodeProviders, types.NamespacedName{})
		}
	}
	if before != "" {
		if n[before]--; n[before] == 0 {
			delete(n, before)
			changed.add(theNodeProviders, types.NamespacedName{})
		}
	}
}

func schemeOf(n *corev1.Node) string {
	if n == nil {
		return ""
	}
	return ProviderScheme(n.Spec.ProviderID)
}

// NodeProviders returns the schemes of the provider IDs of all Nodes, sorted. Nodes without a provider ID count as
// none.
func (v *View) NodeProviders() []string {
	v.record(theNodeProviders, types.NamespacedName{})
	return slices.Sorted(maps.Keys(v.nodeProviders))
}

// maxScheme is the maximum length of the scheme of a provider ID in bytes.
const maxScheme = 63

// ProviderScheme returns the part of spec.providerID of a Node that names the cloud provider: the scheme of
// aws:///zone/instance is aws. The scheme of an ID without "://" ends at its first dot: Oracle Cloud has
// ocid1.instance.oc1.region.id. For a text that already is a scheme, the result is that text.
func ProviderScheme(providerID string) string {
	scheme, _, found := strings.Cut(providerID, "://")
	if !found {
		scheme, _, _ = strings.Cut(providerID, ".")
	}
	if len(scheme) > maxScheme {
		return ""
	}
	return scheme
}
