package translate

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// exposuresOf says which Services expose which listeners. The Service called like the Gateway carries the transport of its first listener;
// a second one, called <gateway>-tcp or <gateway>-udp, the other transport.
func exposuresOf(gw *gwapiv1.Gateway, w wishes, listeners []*listener) []manifest.Exposure {
	var exposures []manifest.Exposure
	for _, network := range networksOf(w, listeners) {
		e := manifest.Exposure{
			Name:          gw.Name,
			Type:          w.serviceType,
			HealthPort:    w.healthPort,
			SourceAddress: w.sourceAddress,
			Affinity:      w.affinity,
			Address:       wishedAddress(gw),
			ExternalIPs:   w.externalIPs,
			Hostname:      wishedHostname(gw),
		}
		if len(exposures) > 0 {
			e.Name += "-" + network
		}
		for _, l := range listeners {
			if l.accepted.OK() && (w.mixed == together || l.network() == network) {
				l.exposed = true
				e.Ports = append(e.Ports, portOf(l, w))
			}
		}
		exposures = append(exposures, e)
	}
	return exposures
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

// unaddressed says that Services have to do without their external addresses.
func (d draft) unaddressed() []string {
	refusal := d.view.Refusal(resource.KeyOf(d.gateway)).ExternalIPs
	if refusal.Problem == "" {
		return nil
	}
	return []string{condition.ExternalIPsRefused(refusal.Object, refusal.Problem)}
}

// networksOf returns the transport of each Service.
func networksOf(w wishes, listeners []*listener) []string {
	var networks []string
	for _, l := range listeners {
		if !l.accepted.OK() {
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

// wished returns the first address that the Gateway asks for; an empty value asks for any.
func wished(gw *gwapiv1.Gateway) (kind gwapiv1.AddressType, value string) {
	if len(gw.Spec.Addresses) == 0 {
		return "", ""
	}
	a := gw.Spec.Addresses[0]
	return valueOr(a.Type, gwapiv1.IPAddressType), a.Value
}

func wishedAddress(gw *gwapiv1.Gateway) string {
	kind, value := wished(gw)
	if _, err := netip.ParseAddr(value); kind != gwapiv1.IPAddressType || err != nil {
		return ""
	}
	return value
}

func wishedHostname(gw *gwapiv1.Gateway) string {
	if kind, value := wished(gw); kind == gwapiv1.HostnameAddressType {
		return value
	}
	return ""
}
