package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// networkPolicies checks that the NetworkPolicies that select the pods of the Gateway admit its listeners and its
// media, and that the NetworkPolicies of its backends admit the pods of the Gateway.
func (s *Snapshot) networkPolicies(g *Gateway) (found []Finding) {
	if len(g.Pods) == 0 || g.Pods[0].Spec.HostNetwork {
		return nil
	}
	own := party{namespace: g.Namespace, labels: g.Pods[0].Labels, known: true}
	for _, pod := range g.Pods {
		for _, ip := range pod.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				own.addresses = append(own.addresses, a)
			}
		}
	}
	ingress := s.policiesOf(own, networkingv1.PolicyTypeIngress)
	egress := s.policiesOf(own, networkingv1.PolicyTypeEgress)
	for _, l := range g.Spec.Listeners {
		if f := g.clientPolicy(l, ingress); f != nil {
			found = append(found, *f)
			break
		}
	}
	media := len(egress) == 0 || slices.ContainsFunc(egress, func(p *networkingv1.NetworkPolicy) bool {
		return slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
			return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool {
				return p.Protocol != nil && *p.Protocol == corev1.ProtocolUDP &&
					(p.Port == nil || p.Port.IntValue() != 53)
			})
		})
	})
	if !media {
		return append(found, Finding{
			Severity: Error, Object: ref("NetworkPolicy", egress[0]), Field: "spec.egress",
			Problem: "no NetworkPolicy of the dataplane pods lets them send UDP to peers",
			Remedy:  "allow UDP to the backends, or set spec.enableNetworkPolicy of the Dataplane, which does",
			Command: describe("networkpolicy", egress[0]),
		})
	}
	for _, b := range s.backends(g) {
		if b.service == nil {
			continue
		}
		if f := s.egressTo(b, egress); f != nil {
			found = append(found, *f)
		}
		if f := s.ingressFrom(g, own, b); f != nil {
			found = append(found, *f)
		}
	}
	return found
}

// egressTo returns a finding if the policies of the dataplane pods, which are additive, do not admit traffic to any
// endpoint of a backend.
func (s *Snapshot) egressTo(b backend, egress []*networkingv1.NetworkPolicy) *Finding {
	if len(egress) == 0 {
		return nil
	}
	to := party{namespace: b.service.Namespace, labels: b.service.Spec.Selector, addresses: s.addressesOf(b.service)}
	if len(to.addresses) == 0 {
		return nil
	}
	for _, p := range egress {
		for _, r := range p.Spec.Egress {
			if b.passes(r.Ports) && to.isIn(r.To, p.Namespace) {
				return nil
			}
		}
	}
	return &Finding{
		Severity: Warning, Object: ref("NetworkPolicy", egress[0]), Field: "spec.egress",
		Problem: fmt.Sprintf("no NetworkPolicy of the dataplane pods lets them send %s to %s of route %s",
			b.ports(), ref("Service", b.service), b.route),
		Remedy:  "allow it in spec.egress, or set spec.enableNetworkPolicy of the Dataplane, which does",
		Command: describe("networkpolicy", egress[0]),
	}
}

// ingressFrom returns a finding if the policies that select the pods of a backend do not admit the dataplane pods.
func (s *Snapshot) ingressFrom(g *Gateway, own party, b backend) *Finding {
	if len(b.service.Spec.Selector) == 0 {
		return nil // its endpoints are not known pods
	}
	pods := party{namespace: b.service.Namespace, labels: b.service.Spec.Selector, addresses: s.addressesOf(b.service)}
	var selects *networkingv1.NetworkPolicy
	for _, p := range s.policiesOf(pods, networkingv1.PolicyTypeIngress) {
		if selects == nil && pods.hasAll(p.Spec.PodSelector) {
			selects = p
		}
		for _, r := range p.Spec.Ingress {
			if b.passes(r.Ports) && own.isIn(r.From, p.Namespace) {
				return nil
			}
		}
	}
	if selects == nil {
		return nil
	}
	return &Finding{
		Severity: Warning, Object: ref("NetworkPolicy", selects), Field: "spec.ingress",
		Problem: fmt.Sprintf("no NetworkPolicy of the pods of %s admits %s from the dataplane pods of Gateway %s/%s",
			ref("Service", b.service), b.ports(), g.Namespace, g.Name),
		Remedy: fmt.Sprintf("admit it in spec.ingress, from namespaceSelector kubernetes.io/metadata.name: %s with podSelector %s: %s",
			g.Namespace, labelGateway, g.Name),
		Command: describe("networkpolicy", selects),
	}
}

// policiesOf returns the policies of a type that may select pods.
func (s *Snapshot) policiesOf(of party, kind networkingv1.PolicyType) (all []*networkingv1.NetworkPolicy) {
	for _, p := range list[networkingv1.NetworkPolicy](s, "NetworkPolicy") {
		is := slices.Contains(p.Spec.PolicyTypes, kind) ||
			len(p.Spec.PolicyTypes) == 0 && (kind == networkingv1.PolicyTypeIngress || len(p.Spec.Egress) > 0)
		if is && p.Namespace == of.namespace && of.matches(&p.Spec.PodSelector) {
			all = append(all, p)
		}
	}
	return all
}

// party are the pods at one end of a connection.
type party struct {
	namespace string
	// labels are all labels of the pods if known is set, and otherwise the labels in the selector of their Service.
	labels map[string]string
	known  bool
	// addresses are empty if they are unknown.
	addresses []netip.Addr
}

