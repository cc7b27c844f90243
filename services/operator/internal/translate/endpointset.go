package translate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// endpointsOf writes down what reaches lead to, in the syntax of config.ParseEndpoint.
func endpointsOf(reaches []reach) []string {
	count := 0
	for _, s := range reaches {
		count += s.count()
	}
	if count == 0 {
		return nil
	}
	endpoints := make([]string, 0, count)
	for _, s := range reaches {
		for address := range s.addresses() {
			endpoints = append(endpoints, address+s.ports)
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints)
}

// exceptOf returns the addresses inside the prefixes of reaches that routes do not reach.
func exceptOf(reaches []reach) (except []string) {
	seen := map[*opening]bool{} // one StaticService may be named with many ports
	for _, s := range reaches {
		if o := s.opening(); len(o.except) > 0 && !seen[o] {
			seen[o] = true
			except = append(except, o.except...)
		}
	}
	slices.Sort(except)
	return slices.Compact(except)
}

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
