package manifest

import (
	"math"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// RelayPorts returns the range of ports that relay sockets may use. Without spec.relayPortRange, the range contains all
// ports that the kernel may choose.
func RelayPorts(template *stunnerv1.Dataplane) config.PortRange {
	if r := template.Spec.RelayPortRange; r != nil {
		return config.PortRange{First: uint16(r.MinPort), Last: uint16(r.MaxPort)}
	}
	return config.PortRange{First: config.LowestRelayPort, Last: math.MaxUint16}
}

// NetworkPolicy returns the NetworkPolicy of a Gateway. Ingress is limited to the ports of listeners, relay sockets,
// health check and metrics. Relay ports are open to everyone, because a peer may send the first packet. The pods of the
// Gateway may send to all UDP ports of each other, because the kernel selects the ports on which they receive forwarded
// datagrams. Egress over UDP is not limited, because the dataplane itself enforces the routes.
func NetworkPolicy(o Owner, c config.Config, relays config.PortRange, configOrigin string) *networkingv1.NetworkPolicy {
	return WithPorts(&networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: o.meta(o.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *selector(o),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: egressPorts(configOrigin)}},
		},
	}, c, relays)
}

// WithPorts returns a copy of a NetworkPolicy whose ingress rules allow the ports of a config and the relay ports from
// every source, and all UDP ports from the pods that it selects.
func WithPorts(p *networkingv1.NetworkPolicy, c config.Config, relays config.PortRange) *networkingv1.NetworkPolicy {
	var ports []networkingv1.NetworkPolicyPort
	for _, l := range c.Listeners {
		ports = append(ports, one(corev1.Protocol(strings.ToUpper(l.Protocol.Network())), int32(l.Port)))
	}
	relay := one(corev1.ProtocolUDP, int32(relays.First))
	relay.EndPort = new(int32(relays.Last))
	ports = append(ports, relay)
	if endpoint := c.Admin.HealthcheckEndpoint; endpoint != nil && *endpoint != "" {
		ports = append(ports, one(corev1.ProtocolTCP, originPort(*endpoint)))
	}
	if endpoint := c.Admin.MetricsEndpoint; endpoint != "" {
		ports = append(ports, one(corev1.ProtocolTCP, originPort(endpoint)))
	}
	p = p.DeepCopy()
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: ports}, {
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolUDP)}},
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: p.Spec.PodSelector.DeepCopy()}},
	}}
	return p
}

// egressPorts returns the ports to which pods may send: all UDP ports, for DNS and peers, and the TCP ports of DNS and
// config discovery. A NetworkPolicy applies to the port of the destination pod, and the DNS pods of some clusters use
// port 5353.
func egressPorts(configOrigin string) []networkingv1.NetworkPolicyPort {
	return []networkingv1.NetworkPolicyPort{
		{Protocol: new(corev1.ProtocolUDP)},
		one(corev1.ProtocolTCP, 53),
		one(corev1.ProtocolTCP, 5353),
		one(corev1.ProtocolTCP, originPort(configOrigin)),
	}
}

// originPort returns the port of a URL, or the default port of its scheme.
func originPort(origin string) int32 {
	u, err := url.Parse(origin)
	if err == nil {
		if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
			return int32(n)
		}
		if u.Scheme == "http" || u.Scheme == "ws" {
			return 80
		}
	}
	return 443
}

func one(protocol corev1.Protocol, port int32) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: new(intstr.FromInt32(port))}
}
