package kube

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// The values of Provider.DiscoveryAuth.
const (
	AuthStrict     = "strict"     // TLS and a token
	AuthPermissive = "permissive" // and everybody reads what is no secret, over plain HTTP too
	AuthOff        = "off"        // plain HTTP, and everybody reads everything
)

// discoveryService is the name of the Service by which dataplanes reach the replicas.
const discoveryService = "stunner-config-discovery"

// identity is how the replicas show who they are: by the names of their Service, by the one that dataplanes are told, and by those of this host.
func (p *Provider) identity() *trust.Identity {
	name := discoveryService + "." + p.Namespace + ".svc"
	names := []string{name, discoveryService, discoveryService + "." + p.Namespace, name + "." + p.Options.ClusterDomain, "localhost", "127.0.0.1", "::1"}
	if u, err := url.Parse(p.Options.DiscoveryAddress); err == nil && u.Hostname() != "" && !slices.Contains(names, u.Hostname()) {
		names = append(names, u.Hostname())
	}
	return &trust.Identity{Names: names}
}

// door is the port of config discovery.
func (p *Provider) door(ln net.Listener, id *trust.Identity) net.Listener {
	switch p.DiscoveryAuth {
	case AuthOff:
		return ln
	case AuthPermissive:
		return trust.Either(ln, id.Server())
	}
	return tls.NewListener(ln, id.Server())
}

// newServer returns the server of configs, for those who may read them.
func (p *Provider) newServer(m *meters) (*discovery.Server, error) {
	o := discovery.ServerOptions{
		Log: p.Log, Permissive: p.DiscoveryAuth == AuthPermissive,
		OnRefusal: func(why discovery.Refusal) { m.refused.WithLabelValues(string(why)).Inc() },
	}
	if p.DiscoveryAuth == AuthOff {
		p.Log.Warn("config discovery is open: everyone who reaches it can read every TURN secret", "flag", "--discovery-auth=off")
		return discovery.NewServer(o), nil
	}
	r, err := newReviewer(p.Config, p.DiscoveryReaders)
	if err != nil {
		return nil, err
	}
	o.Authorize = r.authorize
	return discovery.NewServer(o), nil
}

// externalAddress is the address by which a node is reached from outside, "" when it has none. Of two families IPv4 counts, which clients have.
func externalAddress(n *corev1.Node, gone bool) (address string) {
	for _, a := range n.Status.Addresses {
		ip := net.ParseIP(a.Address)
		if gone || a.Type != corev1.NodeExternalIP || ip == nil {
			continue
		}
		if ip.To4() != nil {
			return a.Address
		}
		address = cmp.Or(address, a.Address)
	}
	return address
}
