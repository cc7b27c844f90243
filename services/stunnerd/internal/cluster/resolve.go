package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Names returns the host names that the clusters reach.
func Names(clusters []config.Cluster) (hosts []string) {
	for _, c := range clusters {
		if c.Type == config.StrictDNS {
			hosts = append(hosts, c.Endpoints...)
		}
	}
	return hosts
}

// Resolve returns the clusters, in their order, with the addresses of host names in the place of the names. A name without an answer
// reaches nothing.
func Resolve(clusters []config.Cluster, answers map[string][]netip.Addr) []config.Cluster {
	resolved := slices.Clone(clusters)
	for i, c := range resolved {
		if c.Type == config.StrictDNS {
			resolved[i].Type, resolved[i].Endpoints = config.Static, addresses(c.Endpoints, answers)
		}
	}
	return resolved
}

// addresses returns what the hosts' names stand for, without the addresses that only a route that names them reaches, such as loopback: a
// static endpoint may open these, an answer of a name server may not (T-01).
func addresses(hosts []string, answers map[string][]netip.Addr) (endpoints []string) {
	for _, host := range hosts {
		for _, addr := range answers[host] {
			if leastBits(addr.Unmap()) == 0 {
				endpoints = append(endpoints, addr.String())
			}
		}
	}
	return endpoints
}
