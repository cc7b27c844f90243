package translate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// exposuresOf says which Services expose which listeners. The Service called like the Gateway carries the transport of its first listener;
// a second one, called <gateway>-tcp or <gateway>-udp, the other transport. A Service that has a port of a listener that waits stays, with that port.
func (d draft) exposuresOf() []manifest.Exposure {
	var exposures []manifest.Exposure
	for i, network := range networksOf(d.wishes, d.listeners) {
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

// serviceNames are all names that Services of a Gateway have.
func serviceNames(gw *gwapiv1.Gateway) []string {
	return []string{gw.Name, gw.Name + "-tcp", gw.Name + "-udp"}
}

// exposure is a Service with the ports of those listeners whose transport it carries, and with the ports that it has of listeners that wait. Without a
// network it carries no transport.
func (d draft) exposure(name, network string) manifest.Exposure {
	e := manifest.Exposure{
		Name:          name,
		Type:          d.wishes.serviceType,
		HealthPort:    d.wishes.healthPort,
		SourceAddress: d.wishes.sourceAddress,
		Affinity:      d.wishes.affinity,
		Address:       wishedAddress(d.gateway),
		ExternalIPs:   d.wishes.externalIPs,
		Hostname:      wishedHostname(d.gateway),
	}
	for _, l := range d.listeners {
		carried := network != "" && (d.wishes.mixed == together || l.network() == network)
		var ports []manifest.Port
		switch {
		case l.held != nil:
			for _, door := range l.doors {
				if door.service == name || door.service == "" && carried {
					ports = append(ports, door.port)
				}
			}
		case l.accepted.OK() && carried:
			ports = append(ports, portOf(l, d.wishes))
		}
		l.exposed = l.exposed || len(ports) > 0
		e.Ports = append(e.Ports, ports...)
	}
	return e
}

// layOver gives the Services what the Dataplane asks for, and says where a Service that exists will not take it.
func (d draft) layOver() (notes []string) {
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

// networksOf returns the transport of each Service.
func networksOf(w wishes, listeners []*listener) []string {
	var networks []string
	for _, l := range listeners {
		if !l.accepted.OK() && l.held == nil {
			continue
		}
		if len(networks) == 0 {
			networks = append(networks, l.network())
		}
		if w.mixed == separate && l.network() != networks[0] {
			return append(networks, l.network())
		}
	}
	return networks
}

func portOf(l *listener, w wishes) manifest.Port {
	return manifest.Port{
		Name:       l.name(),
		Protocol:   corev1.Protocol(strings.ToUpper(l.network())),
		Port:       int32(l.spec.Port),
		TargetPort: l.target,
		NodePort:   w.nodePorts[l.name()],
	}
}
