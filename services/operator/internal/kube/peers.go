package kube

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
)

// peers are the replicas among the endpoints of config discovery.
type peerReplicas struct {
	service types.NamespacedName
	// own is the address of this replica.
	own string
	set *reports.Peers
}

// newPeerReplicas returns what follows the other replicas from when it is told of endpoints until ctx ends.
func (p *Provider) newPeerReplicas(ctx context.Context, c *reports.Store, security *tls.Config) *peerReplicas {
	scheme := "http"
	if p.DiscoveryAuth != AuthOff {
		scheme = "https"
	}
	service := types.NamespacedName{Namespace: p.Namespace, Name: discoveryService}
	return &peerReplicas{service: service, own: p.Address, set: reports.NewPeers(ctx, c, func(address string) reports.Source {
		return discovery.ReportSource{URL: scheme + "://" + address, TLS: security, TokenFile: p.TokenFile}
	})}
}

// are tells whether a slice is about the replicas.
func (p *peerReplicas) are(s *discoveryv1.EndpointSlice) bool {
	return p != nil && s.Namespace == p.service.Namespace && s.Labels[discoveryv1.LabelServiceName] == p.service.Name
}

// look follows those that are among the endpoints now.
func (p *peerReplicas) look(endpoints []*discoveryv1.EndpointSlice) {
	p.set.Set(addressesOf(endpoints, p.own))
}

// addressesOf returns where the endpoints serve config discovery, but for one's own, sorted. One that is not ready may know something all the
// same; one that has no address of its own does not.
func addressesOf(all []*discoveryv1.EndpointSlice, own string) (addresses []string) {
	for _, some := range all {
		for _, port := range some.Ports {
			if port.Port == nil || port.Name != nil && *port.Name != "" && *port.Name != discoveryPort {
				continue
			}
			for _, e := range some.Endpoints {
				for _, address := range e.Addresses[:min(1, len(e.Addresses))] { // all of an endpoint are the same pod
					if net.ParseIP(address) != nil && address != own {
						addresses = append(addresses, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))))
					}
				}
			}
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
