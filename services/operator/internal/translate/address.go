package translate

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// findAddresses sets the public address of each accepted listener. The address is taken from the first of
// addressSources that returns one.
func findAddresses(v *resource.View, gw *gwapiv1.Gateway, listeners []*listener) {
	for _, l := range listeners {
		if !l.accepted.OK() {
			continue
		}
		for _, find := range addressSources {
			if l.address = find(v, gw, l); l.address.known() {
				break
			}
		}
	}
}

// addressSource is a function that returns the public address of a listener, or the zero value if the source has no
// address for the listener.
type addressSource func(*resource.View, *gwapiv1.Gateway, *listener) publicAddress

// addressSources are in order of precedence.
var addressSources = []addressSource{fromHost, fromSpec, fromLoadBalancer, fromNode}

// fromHost returns the address of the host on which the file provider runs the dataplane.
func fromHost(v *resource.View, gw *gwapiv1.Gateway, l *listener) publicAddress {
	if v.Host() == nil {
		return publicAddress{}
	}
	return publicAddress{v.Host().Address, boundPort(v, gw, l)}
}

// fromSpec returns the address that the Gateway requests. A host name is returned at once. An IP address is returned
// only when the Service has it: it may belong to another Service, and must not be advertised then.
func fromSpec(v *resource.View, gw *gwapiv1.Gateway, l *listener) publicAddress {
	if !l.exposed {
		return publicAddress{}
	}
	svc, _ := serviceOf(v, gw, l)
	if ip := requestedIP(gw); ip != "" && (svc == nil || !hasIP(svc, ip)) {
		return publicAddress{}
	}
	return publicAddress{cmp.Or(requestedIP(gw), requestedHostname(gw)), int32(l.spec.Port)}
}

// hasIP reports whether a Service is reachable at an IP address: status.loadBalancer contains the address, or
// spec.externalIPs contains it and the type of the Service is not LoadBalancer.
func hasIP(svc *corev1.Service, wanted string) bool {
	var ips []string
	for _, i := range svc.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		ips = append(ips, svc.Spec.ExternalIPs...)
	}
	return slices.ContainsFunc(ips, func(ip string) bool { return sameAddress(ip, wanted) })
}

// fromLoadBalancer returns the ingress point whose status lists the listener's port, or else the first ingress point
// with an address. Many load balancers do not list ports.
func fromLoadBalancer(v *resource.View, gw *gwapiv1.Gateway, l *listener) publicAddress {
	svc, port := serviceOf(v, gw, l)
	if svc == nil {
		return publicAddress{}
	}
	ingress := svc.Status.LoadBalancer.Ingress
	i := slices.IndexFunc(ingress, func(i corev1.LoadBalancerIngress) bool { return servesPort(i, port) })
	if i < 0 {
		i = slices.IndexFunc(ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP != "" || i.Hostname != "" })
	}
	if i < 0 {
		return publicAddress{}
	}
	if ingress[i].IP != "" {
		return publicAddress{ingress[i].IP, port.Port}
	}
	return publicAddress{ingress[i].Hostname, port.Port}
}

// servesPort reports whether an ingress point in the status of a load balancer lists the Service port and reports no
// error for this port.
func servesPort(i corev1.LoadBalancerIngress, port *corev1.ServicePort) bool {
	return (i.IP != "" || i.Hostname != "") && slices.ContainsFunc(i.Ports, func(p corev1.PortStatus) bool {
		return p.Port == port.Port && p.Protocol == port.Protocol && p.Error == nil
	})
}

// fromNode returns the node port of the listener's Service together with the first ExternalIP of the nodes, or else
// with the first ExternalDNS.
func fromNode(v *resource.View, gw *gwapiv1.Gateway, l *listener) publicAddress {
	_, port := serviceOf(v, gw, l)
	if port == nil || port.NodePort == 0 {
		return publicAddress{}
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeExternalDNS} {
		for _, node := range v.Nodes() {
			for _, a := range node.Status.Addresses {
				if a.Type == kind && a.Address != "" {
					return publicAddress{a.Address, port.NodePort}
				}
			}
		}
	}
	return publicAddress{}
}

// serviceTypes lists the Service types in the order in which serviceOf searches them: Services that are reachable from
// outside the cluster come first.
var serviceTypes = []corev1.ServiceType{
	corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName,
	corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP,
}

// serviceOf returns the Service of the Gateway that has a port for the listener, and that port.
func serviceOf(v *resource.View, gw *gwapiv1.Gateway, l *listener) (*corev1.Service, *corev1.ServicePort) {
	for _, kind := range serviceTypes {
		for _, svc := range v.ServicesOf(resource.KeyOf(gw)) {
			for i, p := range svc.Spec.Ports {
				if svc.Spec.Type == kind && p.Port == int32(l.spec.Port) &&
					strings.EqualFold(string(p.Protocol), l.network()) {
					return svc, &svc.Spec.Ports[i]
				}
			}
		}
	}
	return nil, nil
}

// maxServiceAddresses is the maximum number of Service addresses of one listener in the config. It is needed because
// spec.externalIPs of a Service has no limit. Cluster IPs are added first.
const maxServiceAddresses = 64

// serviceAddresses returns the addresses, as IP:PORT, of the Gateway's Services that forward to a listener: cluster
// IPs, external IPs, and IPs of load balancers.
func serviceAddresses(v *resource.View, gw *gwapiv1.Gateway, l *listener) (addrs []string) {
	services := v.ServicesOf(resource.KeyOf(gw))
	for _, ipsOf := range []func(*corev1.Service) []string{clusterIPs, externalIPs} {
		for _, svc := range services {
			for _, p := range svc.Spec.Ports {
				if forwardsTo(p, l) {
					addrs = appendAddresses(addrs, ipsOf(svc), p.Port)
				}
			}
		}
	}
	return addrs
}

// forwardsTo reports whether a port of one of the Gateway's Services forwards to a listener.
func forwardsTo(p corev1.ServicePort, l *listener) bool {
	samePort := p.Port == int32(l.spec.Port) || p.TargetPort.IntVal == l.target
	return samePort && strings.EqualFold(string(p.Protocol), l.network())
}

// appendAddresses appends IP:PORT for each IP address in ips. Other texts are skipped: a clusterIP may be "None" or "".
func appendAddresses(addrs, ips []string, port int32) []string {
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		if err != nil || a.Zone() != "" || port < 1 || port > math.MaxUint16 {
			continue
		}
		text := netip.AddrPortFrom(a.Unmap(), uint16(port)).String()
		if !slices.Contains(addrs, text) && len(addrs) < maxServiceAddresses {
			addrs = append(addrs, text)
		}
	}
	return addrs
}
