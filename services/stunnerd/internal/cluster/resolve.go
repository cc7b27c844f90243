package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Names returns the host names among the endpoints of the clusters.
func Names(clusters []config.Cluster) (hosts []string) {
	for _, c := range clusters {
		if c.Type == config.StrictDNS {
			hosts = append(hosts, c.Endpoints...)
		}
	}
	return hosts
}

// Resolve returns the clusters with addresses in place of host names. A host name without an answer allows no peer.
func Resolve(clusters []config.Cluster, answers map[string][]netip.Addr) []config.Cluster {
	resolved := slices.Clone(clusters)
	for i, c := range resolved {
		if c.Type == config.StrictDNS {
			resolved[i].Type, resolved[i].Endpoints = config.Static, addresses(c.Endpoints, answers)
		}
	}
	return resolved
}

// addresses returns the addresses of host names, without special addresses such as loopback. The endpoint of a static
// cluster may allow special addresses, but the answer of a name server must not, because the owner of a domain could
// then open them.
func addresses(hosts []string, answers map[string][]netip.Addr) (endpoints []string) {
	for _, host := range hosts {
		for _, addr := range answers[host] {
			if minRouteBits(addr.Unmap()) == 0 {
				endpoints = append(endpoints, addr.String())
			}
		}
	}
	return endpoints
}
