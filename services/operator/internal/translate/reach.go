package translate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// reach is what one backend adds to a cluster, before anything of it is written down: a thousand addresses with a hundred ports each are counted
// with two numbers.
type reach struct {
	// static are the prefixes of a StaticService; name is the DNS name of a Service; slices and address are its endpoints and its cluster IP.
	static  *stunnerv1.StaticService
	name    string
	slices  []*discoveryv1.EndpointSlice
	address string
	// ports are those of all addresses, as an endpoint ends; empty means every port.
	ports string
	// shield keeps it away from the cluster itself.
	shield *shield
	// dns is the name under which people know a Service whose endpoints these are.
	dns string
}

// reachesOf returns what backends add, each one once.
func reachesOf(backends []backend) (reaches []reach) {
	const few = 16 // are compared sooner than hashed
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
		reaches = append(reaches, b.reach())
	}
	return reaches
}

func (b backend) reach() reach {
	dns := b.Name + "." + b.Namespace + ".svc." + b.opt.ClusterDomain
	switch {
	case !b.isService():
		return reach{static: b.view.StaticService(b.Key()), ports: b.ports(), shield: b.shield}
	case b.cluster == config.StrictDNS:
		return reach{name: dns}
	}
	s := reach{dns: dns, shield: b.shield, slices: b.view.EndpointSlicesOf(b.Key()), ports: b.ports()}
	// The first cluster IP. A headless Service has none, and needs none.
	if ip, err := netip.ParseAddr(b.view.Service(b.Key()).Spec.ClusterIP); err == nil {
		s.address = ip.String()
	}
	return s
}

// ports is the port range, as it ends an endpoint.
func (b backend) ports() string {
	if b.Port == 0 {
		return ""
	}
	return ":<" + strconv.Itoa(int(b.Port)) + "-" + strconv.Itoa(int(cmp.Or(b.EndPort, b.Port))) + ">"
}

// byName is the same Service by its DNS name.
func (s reach) byName() reach { return reach{name: cmp.Or(s.name, s.dns)} }

// count is how many endpoints it has at most: entries that are no addresses are counted as well, and what stands there twice counts twice.
func (s reach) count() int {
	count := 0
	if s.static != nil {
		count += len(s.static.Spec.Prefixes)
	}
	for _, some := range s.slices {
		for _, e := range some.Endpoints {
			count += len(e.Addresses)
		}
	}
	if s.address != "" {
		count++
	}
	if s.name != "" {
		count++
	}
	return count
}

// bytes is how long the endpoints are, written down as in a config, at most.
func (s reach) bytes() int {
	bytes := len(s.address) + len(s.name)
	if s.static != nil {
		for _, p := range s.static.Spec.Prefixes {
			bytes += len(p)
		}
	}
	for _, some := range s.slices {
		for _, e := range some.Endpoints {
			for _, a := range e.Addresses {
				bytes += len(a)
			}
		}
	}
	return bytes + s.count()*(len(s.ports)+len(`"",`))
}

// addresses are the addresses, prefixes or names that it stands for. Of a Service they are those of all endpoints, ready or not: a media server that is
// shutting down still has calls. What is no address, and what belongs to the cluster itself, is left out.
func (s reach) addresses() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, single := range []string{s.name, s.address} {
			if single != "" && !yield(single) {
				return
			}
		}
		for _, p := range s.opening().prefixes {
			if !yield(p) {
				return
			}
		}
		for _, some := range s.slices {
			for _, e := range some.Endpoints {
				for _, a := range e.Addresses {
					if ip, err := netip.ParseAddr(a); err == nil && ip.Zone() == "" && !s.shield.excluded().forged(ip, e.TargetRef) && !yield(ip.Unmap().String()) {
						return
					}
				}
			}
		}
	}
}

// opening is what routes may reach of the StaticService; nothing if it is none.
func (s reach) opening() *opening {
	if s.static == nil {
		return &opening{}
	}
	return s.shield.opening(s.static)
}

// splitPorts takes an endpoint apart.
func splitPorts(endpoint string) (address, ports string) {
	if i := strings.LastIndex(endpoint, ":<"); i >= 0 {
		return endpoint[:i], endpoint[i:]
	}
	return endpoint, ""
}

// keep returns those endpoints of a published cluster that the reaches still lead to, and the addresses inside them that routes do not reach: what was taken away from a route does not stay because the route
// asks for too much. It looks at no more than most addresses, and returns how many it has looked at.
func keep(published config.Cluster, reaches []reach, most int) (endpoints, except []string, looked int) {
	has := map[string]map[string]bool{} // by ports and address
	for _, e := range published.Endpoints {
		address, ports := splitPorts(e)
		if has[ports] == nil {
			has[ports] = map[string]bool{}
		}
		has[ports][address] = true
	}
	var kept []reach
	for _, s := range reaches {
		addresses := has[s.ports]
		if len(addresses) == 0 {
			continue
		}
		if looked += s.count(); looked > most {
			return nil, nil, looked
		}
		kept = append(kept, s)
		for a := range s.addresses() {
			if addresses[a] {
				endpoints = append(endpoints, a+s.ports)
			}
		}
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints), exceptOf(kept), looked
}
