package translate

import (
	"net/netip"
	"slices"
	"sort"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
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

// shield keeps routes away from the cluster itself.
type shield struct {
	// excluded are the addresses of the cluster. They are collected when they are asked for first: Gateways that do not need them are not translated when a
	// node comes or goes.
	excluded func() exclusion
	// opened is what they leave of StaticServices.
	opened map[types.NamespacedName]*opening
}

// shields returns the shield of Gateways whose class guards the cluster, and that of the others.
func shields(v *resource.View) map[bool]*shield {
	return map[bool]*shield{
		true:  {excluded: sync.OnceValue(func() exclusion { return exclusionOf(v) }), opened: map[types.NamespacedName]*opening{}},
		false: {excluded: func() exclusion { return exclusion{} }, opened: map[types.NamespacedName]*opening{}},
	}
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

// within returns the bounds, in all, of the addresses that a prefix contains.
func (e exclusion) within(p netip.Prefix) (first, last int) {
	first, _ = slices.BinarySearchFunc(e.all, p.Masked().Addr(), netip.Addr.Compare)
	return first, first + sort.Search(len(e.all)-first, func(i int) bool { return !p.Contains(e.all[first+i]) })
}

// inside returns the addresses that any of the prefixes contains, each one once. It takes no longer for prefixes that lie inside one another.
func (e exclusion) inside(prefixes []netip.Prefix) (addresses []string) {
	begin, end := make([]int, len(e.all)+1), make([]int, len(e.all)+1)
	for _, p := range prefixes {
		first, last := e.within(p)
		begin[first]++
		end[last]++
	}
	depth := 0
	for i, a := range e.all {
		if depth += begin[i] - end[i]; depth > 0 {
			addresses = append(addresses, a.String())
		}
	}
	return addresses
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

// opening is what routes may reach of a StaticService.
type opening struct {
	// prefixes are those that are open, as they are written.
	prefixes []string
	// except are the addresses inside them that routes do not reach.
	except []string
	// found is what is wrong with the other prefixes.
	found []condition.Finding
}

// opening returns what routes may reach of a StaticService. It is found out once, however many routes name it.
func (s *shield) opening(service *stunnerv1.StaticService) *opening {
	key := resource.KeyOf(service)
	if o := s.opened[key]; o != nil {
		return o
	}
	o := &opening{}
	s.opened[key] = o
	var open []netip.Prefix
	for _, text := range service.Spec.Prefixes {
		p, ok := prefixOf(text)
		if _, err := config.ParsePrefix(text); err != nil || !ok { // ports belong to the route
			o.found = append(o.found, condition.PrefixInvalid(key.String(), text))
			continue
		}
		if first, last := s.excluded().within(p); p.IsSingleIP() && first < last || s.excluded().onHost(p) {
			o.found = append(o.found, condition.PrefixDenied(key.String(), text))
			continue
		}
		o.prefixes, open = append(o.prefixes, text), append(open, p)
	}
	o.except = s.excluded().inside(open)
	return o
}

// forged tells whether an endpoint of a Service leads to the cluster itself and to no pod. People write such endpoints by hand. A pod on the host network has the
// address of its node, and is named; a name alone opens nothing else.
func (e exclusion) forged(a netip.Addr, target *corev1.ObjectReference) bool {
	named := target != nil && target.Kind == "Pod"
	return e.has(a) && !(named && e.nodes[a.Unmap()])
}
