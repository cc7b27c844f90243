package translate

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
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

// layOver gives the Services what the Dataplane asks for, and says where it cannot: what Kubernetes lets nobody change stays as the Service
// that exists has it.
func (d draft) layOver() (notes []string) {
	if d.parameters.dataplane == nil {
		return nil
	}
	existing := d.view.ServicesOf(resource.KeyOf(d.gateway))
	for i := range d.exposures {
		e := &d.exposures[i]
		e.Overlay = valueOr(d.parameters.dataplane.Spec.Service, stunnerv1.ServiceOverlay{})
		at := slices.IndexFunc(existing, func(s *corev1.Service) bool { return s.Name == e.Name })
		if at < 0 {
			continue
		}
		for _, field := range keepFixed(e, existing[at].Spec) {
			notes = append(notes, condition.ServiceFixed(d.parameters.dataplane.Name, field, e.Name))
		}
	}
	return notes
}

// keepFixed takes over what a Service that exists cannot be without, and names the fields in which something else was asked for.
func keepFixed(e *manifest.Exposure, has corev1.ServiceSpec) (fields []string) {
	wanted := e.Overlay
	if balancer := corev1.ServiceTypeLoadBalancer; e.Type == balancer && has.Type == balancer {
		e.Overlay.LoadBalancerClass = has.LoadBalancerClass
		if wanted.LoadBalancerClass != nil && *wanted.LoadBalancerClass != valueOr(has.LoadBalancerClass, "") {
			fields = append(fields, "loadBalancerClass")
		}
	}
	if len(wanted.IPFamilies) > 0 && len(has.IPFamilies) > 0 && wanted.IPFamilies[0] != has.IPFamilies[0] {
		e.Overlay.IPFamilies, e.Overlay.IPFamilyPolicy = has.IPFamilies, has.IPFamilyPolicy
		fields = append(fields, "ipFamilies")
	}
	return fields
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
