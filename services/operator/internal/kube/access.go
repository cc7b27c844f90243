package kube

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/scaler"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// discoveryConnections limits the connections to config discovery, not counting those with an open stream. The limit is
// high because all dataplanes reconnect at once after a restart of the operator.
const discoveryConnections = 10_000

// newIdentity returns the TLS identity of this replica, without a certificate yet. The certificates of all replicas
// contain the same names: those of their Service, the host names by which dataplanes and KEDA are configured to reach
// them, and localhost.
func newIdentity(s Settings) *trust.Identity {
	name := discoveryService + "." + s.Namespace + ".svc"
	names := []string{
		name, discoveryService, discoveryService + "." + s.Namespace,
		name + "." + s.Options.ClusterDomain, "localhost", "127.0.0.1", "::1",
	}
	var configured []string
	if u, err := url.Parse(s.Options.DiscoveryAddress); err == nil {
		configured = append(configured, u.Hostname())
	}
	if host, _, err := net.SplitHostPort(s.Options.ScalerAddress); err == nil {
		configured = append(configured, host)
	}
	for _, host := range configured {
		if host != "" && !slices.Contains(names, host) {
			names = append(names, host)
		}
	}
	return &trust.Identity{Names: names}
}

// newDiscoveryServer returns the config discovery server and the authorizer of its clients. With AuthOff, the
// authorizer is nil.
func newDiscoveryServer(s Settings, pods *podIndex, m *meters) (*discovery.Server, *authorizer, error) {
	o := discovery.ServerOptions{
		Log: s.Log, Permissive: s.DiscoveryAuth == AuthPermissive,
		OnRefusal: func(why discovery.Refusal) { m.refused.WithLabelValues(string(why)).Inc() },
	}
	if s.DiscoveryAuth == AuthOff {
		s.Log.Warn("config discovery is open: everyone who reaches it can read every TURN secret",
			"flag", "--discovery-auth=off")
		return discovery.NewServer(o), nil, nil
	}
	a, err := newAuthorizer(s, pods)
	if err != nil {
		return nil, nil, err
	}
	o.Authorize, o.Confirm, o.VerifyPeer = a.authorize, a.confirm, a.verifyPeer
	return discovery.NewServer(o), a, nil
}

// discoveryListener adds TLS to the listener of config discovery, except with AuthOff. With AuthPermissive and
// AuthPodAddress, the listener accepts plain connections as well. Otherwise, plain is called with the source of each
// plain connection.
func discoveryListener(s Settings, ln net.Listener, id *trust.Identity, plain func(netip.Addr)) net.Listener {
	switch s.DiscoveryAuth {
	case AuthOff:
		return ln
	case AuthPermissive, AuthPodAddress:
		return trust.TLSOrPlain(ln, id.Server())
	}
	return tls.NewListener(trust.WatchPlain(ln, plain), id.Server())
}

// serveScaler serves the KEDA external scaler until ctx ends. It uses TLS, except with AuthOff, where no certificates
// exist. allocations returns the number of allocations of a Gateway, or an error if this replica cannot determine it.
func serveScaler(
	ctx context.Context, s Settings, ln net.Listener, id *trust.Identity, m *meters,
	allocations func(types.NamespacedName) (int, error),
) error {
	var security *tls.Config
	if s.DiscoveryAuth != AuthOff {
		security = id.Server()
	}
	return scaler.Serve(ctx, ln, security, scaler.Options{
		Log: s.Log, Allocations: allocations,
		OnAnswer: func(code codes.Code) { m.answers.WithLabelValues(code.String()).Inc() },
	})
}
