package decode

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// The functions here fill in what an API server would, as far as anything reads it.

// orElse sets a pointer that is nil.
func orElse[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

// orZero sets a value that is the zero value.
func orZero[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func fillGateway(g *gatewayv1.Gateway) {
	for i := range g.Spec.Addresses {
		orElse(&g.Spec.Addresses[i].Type, gatewayv1.IPAddressType)
	}
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		orElse(&l.AllowedRoutes, gatewayv1.AllowedRoutes{})
		orElse(&l.AllowedRoutes.Namespaces, gatewayv1.RouteNamespaces{})
		orElse(&l.AllowedRoutes.Namespaces.From, gatewayv1.NamespacesFromSame)
		if l.TLS == nil {
			continue
		}
		orElse(&l.TLS.Mode, gatewayv1.TLSModeTerminate)
		for n := range l.TLS.CertificateRefs {
			fillSecretRef(&l.TLS.CertificateRefs[n])
		}
	}
}

func fillSecretRef(ref *gatewayv1.SecretObjectReference) {
	orElse(&ref.Group, "")
	orElse(&ref.Kind, "Secret")
}

func fillParents(spec *gatewayv1.CommonRouteSpec) {
	for i := range spec.ParentRefs {
		orElse(&spec.ParentRefs[i].Group, gatewayv1.GroupName)
		orElse(&spec.ParentRefs[i].Kind, "Gateway")
	}
}

func fillOfficialBackends(refs []gatewayv1.BackendRef) {
	for i := range refs {
		orElse(&refs[i].Group, "")
		orElse(&refs[i].Kind, "Service")
		orElse(&refs[i].Weight, 1)
	}
}

func fillUDPRoute(r *gatewayv1.UDPRoute) {
	fillParents(&r.Spec.CommonRouteSpec)
	for _, rule := range r.Spec.Rules {
		fillOfficialBackends(rule.BackendRefs)
	}
}

func fillAlphaUDPRoute(r *gatewayv1alpha2.UDPRoute) {
	fillParents(&r.Spec.CommonRouteSpec)
	for _, rule := range r.Spec.Rules {
		fillOfficialBackends(rule.BackendRefs)
	}
}

func fillOwnUDPRoute(r *stunnerv1.UDPRoute) {
	fillParents(&r.Spec.CommonRouteSpec)
	for _, rule := range r.Spec.Rules {
		for i := range rule.BackendRefs {
			orElse(&rule.BackendRefs[i].Group, "")
			orElse(&rule.BackendRefs[i].Kind, stunnerv1.KindService)
		}
	}
}

func fillGatewayConfig(c *stunnerv1.GatewayConfig) {
	orZero(&c.Spec.Dataplane, stunnerv1.DefaultDataplane)
	orZero(&c.Spec.Realm, stunnerv1.DefaultRealm)
	orZero(&c.Spec.AuthType, stunnerv1.DefaultAuthType)
	if c.Spec.DeniedBackends == nil {
		c.Spec.DeniedBackends = stunnerv1.DefaultDeniedBackends()
	}
	if c.Spec.AuthRef != nil {
		fillSecretRef(c.Spec.AuthRef)
	}
}

func fillDataplane(d *stunnerv1.Dataplane) {
	orZero(&d.Spec.DataplaneResource, stunnerv1.DefaultDataplaneResource)
	orZero(&d.Spec.OffloadEngine, stunnerv1.DefaultOffloadEngine)
	orElse(&d.Spec.TerminationGracePeriodSeconds, stunnerv1.DefaultTerminationGracePeriodSeconds)
	if a := d.Spec.Autoscaling; a != nil {
		orElse(&a.MinReplicas, stunnerv1.DefaultMinReplicas)
		orElse(&a.AllocationsPerReplica, stunnerv1.DefaultAllocationsPerReplica)
		orZero(&a.Trigger, stunnerv1.DefaultScalingTrigger)
		if p := a.Prometheus; p != nil && p.AuthenticationRef != nil {
			orZero(&p.AuthenticationRef.Kind, stunnerv1.DefaultTriggerAuthentication)
		}
	}
}

func fillService(s *corev1.Service) {
	orZero(&s.Spec.Type, corev1.ServiceTypeClusterIP)
	orZero(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		orZero(&p.Protocol, corev1.ProtocolTCP)
		orZero(&p.TargetPort, intstr.FromInt32(p.Port))
	}
	if len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "" {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if len(s.Spec.ClusterIPs) > 0 {
		orZero(&s.Spec.ClusterIP, s.Spec.ClusterIPs[0])
	}
}

func fillSecret(s *corev1.Secret) { orZero(&s.Type, corev1.SecretTypeOpaque) }

func fillEndpointSlice(e *discoveryv1.EndpointSlice) {
	for i := range e.Ports {
		orElse(&e.Ports[i].Name, "")
		orElse(&e.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}
