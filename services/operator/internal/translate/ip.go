package translate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func sameAddress(a, b string) bool {
	x, wrong := netip.ParseAddr(a)
	y, err := netip.ParseAddr(b)
	return wrong == nil && err == nil && x.Unmap() == y.Unmap()
}

// clusterIPs returns the cluster IPs of all families. Old objects have the first one only.
func clusterIPs(svc *corev1.Service) []string {
	return append(slices.Clone(svc.Spec.ClusterIPs), svc.Spec.ClusterIP)
}

func externalIPs(svc *corev1.Service) []string {
	ips := slices.Clone(svc.Spec.ExternalIPs)
	for _, i := range svc.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	return ips
}

// prefixOf reads a prefix, or an address as the prefix that contains nothing else.
func prefixOf(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), true
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

// special tells whether an API server takes an address for none that a Service could have.
func special(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
}
