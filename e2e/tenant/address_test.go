package tenant

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wish returns a Gateway that requests an address, on port 53.
func wish(addresses, annotations string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, annotations: {%s}}
spec:
  gatewayClassName: calls-1
  addresses: [%s]
  listeners: [{name: udp, port: 53, protocol: TURN-UDP}, {name: tcp, port: 6443, protocol: TURN-TCP}]
`, annotations, addresses)
}

// addressAttempts: a Gateway gets only addresses that the class allows, never one of the cluster or of another tenant.
func addressAttempts() (attempts []attempt) {
	for _, c := range []struct{ what, address, addresses, annotations string }{
		{what: "the cluster's DNS", address: dnsService},
		{what: "the API server's Service", address: apiService},
		{what: "the API server", address: apiServer},
		{what: "a node", address: node},
		{what: "a node from outside", address: nodeOutside},
		{what: "the load balancer of others", address: run.balanced},
		{what: "a media server of others", address: mediaServer},
		{what: "a public name server", address: "8.8.8.8"},
		{what: "the DNS as IPv4-mapped IPv6", address: "::ffff:10.96.0.10"},
		{what: "a documentation prefix of IPv6", address: "2001:db8::1"},
		{what: "the metadata service", address: "169.254.169.254"},
		{what: "every host", address: "0.0.0.0"},
		{what: "the loopback", address: "127.0.0.1"},
		{what: "a multicast group", address: "224.0.0.1"},
		{what: "the loopback in IPv6", address: "::1"},
		{what: "the DNS as its second address", address: dnsService, addresses: `{value: 8.8.8.8}, {value: 10.96.0.10}`},
		{what: "the DNS with an explicit type", address: dnsService, addresses: `{type: IPAddress, value: 10.96.0.10}`,
			annotations: `stunner.l7mp.io/disable-external-ips: "false"`},
		{what: "the DNS with type ClusterIP", address: dnsService, annotations: `stunner.l7mp.io/service-type: ClusterIP`},
		{what: "the API server with type NodePort", address: apiServer,
			annotations: `stunner.l7mp.io/service-type: NodePort`},
	} {
		if c.addresses == "" {
			c.addresses = fmt.Sprintf(`{value: %q}`, c.address)
		}
		attempts = append(attempts, attempt{
			name: "a Gateway asks for the address of " + c.what, apply: wish(c.addresses, c.annotations),
			try: func(n *tenant) { n.hasNoAddress(c.address) },
		})
	}
	for _, c := range []struct{ name, addresses, annotations, told string }{
		{"a Gateway asks for a named address", `{type: NamedAddress, value: kube-dns}`, "", `Accepted=False UnsupportedAddress`},
		{"a Gateway asks for the node port of a Service of others", "",
			`stunner.l7mp.io/service-type: NodePort, stunner.l7mp.io/nodeport: '{"udp": 30053}'`,
			`the API server refuses Service|provided port is already allocated`},
		{"a Gateway asks for the node port of a kubelet", "",
			`stunner.l7mp.io/service-type: NodePort, stunner.l7mp.io/nodeport: '{"tcp": 10250}'`, `the API server refuses Service`},
		{"a listener uses the port of the pod's probes", "", `stunner.l7mp.io/targetport: '{"tcp": 8086}'`, `8086`},
	} {
		attempts = append(attempts, attempt{
			name: c.name, apply: wish(c.addresses, c.annotations), object: "gateway/door", told: c.told,
		})
	}
	return append(attempts, []attempt{
		{
			name: "a load balancer's health check is directed to the kubelet",
			apply: wish("", `service.beta.kubernetes.io/do-loadbalancer-healthcheck-port: "10250", `+
				`service.beta.kubernetes.io/do-loadbalancer-healthcheck-protocol: tcp`),
			try: func(n *tenant) {
				// A port of the Gateway's own pods is allowed: they have no host network.
				if svc := n.service("door"); svc != nil &&
					svc.Spec.Selector["stunner.l7mp.io/related-gateway-namespace"] != n.name {
					n.Errorf("the Service selects %v", svc.Spec.Selector)
				}
			},
		},
		{
			name:  "a Gateway requests the address of another node than its pod's",
			apply: wish(``, `stunner.l7mp.io/enable-relay-address-discovery: "true"`),
			try: func(n *tenant) {
				_, body := n.ask(n.dataplaneToken("door"), "/api/v1/configs/"+n.name+"/door?node=control-1")
				if strings.Contains(string(body), `"`+apiServer) {
					n.Errorf("a pod of another node gets the address of control-1: %s", body)
				}
			},
		},
	}...)
}

// annotationAttempts: an annotation with any value affects only the Gateway that has it. The annotations are the
// annotations of users in the reference, and the annotations that the operator sets.
func annotationAttempts() (attempts []attempt) {
	annotations := []string{"applied", "related-gateway-name", "related-gateway-namespace", "owned-by"}
	for _, annotation := range append(annotations, run.annotations...) {
		attempts = append(attempts, attempt{
			name: "the annotation " + annotation + " has unexpected values", apply: gateway(""),
			try: func(n *tenant) {
				for _, value := range []string{
					first, "ExternalName", `{"udp": 53, "udp": 6443}`, "true\u200b", strings.Repeat("true,", 10_000),
				} {
					n.annotate("stunner.l7mp.io/"+annotation, value)
					n.settle()
				}
				n.ownsItsObjects()
			},
		})
	}
	return attempts
}

// hasNoAddress checks that no Service of the tenant has an address, and that no config has it as public address.
func (n *tenant) hasNoAddress(address string) {
	n.Helper()
	a := netip.MustParseAddr(address).Unmap()
	same := func(text string) bool {
		b, err := netip.ParseAddr(text)
		return err == nil && b.Unmap() == a
	}
	services := &corev1.ServiceList{}
	n.must(run.admin.List(n.Context(), services, client.InNamespace(n.name)))
	for _, svc := range services.Items {
		if slices.ContainsFunc(append(svc.Spec.ExternalIPs, svc.Spec.LoadBalancerIP), same) {
			n.Errorf("Service %s requests %s: externalIPs %v, loadBalancerIP %s",
				svc.Name, address, svc.Spec.ExternalIPs, svc.Spec.LoadBalancerIP)
		}
	}
	for _, l := range n.config("door").Listeners {
		if same(l.PublicAddress) {
			n.Errorf("listener %s is published with address %s", l.Name, address)
		}
	}
	text, err := n.conditions(n.Context(), "gateway/door")
	n.must(err)
	if !strings.Contains(text, "Programmed=False") {
		n.Errorf("no condition reports that the address is not available:\n%s", text)
	}
}
