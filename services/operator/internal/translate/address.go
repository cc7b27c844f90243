package translate

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// announced are the public endpoints of a listener, which the auth service passes to clients: hosts with one port.
type announced struct {
	// hosts are IP addresses and host names, in the order in which clients try them.
	hosts []string
	port  int32
	// problem is the reason of a load balancer for which it does not serve the port.
	problem string
	// cause is why there are no hosts, without a problem of a load balancer.
	cause error
}

func (a announced) known() bool { return len(a.hosts) > 0 }

// maxAnnounced is the maximum number of public addresses of a listener. The Gateway API has the same limit for
// status.addresses.
const maxAnnounced = maxAddresses

// announce sets the public endpoints of each accepted listener. They come from the first of endpointSources that has
// any. Address families alternate, so that a client with one family finds a usable address early.
func (d draft) announce() {
	for _, l := range d.listeners {
		if !l.accepted.OK() {
			continue
		}
		for _, find := range endpointSources {
			if l.announced = find(d, l); l.announced.known() || l.announced.problem != "" {
				break
			}
		}
		l.announced.hosts = inTurn(l.announced.hosts)
		if !l.announced.known() {
			l.announced.cause = d.noAddressCause()
		}
	}
}

// publicHost returns the host name that clients of a secure listener receive instead of its addresses. It is the first
// host name in the certificates of the listener, if no certificate is valid for any of the addresses: clients that
// verify the certificate could otherwise not connect. It returns "" if the Gateway requests addresses, because clients
// then receive these addresses.
func (d draft) publicHost(l *listener) string {
	certificates := l.certificateNames()
	if len(certificates) == 0 || len(requestedAddresses(d.gateway)) > 0 {
		return ""
	}
	covered := func(host string) bool { return config.CertificatesCover(certificates, host) }
	if slices.ContainsFunc(l.announced.hosts, covered) {
		return ""
	}
	for _, names := range certificates {
		if host := config.CertificateHost(names); host != "" {
			return host
		}
	}
	return ""
}

// noAddressCause returns why none of endpointSources has an address. It reads the nodes only if one of these sources
// did, because a Gateway that reads the nodes is translated again whenever a node changes.
func (d draft) noAddressCause() error {
	hostNetwork := d.parameters.dataplane != nil && d.parameters.dataplane.Spec.HostNetwork
	switch kind := d.annotations.serviceType; {
	case hostNetwork && len(d.view.Nodes()) > 1:
		return condition.ErrNoSingleNode
	case kind == corev1.ServiceTypeClusterIP:
		return condition.ErrNoOuterAddress
	case kind == corev1.ServiceTypeNodePort && !d.parameters.tellsInternalNodes() &&
		len(nodeAddresses(d.view.Nodes(), corev1.NodeInternalIP)) > 0:
		return condition.ErrNoExternalNode
	}
	return condition.ErrNoServiceAddress
}

// inTurn returns the hosts without duplicates, at most maxAnnounced. The family of the first one and the other family
// take turns. Host names count as the family of the first one.
func inTurn(hosts []string) (all []string) {
	var first, other []string
	for _, host := range hosts {
		list := &first
		if a, b := familyOf(hosts[0]), familyOf(host); a != 0 && b != 0 && a != b {
			list = &other
		}
		if !slices.Contains(*list, host) {
			*list = append(*list, host)
		}
	}
	for i := range max(len(first), len(other)) {
		for _, list := range [][]string{first, other} {
			if i < len(list) && len(all) < maxAnnounced {
				all = append(all, list[i])
			}
		}
	}
	return all
}

// endpointSource is a function that returns the public endpoints of a listener, or the zero value if the source has
// none.
type endpointSource func(draft, *listener) announced

// endpointSources are in order of precedence.
var endpointSources = []endpointSource{
	draft.fromSpec, draft.fromHost, draft.fromLoadBalancer, draft.fromExternalIPs, draft.fromNodes, draft.fromHostNetwork,
}

// fromSpec returns the addresses that the Gateway requests. They are announced even if no Service has them, because no
// Service has the address of a NAT or of a port forward, or an anycast address. addressAllowed has checked that the
// Gateway may request them.
func (d draft) fromSpec(l *listener) (a announced) {
	for _, requested := range requestedAddresses(d.gateway) {
		a.hosts = append(a.hosts, requested.value)
	}
	switch {
	case d.view.Host() != nil:
		a.port = boundPort(d.view, d.gateway, l)
	case l.exposed:
		a.port = int32(l.spec.Port)
	default:
		return announced{}
	}
	return a
}

// fromHost returns the addresses of the host on which the file provider runs the dataplane.
func (d draft) fromHost(l *listener) announced {
	if d.view.Host() == nil {
		return announced{}
	}
	return announced{hosts: d.view.Host().Addresses, port: boundPort(d.view, d.gateway, l)}
}

