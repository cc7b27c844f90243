package translate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// service returns the Service of a backend, or nil.
//
// In the headless model, the backend of a route is the Service of the Gateway itself, so that two clients reach the
// relays of each other. With the file provider, that Service is rendered and not read. The relays of all dataplanes
// then have the addresses of the host, which take the place of the cluster IPs. As in a cluster, the Service exists until
// the Gateway is gone or belongs to another controller.
func (b backend) service() *corev1.Service {
	host := b.view.Host()
	if s := b.view.Service(b.Key()); s != nil || host == nil {
		return s
	}
	gw := b.view.Gateway(b.Key())
	if _, decision := classOf(b.view, gw, b.opt); decision.Ends() {
		return nil
	}
	s := manifest.Service(manifest.OwnerOf(gw, nil), manifest.Exposure{Name: gw.Name})
	s.Spec.ClusterIP, s.Spec.ClusterIPs = host.Addresses[0], host.Addresses
	return s
}
