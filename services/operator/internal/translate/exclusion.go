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

// exclusion is what belongs to the cluster itself, which routes do not reach. The zero value excludes nothing.
type exclusion struct {
	// all are the addresses, sorted.
	all []netip.Addr
	// nodes are those of nodes: a pod on the host network has one of them.
	nodes map[netip.Addr]bool
	// host are prefixes of the host that a pod runs on, and of the cloud around it.
	host []netip.Prefix
}

// hostPrefixes are what a process reaches on its own host, and metadata services that have no link-local address. Dataplanes leave them out of wide prefixes, and
// link-local addresses out of all.
var hostPrefixes = prefixesFrom("127.0.0.0/8", "::1/128", "168.63.129.16/32", "192.0.0.0/24", "fd00:42::42/128", "fd00:c1::a9fe:a9fe/128", "fd00:ec2::/32", "fd20:ce::254/128")

func prefixesFrom(texts ...string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}

// lazyExclusion collects the addresses when they are asked for first: most Gateways never need them, and are not translated when a node comes or goes.
func lazyExclusion(v *resource.View, gc *stunnerv1.GatewayConfig) func() exclusion {
	if gc != nil && gc.Spec.ClusterAccess == stunnerv1.ClusterAccessAllow {
		return func() exclusion { return exclusion{} }
	}
	return sync.OnceValue(func() exclusion { return exclusionOf(v) })
}

// exclusionOf returns the addresses of the nodes, of the API servers, and of the Services of kube-system with the pods behind them.
func exclusionOf(v *resource.View) exclusion {
	e := exclusion{nodes: map[netip.Addr]bool{}}
	if v.Host() == nil { // everything is on one host otherwise
		e.host = hostPrefixes
	}
	for _, node := range v.Nodes() {
		for _, a := range node.Status.Addresses {
			e.add(a.Address)
		}
	}
	for _, a := range e.all {
		e.nodes[a] = true
	}
	services := v.SystemServices()
	if svc := v.Service(apiServer); svc != nil {
		services = append(slices.Clone(services), svc)
	}
	for _, svc := range services {
		e.add(clusterIPs(svc)...)
		e.add(externalIPs(svc)...)
		for _, slice := range v.EndpointSlicesOf(resource.KeyOf(svc)) {
			for _, endpoint := range slice.Endpoints {
				e.add(endpoint.Addresses...)
			}
		}
	}
	slices.SortFunc(e.all, netip.Addr.Compare)
	e.all = slices.Compact(e.all)
	return e
}

// add adds those texts that are addresses.
func (e *exclusion) add(texts ...string) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.IsUnspecified() {
			e.all = append(e.all, a.Unmap())
		}
	}
}

// inside returns the addresses that a prefix contains.
func (e exclusion) inside(p netip.Prefix) []netip.Addr {
	first, _ := slices.BinarySearchFunc(e.all, p.Masked().Addr(), netip.Addr.Compare)
	last := first
	for last < len(e.all) && p.Contains(e.all[last]) {
		last++
	}
	return e.all[first:last]
}

// has tells whether an address is one of them.
func (e exclusion) has(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(e.all, a.Unmap(), netip.Addr.Compare)
	return found || e.onHost(netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
}

// onHost tells whether a prefix lies in one of the host.
func (e exclusion) onHost(p netip.Prefix) bool {
	return slices.ContainsFunc(e.host, func(h netip.Prefix) bool { return h.Bits() <= p.Bits() && h.Contains(p.Addr()) })
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
		if p.IsSingleIP() && len(spared) > 0 || b.excluded().onHost(p) {
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

// forged tells whether an endpoint of a Service leads to the cluster itself and to no pod. People write such endpoints by hand. A pod on the host network has the
// address of its node, and is named; a name alone opens nothing else.
func (b backend) forged(a netip.Addr, target *corev1.ObjectReference) bool {
	e := b.excluded()
	named := target != nil && target.Kind == "Pod"
	return e.has(a) && !(named && e.nodes[a.Unmap()])
}
