package translate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// service returns the Service of a backend, or nil.
//
// In the headless model, a route names the Service of its own Gateway as backend, so that two clients reach the relays
// of each other. The file provider renders this Service and never reads it, so service builds it from the Gateway. The
// addresses of the host replace the cluster IPs, because all dataplanes relay at these addresses. As in a cluster, the
// Service exists until the Gateway is deleted or belongs to another controller.
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