// fromLoadBalancer returns the ingress points whose status lists the port of the listener, or else all of them: many
// load balancers do not list ports. An ingress point that reports an error for the port is left out, and the error is
// the problem if no other serves it.
func (d draft) fromLoadBalancer(l *listener) announced {
	svc, port := serviceOf(d.view, d.gateway, l)
	if svc == nil {
		return announced{}
	}
	a := announced{port: port.Port}
	var unlisted []string
	for _, i := range svc.Status.LoadBalancer.Ingress {
		host := cmp.Or(i.IP, i.Hostname)
		if host == "" {
			continue
		}
		switch at := slices.IndexFunc(i.Ports, func(p corev1.PortStatus) bool {
			return p.Port == port.Port && p.Protocol == port.Protocol
		}); {
		case at < 0:
			unlisted = append(unlisted, host)
		case i.Ports[at].Error != nil:
			a.problem = *i.Ports[at].Error
		default:
			a.hosts = append(a.hosts, host)
		}
	}
	switch {
	case a.known():
		a.problem = ""
	case a.problem == "":
		a.hosts = unlisted
	}
	return a
}

// fromExternalIPs returns the external IPs of the Service. Those of a load balancer count only if its status has them.
func (d draft) fromExternalIPs(l *listener) announced {
	svc, port := serviceOf(d.view, d.gateway, l)
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return announced{}
	}
	return announced{hosts: svc.Spec.ExternalIPs, port: port.Port}
}

// fromNodes returns the node port of the Service, together with one address of the nodes for each of its families.
func (d draft) fromNodes(l *listener) announced {
	svc, port := serviceOf(d.view, d.gateway, l)
	if port == nil || port.NodePort == 0 {
		return announced{}
	}
	kinds := []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeExternalDNS}
	if d.parameters.tellsInternalNodes() {
		kinds = append(kinds, corev1.NodeInternalIP)
	}
	for _, kind := range kinds {
		if hosts := firstOfFamilies(d.view.Nodes(), kind, svc.Spec.IPFamilies); len(hosts) > 0 {
			return announced{hosts: hosts, port: port.NodePort}
		}
	}
	return announced{}
}

// firstOfFamilies returns the first address of a kind for each family, in the order of the families. Without families
// it returns the first address of all. A host name has every family.
func firstOfFamilies(nodes []*corev1.Node, kind corev1.NodeAddressType, families []corev1.IPFamily) (hosts []string) {
	wanted := []int{0}
	if len(families) > 0 {
		wanted = nil
	}
	for _, f := range families {
		wanted = append(wanted, map[corev1.IPFamily]int{corev1.IPv4Protocol: 4, corev1.IPv6Protocol: 6}[f])
	}
	for _, family := range wanted {
		for _, host := range nodeAddresses(nodes, kind) {
			if have := familyOf(host); family == 0 || have == 0 || have == family {
				hosts = append(hosts, host)
				break
			}
		}
	}
	return hosts
}

func nodeAddresses(nodes []*corev1.Node, kind corev1.NodeAddressType) (hosts []string) {
	for _, node := range nodes {
		for _, a := range node.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				hosts = append(hosts, a.Address)
			}
		}
	}
	return hosts
}

// fromHostNetwork returns the addresses of the node in whose network the pods run. It prefers external addresses to
// internal ones. In a cluster of several nodes it returns none, because the pods may run on only some of them.
func (d draft) fromHostNetwork(l *listener) announced {
	if d.parameters.dataplane == nil || !d.parameters.dataplane.Spec.HostNetwork {
		return announced{}
	}
	nodes := d.view.Nodes()
	if len(nodes) != 1 {
		return announced{}
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		if hosts := nodeAddresses(nodes, kind); len(hosts) > 0 {
			return announced{hosts: hosts, port: l.target}
		}
	}
	return announced{}
}

// addressNotes warns of each requested IP address that a load balancer has not got.
func (d draft) addressNotes() (notes []condition.Finding) {
	if d.view.Host() != nil || d.parameters.config == nil {
		return nil
	}
	for _, svc := range d.view.ServicesOf(resource.KeyOf(d.gateway)) {
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		known := func(ip string) bool {
			return !d.parameters.allowsAddress(ip) || slices.ContainsFunc(svc.Status.LoadBalancer.Ingress,
				func(i corev1.LoadBalancerIngress) bool { return sameAddress(i.IP, ip) })
		}
		if missing := slices.DeleteFunc(requestedIPs(d.gateway), known); len(missing) > 0 {
			notes = append(notes, condition.AddressNotGiven(svc.Name, missing))
		}
	}
	return notes
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
