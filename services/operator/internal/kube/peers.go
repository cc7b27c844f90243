package kube

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
)

// peerReplicas receives the dataplane reports that the other replicas of the operator have. It finds these replicas in
// the EndpointSlices of the config discovery Service.
type peerReplicas struct {
	service types.NamespacedName
	// own is the IP address of this replica.
	own string
	set *reports.Peers
	// origin is the URL of an address HOST:PORT of a replica.
	origin func(address string) string
	// changed is called with the URLs of the other replicas.
	changed func(urls []string)
}

// newPeerReplicas returns an empty set of replicas. Connections to replicas are closed when ctx ends.
func newPeerReplicas(
	ctx context.Context, s Settings, store *reports.Store, security *tls.Config, changed func(urls []string),
) *peerReplicas {
	scheme := "http"
	if s.DiscoveryAuth != AuthOff {
		scheme = "https"
	}
	origin := func(address string) string { return scheme + "://" + address }
	service := types.NamespacedName{Namespace: s.Namespace, Name: discoveryService}
	set := reports.NewPeers(ctx, store, func(address string) reports.Source {
		return discovery.ReportSource{URL: origin(address), TLS: security, TokenFile: s.TokenFile}
	})
	return &peerReplicas{service: service, own: s.Address, set: set, origin: origin, changed: changed}
}

// include reports whether an EndpointSlice belongs to the config discovery Service. It is false for a nil p.
func (p *peerReplicas) include(s *discoveryv1.EndpointSlice) bool {
	return p != nil && s.Namespace == p.service.Namespace && s.Labels[discoveryv1.LabelServiceName] == p.service.Name
}

// update sets the replicas to those in the given EndpointSlices.
func (p *peerReplicas) update(endpoints []*discoveryv1.EndpointSlice) {
	addresses := addressesOf(endpoints, p.own)
	p.set.Set(addresses)
	urls := make([]string, len(addresses))
	for i, address := range addresses {
		urls[i] = p.origin(address)
	}
	p.changed(urls)
}

// addressesOf returns the sorted addresses HOST:PORT of the other replicas, one for each. Endpoints that are not ready
// are included, because they may still have reports. Endpoints without an IP address are skipped. A dual-stack Service
// has an endpoint of each pod in the EndpointSlices of both families; the one with the family of this replica's address
// is preferred.
func addressesOf(all []*discoveryv1.EndpointSlice, own string) (addresses []string) {
	byPod, self := map[string]string{}, ""
	ownFamily := net.ParseIP(own).To4() != nil
	for _, s := range all {
		for _, port := range s.Ports {
			if port.Port == nil || port.Name != nil && *port.Name != "" && *port.Name != discoveryPort {
				continue
			}
			for _, e := range s.Endpoints {
				// all addresses of an endpoint belong to one pod
				if len(e.Addresses) == 0 || net.ParseIP(e.Addresses[0]) == nil {
					continue
				}
				pod, address := podOf(e), e.Addresses[0]
				if address == own {
					self = pod
				}
				if byPod[pod] == "" || (net.ParseIP(address).To4() != nil) == ownFamily {
					byPod[pod] = net.JoinHostPort(address, strconv.Itoa(int(*port.Port)))
				}
			}
		}
	}
	delete(byPod, self)
	return slices.Sorted(maps.Values(byPod))
}
