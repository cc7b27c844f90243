package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Routes must not reach the addresses of the cluster itself, such as nodes and the API server, unless
// spec.clusterAccess of the class's GatewayConfig is Allow. clusterAddresses collects these addresses. clusterGuard
// removes them from the prefixes of StaticServices and from the endpoints of Services.

// apiServer is the Service of the Kubernetes API server.
var apiServer = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// clusterAddresses are the addresses of the cluster itself. The zero value contains none.
type clusterAddresses struct {
	// all is sorted.
	all []netip.Addr
	// host are the prefixes in hostPrefixes; empty for the file provider.
	host []netip.Prefix
}

// hostPrefixes are the loopback addresses, and the addresses of services that clouds offer to a host, such as metadata.
// Link-local addresses and 100.100.100.200 need no entry, because a dataplane never relays to them. A dataplane also
// excludes hostPrefixes from wider prefixes.
var hostPrefixes = mustParsePrefixes(
	"127.0.0.0/8", "::1/128", "168.63.129.16/32", "192.0.0.0/24",
	"fd00:42::42/128", "fd00:c1::a9fe:a9fe/128", "fd00:ec2::/32", "fd20:ce::254/128",
)

func mustParsePrefixes(texts ...string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	return prefixes
}

// systemAddresses returns the addresses of the API server and of the Services in kube-system, including their
// endpoints. Except with the file provider, it also returns hostPrefixes.
func systemAddresses(v *resource.View) clusterAddresses {
	var c clusterAddresses
	if v.Host() == nil { // with the file provider, routes may lead to peers on the host itself
		c.host = hostPrefixes
	}
	services := v.SystemServices()
	if svc := v.Service(apiServer); svc != nil {
		services = append(slices.Clone(services), svc)
	}
	for _, svc := range services {
		c.add(clusterIPs(svc)...)
		c.add(externalIPs(svc)...)
		for _, slice := range v.EndpointSlicesOf(resource.KeyOf(svc)) {
			for _, endpoint := range slice.Endpoints {
				c.add(endpoint.Addresses...)
			}
		}
	}
	return c.sorted()
}

// withNodes returns a copy that also contains the addresses of all nodes.
func (c clusterAddresses) withNodes(v *resource.View) clusterAddresses {
	c.all = slices.Clone(c.all)
	for _, node := range v.Nodes() {
		for _, a := range node.Status.Addresses {
			c.add(a.Address)
		}
	}
	return c.sorted()
}

func (c clusterAddresses) sorted() clusterAddresses {
	slices.SortFunc(c.all, netip.Addr.Compare)
	c.all = slices.Compact(c.all)
	return c
}

// add adds each text that is an IP address. Other texts are skipped, because the addresses in the status of a node may
// be host names.
func (c *clusterAddresses) add(texts ...string) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.IsUnspecified() {
			c.all = append(c.all, a.Unmap())
		}
	}
}

// rangeIn returns the half-open range of the indexes in c.all whose addresses are in a prefix.
func (c clusterAddresses) rangeIn(p netip.Prefix) (first, end int) {
	first, _ = slices.BinarySearchFunc(c.all, p.Masked().Addr(), netip.Addr.Compare)
	return first, first + sort.Search(len(c.all)-first, func(i int) bool { return !p.Contains(c.all[first+i]) })
}

// in returns the addresses in any of the prefixes, sorted and without duplicates. It visits each address once, even if
// prefixes are nested.
func (c clusterAddresses) in(prefixes []netip.Prefix) (addresses []string) {
	begins, ends := make([]int, len(c.all)+1), make([]int, len(c.all)+1)
	for _, p := range prefixes {
		first, end := c.rangeIn(p)
		begins[first]++
		ends[end]++
	}
	depth := 0
	for i, a := range c.all {
		if depth += begins[i] - ends[i]; depth > 0 {
			addresses = append(addresses, a.String())
		}
	}
	return addresses
}

