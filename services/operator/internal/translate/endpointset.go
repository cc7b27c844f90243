package translate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// endpointSet is the set of endpoints of one backend. It refers to the objects that contain the addresses and builds
// endpoints only on demand, so that a budget can be checked before: a Service with a thousand addresses may be a
// backend with a hundred port ranges.
//
// A backend is either a StaticService (static), a Service without endpoint discovery (name), or a Service with endpoint
// discovery (slices, clusterIPs and serviceName).
type endpointSet struct {
	static *stunnerv1.StaticService
	// service is the Service with endpoint discovery.
	service types.NamespacedName
	// name is the DNS name of the Service, used as the endpoint.
	name string
	// slices contain the addresses of the Service's endpoints.
	slices []*discoveryv1.EndpointSlice
	// clusterIPs are those of each family; a headless Service has none.
	clusterIPs []string
	// serviceName is the DNS name of the Service, only for display.
	serviceName string
	// ports is the port range of all endpoints in the syntax of config.ParseEndpoint, such as ":<100-200>"; empty means
	// all ports.
	ports string
	guard *clusterGuard
}

// endpointSetsOf returns the endpoint sets of backends without duplicates.
func endpointSetsOf(backends []backend) (sets []endpointSet) {
	const few = 16 // up to this number of sets, comparing all pairs is faster than hashing
	var seen map[resource.Backend]bool
	if len(backends) > few {
		seen = make(map[resource.Backend]bool, len(backends))
	}
	for i := range backends {
		b := &backends[i]
		known := seen[b.Backend]
		for j := 0; j < i && seen == nil && !known; j++ {
			known = backends[j].Backend == b.Backend
		}
		if known {
			continue
		}
		if seen != nil {
			seen[b.Backend] = true
		}
		sets = append(sets, b.endpointSet())
	}
	return sets
}

func (b backend) endpointSet() endpointSet {
	serviceName := b.Name + "." + b.Namespace + ".svc." + b.opt.ClusterDomain
	switch {
	case !b.isService():
		return endpointSet{static: b.view.StaticService(b.Key()), ports: b.portRange(), guard: b.guard}
	case b.clusterType == config.StrictDNS:
		return endpointSet{name: serviceName}
	}
	s := endpointSet{service: b.Key(), serviceName: serviceName, guard: b.guard, ports: b.portRange()}
	s.slices = b.view.EndpointSlicesOf(b.Key())
	for _, text := range clusterIPs(b.service()) {
		ip, err := netip.ParseAddr(text) // the text is "None" for a headless Service
		if err == nil && !slices.Contains(s.clusterIPs, ip.String()) {
			s.clusterIPs = append(s.clusterIPs, ip.String())
		}
	}
	return s
}

// portRange returns the port range of the backend in the syntax of config.ParseEndpoint, such as ":<100-200>"; empty
// means all ports.
func (b backend) portRange() string {
	if b.Port == 0 {
		return ""
	}
	return ":<" + strconv.Itoa(int(b.Port)) + "-" + strconv.Itoa(int(cmp.Or(b.EndPort, b.Port))) + ">"
}

// byName returns a set whose only endpoint is the DNS name of the Service.
func (s endpointSet) byName() endpointSet { return endpointSet{name: cmp.Or(s.name, s.serviceName)} }

// count returns an upper bound of the number of endpoints. It includes duplicates and invalid addresses, which are
// removed only when the endpoints are built.
func (s endpointSet) count() int {
	count := len(s.clusterIPs)
	if s.static != nil {
		count += len(s.static.Spec.Prefixes)
	}
	for _, slice := range s.slices {
		for _, e := range slice.Endpoints {
			count += len(e.Addresses)
		}
	}
	if s.name != "" {
		count++
	}
	return count
}

// bytes returns an upper bound of the size that the endpoints take in a config, in bytes.
func (s endpointSet) bytes() int {
	bytes := len(s.name)
	for _, ip := range s.clusterIPs {
		bytes += len(ip)
	}
	if s.static != nil {
		for _, p := range s.static.Spec.Prefixes {
			bytes += len(p)
		}
	}
	for _, slice := range s.slices {
		for _, e := range slice.Endpoints {
			for _, a := range e.Addresses {
				bytes += len(a)
			}
		}
	}
	return bytes + s.count()*(len(s.ports)+len(`"",`))
}

// addresses yields the addresses, prefixes or names of the set. Endpoints that are not ready are included: a media
// server that is shutting down may still have calls. Invalid addresses are skipped, and so are addresses of the cluster
// itself.
func (s endpointSet) addresses() iter.Seq[string] {
	return func(yield func(string) bool) {
		if s.name != "" && !yield(s.name) {
			return
		}
		for _, ip := range s.clusterIPs {
			if !yield(ip) {
				return
			}
		}
		for _, p := range s.prefixes().prefixes {
			if !yield(p) {
				return
			}
		}
		for _, slice := range s.slices {
			for _, e := range slice.Endpoints {
				for _, a := range e.Addresses {
					ip, err := netip.ParseAddr(a)
					if err != nil || ip.Zone() != "" || s.guard.denyEndpoint(ip, e.TargetRef) {
						continue
					}
					if !yield(ip.Unmap().String()) {
						return
					}
				}
			}
		}
	}
}

// prefixes returns the prefixes of the StaticService that routes may reach, and no prefixes if the backend is a
// Service.
func (s endpointSet) prefixes() *guardedPrefixes {
	if s.static == nil {
		return &guardedPrefixes{}
	}
	return s.guard.guardStatic(s.static)
}

// endpointsOf returns the endpoints of all sets in the syntax of config.ParseEndpoint, sorted and without duplicates.
func endpointsOf(sets []endpointSet) []string {
	endpoints, _ := contributionsOf(sets)
	return endpoints
}

// contributionsOf returns the result of endpointsOf, and its length with duplicates.
func contributionsOf(sets []endpointSet) (endpoints []string, contributed int) {
	count := 0
	for _, s := range sets {
		count += s.count()
	}
	if count == 0 {
		return nil, 0
	}
	endpoints = make([]string, 0, count)
	for _, s := range sets {
		for a := range s.addresses() {
			endpoints = append(endpoints, a+s.ports)
		}
	}
	if len(endpoints) == 0 {
		return nil, 0
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints), len(endpoints)
}

// exceptOf returns the addresses that routes must not reach although a prefix of the sets contains them, sorted and
// without duplicates.
func exceptOf(sets []endpointSet) (except []string) {
	seen := map[*guardedPrefixes]bool{} // several backends may refer to one StaticService with different ports
	for _, s := range sets {
		if p := s.prefixes(); len(p.except) > 0 && !seen[p] {
			seen[p] = true
			except = append(except, p.except...)
		}
	}
	slices.Sort(except)
	return slices.Compact(except)
}
