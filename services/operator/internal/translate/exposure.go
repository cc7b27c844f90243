package translate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// exposuresOf assigns the listeners to Services. The Service named like the Gateway has the ports of the transport (UDP
// or TCP) that the first usable listener uses. A second Service, <gateway>-tcp or <gateway>-udp, has the ports of the
// other transport, unless annotation enable-mixed-protocol-lb is set, see mixedProtocol. A Service that would become
// unnecessary is kept while one of its ports forwards to a listener that keeps its published config, see held.go.
func (d draft) exposuresOf() []manifest.Exposure {
	var exposures []manifest.Exposure
	for i, network := range networksOf(d.annotations.mixed, d.listeners) {
		name := d.gateway.Name
		if i > 0 {
			name += "-" + network
		}
		exposures = append(exposures, d.exposure(name, network))
	}
	for _, name := range serviceNames(d.gateway) {
		known := slices.ContainsFunc(exposures, func(e manifest.Exposure) bool { return e.Name == name })
		if e := d.exposure(name, ""); !known && len(e.Ports) > 0 {
			exposures = append(exposures, e)
		}
	}
	return exposures
}

// exposure returns a Service with the ports of the listeners that use the given network, or of all listeners if mixed
// is together. It marks these listeners as exposed. The Service also keeps each of its ports that forwards to a
// listener that keeps its published config. With an empty network, the Service has only these kept ports.
func (d draft) exposure(name, network string) manifest.Exposure {
	e := manifest.Exposure{
		Name:          name,
		Type:          d.annotations.serviceType,
		HealthPort:    d.annotations.healthPort,
		SourceAddress: d.annotations.sourceAddress,
		Affinity:      d.annotations.affinity,
		Hostname:      requestedHostname(d.gateway),
	}
	ips := requestedIPs(d.gateway)
	if d.annotations.externalIPs {
		e.ExternalIPs = ips
	}
	if len(ips) > 0 && !d.asksByAnnotation() {
		e.LoadBalancerIP = ips[0]
	}
	for _, l := range d.listeners {
		carried := network != "" && (d.annotations.mixed == together || l.network() == network)
		var ports []manifest.Port
		switch {
		case l.published != nil:
			for _, p := range l.published.ports {
				if p.service == name || p.service == "" && carried {
					ports = append(ports, p.port)
				}
			}
		case l.accepted.OK() && carried:
			ports = append(ports, portOf(l, d.annotations.nodePorts))
		}
		l.exposed = l.exposed || len(ports) > 0
		e.Ports = append(e.Ports, ports...)
	}
	return e
}

// asksByAnnotation reports whether an annotation of the Services requests an address from the load balancer. Then
// spec.loadBalancerIP stays empty: MetalLB rejects a Service with both.
func (d draft) asksByAnnotation() bool {
	return slices.ContainsFunc(addressAnnotations, func(a addressAnnotation) bool {
		return d.owner.Annotations[a.name] != ""
	})
}

// applyServiceOverlay applies spec.service of the Dataplane to the Services. It returns a warning for each field that
// cannot be changed because the Service already exists.
func (d draft) applyServiceOverlay() (notes []condition.Finding) {
	if d.parameters.dataplane == nil || d.parameters.dataplane.Spec.Service == nil {
		return nil
	}
	existing := d.view.ServicesOf(resource.KeyOf(d.gateway))
	for i := range d.exposures {
		e := &d.exposures[i]
		e.Overlay = *d.parameters.dataplane.Spec.Service
		at := slices.IndexFunc(existing, func(s *corev1.Service) bool { return s.Name == e.Name })
		if at < 0 {
			continue
		}
		_, fields := manifest.Fit(manifest.Service(d.owner, *e), existing[at])
		for _, field := range fields {
			notes = append(notes, condition.ServiceFixed(d.parameters.dataplane.Name, field, e.Name))
		}
	}
	return notes
}

// networksOf returns the network, "udp" or "tcp", of each Service that the listeners need. The network of the first
// accepted or held listener comes first. Only if mixed is separate can there be a second network.
func networksOf(mixed mixedProtocol, listeners []*listener) []string {
	var networks []string
	for _, l := range listeners {
		if !l.accepted.OK() && l.published == nil {
			continue
		}
		if len(networks) == 0 {
			networks = append(networks, l.network())
		}
		if mixed == separate && l.network() != networks[0] {
			return append(networks, l.network())
		}
	}
	return networks
}

func portOf(l *listener, nodePorts map[string]int32) manifest.Port {
	return manifest.Port{
		Name:       l.name(),
		Protocol:   corev1.Protocol(strings.ToUpper(l.network())),
		Port:       int32(l.spec.Port),
		TargetPort: l.target,
		NodePort:   nodePorts[l.name()],
	}
}
