package translate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// requestedAddress returns type and value of the first entry of spec.addresses. An empty value means that any address
// may be assigned.
func requestedAddress(gw *gwapiv1.Gateway) (kind gwapiv1.AddressType, text string) {
	if len(gw.Spec.Addresses) == 0 {
		return "", ""
	}
	a := gw.Spec.Addresses[0]
	return ptr.Deref(a.Type, gwapiv1.IPAddressType), a.Value
}

// requestedIP returns the IP address that the Gateway requests, or "".
func requestedIP(gw *gwapiv1.Gateway) string {
	kind, text := requestedAddress(gw)
	if _, err := netip.ParseAddr(text); kind != gwapiv1.IPAddressType || err != nil {
		return ""
	}
	return text
}

// requestedHostname returns the host name that the Gateway requests, or "".
func requestedHostname(gw *gwapiv1.Gateway) string {
	if kind, text := requestedAddress(gw); kind == gwapiv1.HostnameAddressType {
		return text
	}
	return ""
}

func sameAddress(a, b string) bool {
	x, wrong := netip.ParseAddr(a)
	y, err := netip.ParseAddr(b)
	return wrong == nil && err == nil && x.Unmap() == y.Unmap()
}

// parsePrefix parses a CIDR prefix, or an IP address as a prefix of one address. It converts IPv4-mapped IPv6 to IPv4.
func parsePrefix(text string) (netip.Prefix, bool) {
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

// clusterIPs returns the cluster IPs of all families. Objects of old API servers have only the field clusterIP.
func clusterIPs(svc *corev1.Service) []string {
	return append(slices.Clone(svc.Spec.ClusterIPs), svc.Spec.ClusterIP)
}

// externalIPs returns spec.externalIPs and the IP addresses of the load balancer.
func externalIPs(svc *corev1.Service) []string {
	ips := slices.Clone(svc.Spec.ExternalIPs)
	for _, i := range svc.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	return ips
}
