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

// address is where clients find a listener.
type address struct {
	host string
	port int32
}

func (a address) known() bool { return a.host != "" }

// kind is how a Gateway status names the host.
func (a address) kind() gwapiv1.AddressType {
	if _, err := netip.ParseAddr(a.host); err == nil {
		return gwapiv1.IPAddressType
	}
	return gwapiv1.HostnameAddressType
}

// findAddresses gives each listener that is exposed its public address: from the first source that knows one.
func findAddresses(v *resource.View, gw *gwapiv1.Gateway, listeners []*listener) {
	for _, l := range listeners {
		if !l.accepted.OK() {
			continue
		}
		for _, ask := range sources {
			if l.address = ask(v, gw, l); l.address.known() {
				break
			}
		}
	}
}

// source knows the public address of a listener, or returns the zero address.
type source func(*resource.View, *gwapiv1.Gateway, *listener) address

var sources = []source{fromHost, fromWish, fromLoadBalancer, fromNode}

// fromHost is the host on which the provider itself runs the dataplane.
func fromHost(v *resource.View, gw *gwapiv1.Gateway, l *listener) address {
	if v.Host() == nil {
		return address{}
	}
	return address{v.Host().Address, boundPort(v, gw, l)}
}

// fromWish is what the Gateway asks for. A host name is believed: it takes no address from anybody. An address counts once the Service has it.
func fromWish(v *resource.View, gw *gwapiv1.Gateway, l *listener) address {
	if !l.exposed {
		return address{}
	}
	svc, _ := serviceOf(v, gw, l)
	if wished := wishedAddress(gw); wished != "" && (svc == nil || !given(svc, wished)) {
		return address{}
	}
	return address{cmp.Or(wishedAddress(gw), wishedHostname(gw)), int32(l.spec.Port)}
}

// given tells whether a Service has an address: from its load balancer, or, where none is asked for, because its nodes take what comes for it.
func given(svc *corev1.Service, wished string) bool {
	var ips []string
	for _, i := range svc.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		ips = append(ips, svc.Spec.ExternalIPs...)
	}
	return slices.ContainsFunc(ips, func(ip string) bool { return sameAddress(ip, wished) })
}

// fromLoadBalancer is what a load balancer has reported: for this very port if it says so, else for all.
func fromLoadBalancer(v *resource.View, gw *gwapiv1.Gateway, l *listener) address {
	svc, port := serviceOf(v, gw, l)
	if svc == nil {
		return address{}
	}
	ingress := svc.Status.LoadBalancer.Ingress
	i := slices.IndexFunc(ingress, func(i corev1.LoadBalancerIngress) bool { return serves(i, port) })
	if i < 0 {
		i = slices.IndexFunc(ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP != "" || i.Hostname != "" })
	}
	if i < 0 {
		return address{}
	}
	if ingress[i].IP != "" {
		return address{ingress[i].IP, port.Port}
	}
	return address{ingress[i].Hostname, port.Port}
}

// serves tells whether an ingress point names the port and reports no error for it.
func serves(i corev1.LoadBalancerIngress, port *corev1.ServicePort) bool {
	return (i.IP != "" || i.Hostname != "") && slices.ContainsFunc(i.Ports, func(p corev1.PortStatus) bool {
		return p.Port == port.Port && p.Protocol == port.Protocol && p.Error == nil
	})
}

// fromNode is a node port at the first node that clients can reach from outside.
func fromNode(v *resource.View, gw *gwapiv1.Gateway, l *listener) address {
	_, port := serviceOf(v, gw, l)
	if port == nil || port.NodePort == 0 {
		return address{}
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeExternalDNS} {
		for _, node := range v.Nodes() {
			for _, a := range node.Status.Addresses {
				if a.Type == kind && a.Address != "" {
					return address{a.Address, port.NodePort}
				}
			}
		}
	}
	return address{}
}

// serviceTypes are the types of Services, those first that reach farthest.
var serviceTypes = []corev1.ServiceType{
	corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP,
}

// serviceOf returns the Service of the Gateway that has a port for the listener.
func serviceOf(v *resource.View, gw *gwapiv1.Gateway, l *listener) (*corev1.Service, *corev1.ServicePort) {
	for _, kind := range serviceTypes {
		for _, svc := range v.ServicesOf(resource.KeyOf(gw)) {
			for i, p := range svc.Spec.Ports {
				if svc.Spec.Type == kind && p.Port == int32(l.spec.Port) && strings.EqualFold(string(p.Protocol), l.network()) {
					return svc, &svc.Spec.Ports[i]
				}
			}
		}
	}
	return nil, nil
}

// maxServiceAddresses bounds the addresses of Services that one listener has in the config, so that a Service with very many cannot make the
// config large. Cluster IPs come first.
const maxServiceAddresses = 64

// serviceAddresses returns the addresses of the Gateway's Services that lead to a listener, as IP:PORT: cluster IPs, external IPs, and those
// that a load balancer has reported.
func serviceAddresses(v *resource.View, gw *gwapiv1.Gateway, l *listener) (addrs []string) {
	services := v.ServicesOf(resource.KeyOf(gw))
	for _, ipsOf := range []func(*corev1.Service) []string{clusterIPs, externalIPs} {
		for _, svc := range services {
			for _, p := range svc.Spec.Ports {
				if leadsTo(p, l) {
					addrs = appendAddresses(addrs, ipsOf(svc), p.Port)
				}
			}
		}
	}
	return addrs
}

// leadsTo tells whether a port of one of the Gateway's Services is that of a listener.
func leadsTo(p corev1.ServicePort, l *listener) bool {
	return strings.EqualFold(string(p.Protocol), l.network()) && (p.Port == int32(l.spec.Port) || p.TargetPort.IntVal == l.target)
}

// appendAddresses adds those of the IPs that are addresses, which None and the empty text are not, with a port.
func appendAddresses(addrs, ips []string, port int32) []string {
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		if err != nil || a.Zone() != "" || port < 1 || port > math.MaxUint16 {
			continue
		}
		if text := netip.AddrPortFrom(a.Unmap(), uint16(port)).String(); !slices.Contains(addrs, text) && len(addrs) < maxServiceAddresses {
			addrs = append(addrs, text)
		}
	}
	return addrs
}
