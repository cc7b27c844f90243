package manifest

import (
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// relayPorts are those that a relay socket may have: the kernel chooses one, and a peer may be the first to send.
var relayPorts = config.PortRange{First: 1024, Last: 65535}

// NetworkPolicy confines the pods of a Gateway: who reaches them, and what they may reach beside the peers, which is everybody over UDP.
// What a client may relay to is for the dataplane to say, by its routes.
func NetworkPolicy(o Owner, c config.Config, configOrigin string) *networkingv1.NetworkPolicy {
	return Admit(&networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: o.meta(o.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *selector(o),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: outgoing(configOrigin)}},
		},
	}, c)
}

// Admit returns a copy of a NetworkPolicy that lets everybody reach what a config serves.
func Admit(p *networkingv1.NetworkPolicy, c config.Config) *networkingv1.NetworkPolicy {
	var ports []networkingv1.NetworkPolicyPort
	for _, l := range c.Listeners {
		ports = append(ports, one(corev1.Protocol(strings.ToUpper(l.Protocol.Network())), int32(l.Port)))
	}
	relay := one(corev1.ProtocolUDP, int32(relayPorts.First))
	relay.EndPort = new(int32(relayPorts.Last))
	ports = append(ports, relay)
	if endpoint := c.Admin.HealthcheckEndpoint; endpoint != nil && *endpoint != "" {
		ports = append(ports, one(corev1.ProtocolTCP, HealthPort))
	}
	if c.Admin.MetricsEndpoint != "" {
		ports = append(ports, one(corev1.ProtocolTCP, MetricsPort))
	}
	p = p.DeepCopy()
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: ports}}
	return p
}

// outgoing are UDP to everybody, for DNS and for peers, and TCP for DNS and config discovery. A policy sees the port of the pod that answers,
// and there are clusters whose DNS pods listen on 5353.
func outgoing(configOrigin string) []networkingv1.NetworkPolicyPort {
	return []networkingv1.NetworkPolicyPort{
		{Protocol: new(corev1.ProtocolUDP)},
		one(corev1.ProtocolTCP, 53),
		one(corev1.ProtocolTCP, 5353),
		one(corev1.ProtocolTCP, originPort(configOrigin)),
	}
}

// originPort is the port of a URL.
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
