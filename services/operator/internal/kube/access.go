package kube

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"slices"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/scaler"
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

// discoveryPort is what its port for that is called: there is another, for KEDA.
const discoveryPort = "cds"

// discoveryConnections is how many connections config discovery holds over which no stream has been opened yet: after a restart all dataplanes come at once.
const discoveryConnections = 10_000

// identity is how the replicas show who they are: by the names of their Service, by those that dataplanes and KEDA are told, and by those of this host.
func (p *Provider) identity() *trust.Identity {
	name := discoveryService + "." + p.Namespace + ".svc"
	names := []string{name, discoveryService, discoveryService + "." + p.Namespace, name + "." + p.Options.ClusterDomain, "localhost", "127.0.0.1", "::1"}
	told := []string{}
	if u, err := url.Parse(p.Options.DiscoveryAddress); err == nil {
		told = append(told, u.Hostname())
	}
	if host, _, err := net.SplitHostPort(p.Options.ScalerAddress); err == nil {
		told = append(told, host)
	}
	for _, host := range told {
		if host != "" && !slices.Contains(names, host) {
			names = append(names, host)
		}
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

// serveScaler answers KEDA, until ctx ends. It is as secured as config discovery: who has switched that off has no certificates. What it says is
// what this process knows, if that is all there is to know.
func (p *Provider) serveScaler(ctx context.Context, ln net.Listener, l *loop, id *trust.Identity) error {
	var security *tls.Config
	if p.DiscoveryAuth != AuthOff {
		security = id.Server()
	}
	return scaler.Serve(ctx, ln, security, scaler.Options{
		Log:      p.Log,
		OnAnswer: func(code codes.Code) { l.meters.answers.WithLabelValues(code.String()).Inc() },
		Allocations: func(gateway types.NamespacedName) (int, error) {
			if err := l.readyz(); err != nil {
				return 0, err
			}
			return l.rollouts.load(gateway)
		},
	})
}

// newServer returns the server of configs, for those who may read them, and who says so; nil where everybody may.
func (p *Provider) newServer(m *meters) (*discovery.Server, *authorizer, error) {
	o := discovery.ServerOptions{
		Log: p.Log, Permissive: p.DiscoveryAuth == AuthPermissive,
		OnRefusal: func(why discovery.Refusal) { m.refused.WithLabelValues(string(why)).Inc() },
	}
	if p.DiscoveryAuth == AuthOff {
		p.Log.Warn("config discovery is open: everyone who reaches it can read every TURN secret", "flag", "--discovery-auth=off")
		return discovery.NewServer(o), nil, nil
	}
	r, err := newAuthorizer(p.Config, p.DiscoveryReaders, p.Log)
	if err != nil {
		return nil, nil, err
	}
	o.Authorize, o.Confirm = r.authorize, r.confirm
	return discovery.NewServer(o), r, nil
}
