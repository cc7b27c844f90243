package translate

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// apiServer is the Service of the API servers.
var apiServer = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// exclusion are the addresses of the cluster itself that routes do not reach, sorted.
type exclusion []netip.Addr

// lazyExclusion collects the addresses when they are asked for first: most Gateways never need them, and are not translated when a node comes or goes.
func lazyExclusion(v *resource.View, gc *stunnerv1.GatewayConfig) func() exclusion {
	if gc != nil && gc.Spec.ClusterAccess == stunnerv1.ClusterAccessAllow {
		return func() exclusion { return nil }
	}
	return sync.OnceValue(func() exclusion { return exclusionOf(v) })
}

// exclusionOf returns the addresses of the nodes, of the API servers, and of the Services of kube-system with the pods behind them.
func exclusionOf(v *resource.View) (e exclusion) {
	for _, node := range v.Nodes() {
		for _, a := range node.Status.Addresses {
			e = e.with(a.Address)
		}
	}
	services := v.SystemServices()
	if svc := v.Service(apiServer); svc != nil {
		services = append(slices.Clone(services), svc)
	}
	for _, svc := range services {
		e = e.with(clusterIPs(svc)...).with(externalIPs(svc)...)
		for _, slice := range v.EndpointSlicesOf(resource.KeyOf(svc)) {
			for _, endpoint := range slice.Endpoints {
				e = e.with(endpoint.Addresses...)
			}
		}
	}
	slices.SortFunc(e, netip.Addr.Compare)
	return slices.Compact(e)
}

// with adds those texts that are addresses.
func (e exclusion) with(texts ...string) exclusion {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.IsUnspecified() {
			e = append(e, a.Unmap())
		}
	}
	return e
}

// inside returns the addresses that a prefix contains.
func (e exclusion) inside(p netip.Prefix) exclusion {
	first, _ := slices.BinarySearchFunc(e, p.Masked().Addr(), netip.Addr.Compare)
	last := first
	for last < len(e) && p.Contains(e[last]) {
		last++
	}
	return e[first:last]
}

// has tells whether an address is one of them.
func (e exclusion) has(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(e, a.Unmap(), netip.Addr.Compare)
	return found
}

// prefixOf reads a prefix, or an address as the prefix that contains nothing else.
func prefixOf(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), true
}

// openPrefixes are those of the prefixes of a StaticService that a route may reach, the addresses inside them that it does not reach, and what is wrong with
// the others.
func (b backend) openPrefixes() (open, except []string, found []condition.Finding) {
	service := b.view.StaticService(b.Key())
	prefixes, found := prefixesOf(service)
	for _, text := range prefixes {
		p, ok := prefixOf(text)
		if !ok {
			continue
		}
		spared := b.excluded().inside(p)
		if p.IsSingleIP() && len(spared) > 0 {
			found = append(found, condition.PrefixDenied(resource.KeyOf(service).String(), text))
			continue
		}
		open = append(open, text)
		for _, a := range spared {
			except = append(except, a.String())
		}
	}
	return open, except, found
}

// forged tells whether an endpoint of a Service leads to the cluster itself and to no pod. People write such endpoints by hand; a pod on the host network has
// the address of its node, and is named.
func (b backend) forged(a netip.Addr, target *corev1.ObjectReference) bool {
	return (target == nil || target.Kind != "Pod") && b.excluded().has(a)
}
