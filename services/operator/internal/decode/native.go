package decode

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Objects from files need the defaults and rules that an API server would apply. CRDs contain the defaults and rules of
// most kinds. This file has the rest: the rules of metadata, and the defaults and rules of core kinds such as Service.
// The API server's code for core kinds is in k8s.io/kubernetes, which cannot be imported as a library. This file
// repeats only the rules that the translation needs.

// setDefaults sets the defaults of an object of a core kind.
func setDefaults(o resource.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		setServiceDefaults(&o.Spec)
	case *corev1.Secret:
		o.Type = cmp.Or(o.Type, corev1.SecretTypeOpaque)
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			p := &o.Ports[i]
			p.Name, p.Protocol = cmp.Or(p.Name, new("")), cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
		}
	}
}

func setServiceDefaults(s *corev1.ServiceSpec) {
	s.Type = cmp.Or(s.Type, corev1.ServiceTypeClusterIP)
	s.SessionAffinity = cmp.Or(s.SessionAffinity, corev1.ServiceAffinityNone)
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		p.TargetPort = cmp.Or(p.TargetPort, intstr.FromInt32(p.Port))
	}
	if len(s.ClusterIPs) == 0 && s.ClusterIP != "" {
		s.ClusterIPs = []string{s.ClusterIP}
	}
	if len(s.ClusterIPs) > 0 {
		s.ClusterIP = cmp.Or(s.ClusterIP, s.ClusterIPs[0])
	}
}

// validate checks the metadata of any object, and the other fields of an object of a core kind.
func validate(o resource.Object, k kind) (errs field.ErrorList) {
	name := apivalidation.NameIsDNSSubdomain
	switch o := o.(type) {
	case *corev1.Namespace:
		name = apivalidation.ValidateNamespaceName
	case *corev1.Service:
		name = apivalidation.NameIsDNS1035Label
		errs = append(errs, serviceFields(&o.Spec)...)
		for i, p := range o.Spec.Ports {
			for _, message := range validation.IsValidPortNum(int(p.Port)) {
				errs = append(errs,
					field.Invalid(field.NewPath("spec", "ports").Index(i).Child("port"), p.Port, message))
			}
		}
	case *discoveryv1.EndpointSlice:
		types := []discoveryv1.AddressType{
			discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN,
		}
		if !slices.Contains(types, o.AddressType) {
			errs = append(errs, field.NotSupported(field.NewPath("addressType"), o.AddressType, types))
		}
		for i, p := range o.Ports {
			errs = append(errs, oneOf(field.NewPath("ports").Index(i).Child("protocol"), *p.Protocol, protocols)...)
		}
		errs = append(errs, endpointAddresses(o)...)
	}
	return append(errs, apivalidation.ValidateObjectMetaAccessor(o, !k.cluster, name, field.NewPath("metadata"))...)
}

var (
	protocols    = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	serviceTypes = []corev1.ServiceType{
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName,
	}
)

// oneOf checks that a value is one of a list.
func oneOf[T ~string](path *field.Path, value T, supported []T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

// serviceFields checks the type, the cluster IP and the protocols of a Service.
func serviceFields(s *corev1.ServiceSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := oneOf(path.Child("type"), s.Type, serviceTypes)
	if ip := s.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(path.Child("clusterIP"), ip, "must be an IP address or None"))
		}
	}
	for i, p := range s.Ports {
		errs = append(errs, oneOf(path.Child("ports").Index(i).Child("protocol"), p.Protocol, protocols)...)
	}
	return errs
}

// endpointAddresses checks that the addresses of endpoints have the family of their EndpointSlice. In contrast to an
// API server it accepts loopback addresses, for media servers on this host.
func endpointAddresses(s *discoveryv1.EndpointSlice) (errs field.ErrorList) {
	family, ok := map[discoveryv1.AddressType]func(netip.Addr) bool{
		discoveryv1.AddressTypeIPv4: netip.Addr.Is4, discoveryv1.AddressTypeIPv6: netip.Addr.Is6,
	}[s.AddressType]
	for i, endpoint := range s.Endpoints {
		path := field.NewPath("endpoints").Index(i).Child("addresses")
		if len(endpoint.Addresses) == 0 {
			errs = append(errs, field.Required(path, "must contain an address"))
		}
		for n, a := range endpoint.Addresses {
			if ip, err := netip.ParseAddr(a); ok && (err != nil || !family(ip)) {
				errs = append(errs, field.Invalid(path.Index(n), a, fmt.Sprintf("must be an %s address", s.AddressType)))
			}
		}
	}
	return errs
}
