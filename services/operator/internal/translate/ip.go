package translate

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// requestedAddress is an entry of spec.addresses with a value. An entry without one means that any address may be
// assigned.
type requestedAddress struct {
	index int
	kind  gwapiv1.AddressType
	value string
}

func (a requestedAddress) field(name string) string {
	return fmt.Sprintf("spec.addresses[%d].%s", a.index, name)
}

// requestedAddresses returns the entries of spec.addresses with a value.
func requestedAddresses(gw *gwapiv1.Gateway) (all []requestedAddress) {
	for i, a := range gw.Spec.Addresses {
		if a.Value != "" {
			all = append(all, requestedAddress{i, ptr.Deref(a.Type, gwapiv1.IPAddressType), a.Value})
		}
	}
	return all
}

// requestedIPs returns the IP addresses that the Gateway requests.
func requestedIPs(gw *gwapiv1.Gateway) (ips []string) {
	for _, a := range requestedAddresses(gw) {
		if familyOf(a.value) != 0 && a.kind == gwapiv1.IPAddressType {
			ips = append(ips, a.value)
		}
	}
	return ips
}

// requestedHostname returns the first host name that the Gateway requests, or "".
func requestedHostname(gw *gwapiv1.Gateway) string {
	for _, a := range requestedAddresses(gw) {
		if a.kind == gwapiv1.HostnameAddressType {
			return a.value
		}
	}
	return ""
}

// familyOf returns 4 or 6 for an IP address, and 0 for any other text.
func familyOf(text string) int {
	switch a, err := netip.ParseAddr(text); {
	case err != nil:
		return 0
	case a.Unmap().Is4():
		return 4
	}
	return 6
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
