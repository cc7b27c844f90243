package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/stunner-gateway/stunner/services/operator/internal/balancer"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// balancerLimited returns condition LoadBalancerLimited if the documentation of the provider says that its load
// balancers do not serve a Service as the Gateway needs it. The Services are created nevertheless. On a host there are
// no Services.
func (d draft) balancerLimited() []condition.Condition {
	if d.view.Host() != nil || d.parameters.config == nil {
		return nil
	}
	var provider *balancer.Provider
	var how balancer.How
	var limits []balancer.Limit
	services := map[balancer.Limit][]string{}
	for _, e := range d.exposures {
		if e.Type != corev1.ServiceTypeLoadBalancer || len(e.Ports) == 0 {
			continue
		}
		s := d.balanced(e)
		p, found := balancer.Find(d.parameters.config.Spec.LoadBalancerProvider, s, d.view.NodeProviders())
		if p == nil {
			continue
		}
		for _, l := range p.Limits(s) {
			if provider, how = p, found; services[l] == nil {
				limits = append(limits, l)
			}
			services[l] = append(services[l], e.Name)
		}
	}
	if provider == nil {
		return nil
	}
	var findings []condition.Finding
	for _, l := range limits {
		findings = append(findings, condition.BalancerLimit(services[l], provider.Subject, l.Problem, l.Remedy))
	}
	scheme := ""
	if how == balancer.ByNodes {
		scheme = d.view.NodeProviders()[0]
	}
	limited := condition.BalancerOf(condition.Join(findings), string(provider.Name), scheme)
	return []condition.Condition{condition.True(condition.LoadBalancerLimited, limited)}
}

// balanced returns the features that a Service needs from its load balancer.
func (d draft) balanced(e manifest.Exposure) balancer.Service {
	svc := d.withExisting(manifest.Service(d.owner, e))
	s := balancer.Service{
		Affinity:      svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		Local:         svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		IPv6:          d.requiresIPv6(svc),
		CountsSources: d.parameters.config.Spec.SourceQuota > 0,
		Addressed:     len(requestedAddresses(d.gateway)) > 0,
		Class:         ptr.Deref(svc.Spec.LoadBalancerClass, ""),
		Annotations:   svc.Annotations,
	}
	for _, p := range svc.Spec.Ports {
		switch {
		case p.Name == manifest.HealthPortName:
			s.HealthPort = true
		case p.Protocol == corev1.ProtocolUDP:
			s.UDP = append(s.UDP, p.Port)
		default:
			s.TCP = append(s.TCP, p.Port)
		}
	}
	return s
}

// withExisting returns the Service as it is written: with the fields of the existing Service that cannot be changed. A
// controller may have set the class of the load balancer.
func (d draft) withExisting(svc *corev1.Service) *corev1.Service {
	existing := d.view.ServicesOf(resource.KeyOf(d.gateway))
	at := slices.IndexFunc(existing, func(s *corev1.Service) bool { return s.Name == svc.Name })
	if at < 0 {
		return svc
	}
	possible, _ := manifest.Fit(svc, existing[at])
	return possible
}

// requiresIPv6 reports whether a Service, or the Gateway, requests an IPv6 address. PreferDualStack requests none.
func (d draft) requiresIPv6(svc *corev1.Service) bool {
	return slices.Contains(svc.Spec.IPFamilies, corev1.IPv6Protocol) ||
		ptr.Deref(svc.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack ||
		slices.ContainsFunc(requestedIPs(d.gateway), func(ip string) bool { return familyOf(ip) == 6 })
}