// matches reports whether a selector may select the pods. Labels that are unknown may have any value.
func (p party) matches(selector *metav1.LabelSelector) bool {
	has := func(key string) bool { _, ok := p.labels[key]; return ok || p.known }
	certain := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for key, value := range selector.MatchLabels {
		if has(key) {
			certain.MatchLabels[key] = value
		}
	}
	for _, e := range selector.MatchExpressions {
		if has(e.Key) {
			certain.MatchExpressions = append(certain.MatchExpressions, e)
		}
	}
	parsed, err := metav1.LabelSelectorAsSelector(certain)
	return err == nil && parsed.Matches(labels.Set(p.labels))
}

// hasAll reports whether it is certain that a selector selects the pods.
func (p party) hasAll(selector metav1.LabelSelector) bool {
	for key, value := range selector.MatchLabels {
		if p.labels[key] != value {
			return false
		}
	}
	return len(selector.MatchExpressions) == 0
}

// isIn reports whether the peers of a rule of a policy in a namespace may contain one of the pods.
func (p party) isIn(peers []networkingv1.NetworkPolicyPeer, namespace string) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool {
		if peer.IPBlock != nil {
			return len(p.addresses) == 0 || slices.ContainsFunc(p.addresses, func(a netip.Addr) bool {
				return contains(peer.IPBlock.CIDR, a) &&
					!slices.ContainsFunc(peer.IPBlock.Except, func(cidr string) bool { return contains(cidr, a) })
			})
		}
		if peer.NamespaceSelector == nil && p.namespace != namespace {
			return false
		}
		// Of the labels of a namespace, only the label with its name is known.
		name := party{labels: map[string]string{corev1.LabelMetadataName: p.namespace}}
		return (peer.NamespaceSelector == nil || name.matches(peer.NamespaceSelector)) &&
			(peer.PodSelector == nil || p.matches(peer.PodSelector))
	})
}

// contains reports whether a range contains an address.
func contains(cidr string, a netip.Addr) bool {
	prefix, err := netip.ParsePrefix(cidr)
	return err == nil && prefix.Contains(a)
}

// addressesOf returns the addresses of the endpoints of a Service.
func (s *Snapshot) addressesOf(svc *corev1.Service) (all []netip.Addr) {
	for _, slice := range list[discoveryv1.EndpointSlice](s, "EndpointSlice") {
		if slice.Namespace != svc.Namespace || slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

// ports returns the ports of a backend in words.
func (b backend) ports() string {
	switch {
	case b.first == 0:
		return "UDP"
	case b.first == b.last:
		return fmt.Sprintf("UDP to port %d", b.first)
	}
	return fmt.Sprintf("UDP to ports %d-%d", b.first, b.last)
}

// passes reports whether the ports of a rule contain one of the UDP ports of a backend.
func (b backend) passes(ports []networkingv1.NetworkPolicyPort) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol == nil || *p.Protocol != corev1.ProtocolUDP {
			return false
		}
		if p.Port == nil || p.Port.Type == intstr.String || b.first == 0 {
			return true
		}
		last := p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return p.Port.IntVal <= b.last && b.first <= last
	})
}

func transport(p gwapiv1.ProtocolType) corev1.Protocol {
	if name := strings.ToUpper(string(p)); strings.HasSuffix(name, "UDP") || strings.HasSuffix(name, "DTLS") {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

// targetPort returns the port of a listener in the pod.
func (g *Gateway) targetPort(l gwapiv1.Listener) int32 {
	for _, svc := range g.Services {
		for _, p := range svc.Spec.Ports {
			if p.Port == int32(l.Port) && p.Protocol == transport(l.Protocol) && p.TargetPort.IntVal != 0 {
				return p.TargetPort.IntVal
			}
		}
	}
	return int32(l.Port)
}

func admits(ports []networkingv1.NetworkPolicyPort, protocol corev1.Protocol, port int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		is := corev1.ProtocolTCP
		if p.Protocol != nil {
			is = *p.Protocol
		}
		if is != protocol {
			return false
		}
		if p.Port == nil || p.Port.Type == intstr.String {
			return true
		}
		last := p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		return p.Port.IntVal <= port && port <= last
	})
}

// clientPolicy checks that the NetworkPolicies with ingress rules admit the clients of a listener.
func (g *Gateway) clientPolicy(l gwapiv1.Listener, ingress []*networkingv1.NetworkPolicy) *Finding {
	if len(ingress) == 0 {
		return nil
	}
	protocol, port := transport(l.Protocol), g.targetPort(l)
	var some []string
	for _, p := range ingress {
		for _, r := range p.Spec.Ingress {
			if !admits(r.Ports, protocol, port) {
				continue
			}
			blocks, all := clients(r.From)
			if all {
				return nil
			}
			some = append(some, blocks...)
		}
	}
	f := &Finding{
		Severity: Warning, Object: ref("NetworkPolicy", ingress[0]), Field: "spec.ingress",
		Problem: fmt.Sprintf("no NetworkPolicy of the dataplane pods admits clients to %s port %d of listener %s",
			protocol, port, l.Name),
		Remedy:  "admit the port, or set spec.enableNetworkPolicy of the Dataplane, which does",
		Command: describe("networkpolicy", ingress[0]),
	}
	if len(some) > 0 {
		f.Severity = Info
		f.Problem = fmt.Sprintf("the NetworkPolicies of the dataplane pods admit only clients of %s to %s port %d of "+
			"listener %s", few(some), protocol, port, l.Name)
		f.Remedy = "if there are other clients, admit 0.0.0.0/0 and ::/0"
	}
	return f
}

// clients returns the ranges of clients that a rule admits, and whether it admits all.
func clients(from []networkingv1.NetworkPolicyPeer) (blocks []string, all bool) {
	for _, p := range from {
		if p.IPBlock == nil {
			continue // pods of the cluster
		}
		blocks = append(blocks, p.IPBlock.CIDR)
		all = all || everyAddress(p.IPBlock.CIDR)
	}
	return blocks, all || len(from) == 0
}