func (c clusterAddresses) contain(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(c.all, a.Unmap(), netip.Addr.Compare)
	return found || c.onHost(netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
}

// onHost reports whether a prefix lies within one of the loopback or cloud metadata prefixes in c.host.
func (c clusterAddresses) onHost(p netip.Prefix) bool {
	covers := func(h netip.Prefix) bool { return h.Bits() <= p.Bits() && h.Contains(p.Addr()) }
	return slices.ContainsFunc(c.host, covers)
}

// clusterGuard removes the addresses of the cluster itself from the endpoints of routes.
type clusterGuard struct {
	// view is used to look up the addresses of the cluster. It is nil if spec.clusterAccess is Allow: the guard then
	// removes no addresses.
	view *resource.View
	// system and all cache the results of systemAddresses and allAddresses.
	system, all *clusterAddresses
	// nodes caches the addresses of nodes, by the address block (resource.AddressBlock) that contains them.
	nodes map[netip.Prefix][]netip.Addr
	// static caches the results of guardStatic.
	static map[types.NamespacedName]*guardedPrefixes
	// prefixes decides which prefixes of StaticServices are denied.
	prefixes *prefixGuard
}

// clusterGuards are the guards of a translation, by the parameters that determine them. When the status of a route is
// translated, all Gateways of the route share these guards and their caches.
type clusterGuards struct {
	view *resource.View
	of   map[string]*clusterGuard
}

func newClusterGuards(v *resource.View) clusterGuards {
	return clusterGuards{view: v, of: map[string]*clusterGuard{}}
}

// guard returns the guard for the parameters of a Gateway.
func (c clusterGuards) guard(p parameters) *clusterGuard {
	rules := p.prefixRules()
	key := fmt.Sprint(p.guardsCluster(), rules)
	if known := c.of[key]; known != nil {
		return known
	}
	g := &clusterGuard{
		static: map[types.NamespacedName]*guardedPrefixes{}, prefixes: &prefixGuard{view: c.view, rules: rules},
	}
	if p.guardsCluster() {
		g.view, g.nodes = c.view, map[netip.Prefix][]netip.Addr{}
	} else {
		g.system, g.all = &clusterAddresses{}, &clusterAddresses{}
	}
	c.of[key] = g
	return g
}

func (g *clusterGuard) systemAddresses() *clusterAddresses {
	if g.system == nil {
		g.system = new(systemAddresses(g.view))
	}
	return g.system
}

// allAddresses returns the addresses of the API server, of the Services in kube-system and of all nodes. It is called
// for StaticServices only, so that a Gateway without StaticServices is not translated again whenever a node is added.
func (g *clusterGuard) allAddresses() *clusterAddresses {
	if g.all == nil {
		g.all = new(g.systemAddresses().withNodes(g.view))
	}
	return g.all
}

// denyEndpoint reports whether routes must not reach an endpoint of a Service because it is an address of the cluster
// itself. A pod with host network is allowed: its endpoint has the address of a node, and a Pod as targetRef. A node
// address without such a targetRef was written by hand and is denied.
func (g *clusterGuard) denyEndpoint(a netip.Addr, target *corev1.ObjectReference) bool {
	if a = a.Unmap(); g.isNode(a) {
		return target == nil || target.Kind != "Pod"
	}
	return g.systemAddresses().contain(a)
}

func (g *clusterGuard) isNode(a netip.Addr) bool {
	if g.view == nil {
		return false
	}
	block := resource.AddressBlock(a)
	nodes, known := g.nodes[block]
	if !known {
		nodes = g.view.NodeAddressesIn(block)
		g.nodes[block] = nodes
	}
	_, found := slices.BinarySearchFunc(nodes, a, netip.Addr.Compare)
	return found
}

// guardedPrefixes is the result of checking the prefixes of a StaticService.
type guardedPrefixes struct {
	// prefixes are the allowed prefixes, unchanged from the spec.
	prefixes []string
	// except are the addresses of the cluster that lie within the allowed prefixes, and that routes must not reach.
	except []string
	// found are the findings about the prefixes that are invalid or that routes must not reach.
	found []condition.Finding
}

// guardStatic returns the prefixes of a StaticService that routes may reach. A prefix that is a single address of the
// cluster, or that lies within hostPrefixes, is rejected. Any other prefix is allowed, except for the addresses of the
// cluster in it.
func (g *clusterGuard) guardStatic(service *stunnerv1.StaticService) *guardedPrefixes {
	key := resource.KeyOf(service)
	if known := g.static[key]; known != nil {
		return known
	}
	allowed := &guardedPrefixes{}
	g.static[key] = allowed
	var parsed []netip.Prefix
	for i, text := range service.Spec.Prefixes {
		p, ok := parsePrefix(text)
		if _, err := config.ParsePrefix(text); err != nil || !ok { // an IP address with a port is not valid here
			allowed.found = append(allowed.found, condition.PrefixInvalid(key.String(), i, text))
			continue
		}
		if first, end := g.allAddresses().rangeIn(p); p.IsSingleIP() && first < end || g.allAddresses().onHost(p) {
			allowed.found = append(allowed.found, condition.PrefixDenied(key.String(), i, text))
			continue
		}
		if g.prefixes.denies(p) {
			allowed.found = append(allowed.found, condition.PrefixNotAllowed(key.String(), i, text))
			continue
		}
		allowed.prefixes, parsed = append(allowed.prefixes, text), append(parsed, p)
	}
	allowed.except = g.allAddresses().in(parsed)
	return allowed
}
