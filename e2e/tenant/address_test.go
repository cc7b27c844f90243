package tenant

import (
	"fmt"
	"net/netip"
	"regexp"
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
  gatewayClassName: stunner
  addresses: [%s]
  listeners: [{name: udp, port: 53, protocol: TURN-UDP}, {name: tcp, port: 6443, protocol: TURN-TCP}]
`, annotations, addresses)
}

// addressAttempts: a Gateway gets only addresses that the class allows, never one of the cluster or of another tenant.
func addressAttempts() []attempt {
	var attempts []attempt
	for what, address := range map[string]string{
		"the cluster's DNS":              dnsService,
		"the API server's Service":       apiService,
		"the API server":                 apiServer,
		"a node":                         node,
		"a node from outside":            nodeOutside,
		"the victim's load balancer":     balanced,
		"a pod of the victim":            mediaPod,
		"a public name server":           "8.8.8.8",
		"the DNS as IPv4-mapped IPv6":    "::ffff:10.96.0.10",
		"a documentation prefix of IPv6": "2001:db8::1",
		"the metadata service":           "169.254.169.254",
		"every host":                     "0.0.0.0",
		"the loopback":                   "127.0.0.1",
		"a multicast group":              "224.0.0.1",
		"the loopback in IPv6":           "::1",
	} {
		attempts = append(attempts, attempt{
			name:  "a Gateway asks for the address of " + what,
			apply: wish(fmt.Sprintf(`{value: %q}`, address), ""),
			try:   func(n *tenant) { n.hasNoAddress(address) },
		})
	}
	return append(attempts, []attempt{
		{
			name:  "a Gateway requests the address of the cluster's DNS as its second address",
			apply: wish(`{value: 8.8.8.8}, {value: 10.96.0.10}`, ""),
			try:   func(n *tenant) { n.hasNoAddress(dnsService) },
		},
		{
			name:  "a Gateway requests the address of the cluster's DNS with an explicit type",
			apply: wish(`{type: IPAddress, value: 10.96.0.10}`, `stunner.l7mp.io/disable-external-ips: "false"`),
			try:   func(n *tenant) { n.hasNoAddress(dnsService) },
		},
		{
			name:  "a Gateway of type ClusterIP asks for the address of the cluster's DNS",
			apply: wish(`{value: 10.96.0.10}`, `stunner.l7mp.io/service-type: ClusterIP`),
			try:   func(n *tenant) { n.hasNoAddress(dnsService) },
		},
		{
			name:  "a Gateway of type NodePort asks for the address of the API server",
			apply: wish(`{value: 192.0.2.1}`, `stunner.l7mp.io/service-type: NodePort`),
			try:   func(n *tenant) { n.hasNoAddress(apiServer) },
		},
		{
			name:  "a Gateway asks for a named address",
			apply: wish(`{type: NamedAddress, value: kube-dns}`, ""),
			told:  map[string]string{"gateway/door": `Accepted=False UnsupportedAddress`},
		},
		{
			name:  "a Gateway asks for the node port of the victim's Service",
			apply: wish(``, `stunner.l7mp.io/service-type: NodePort, stunner.l7mp.io/nodeport: '{"udp": 30053}'`),
			told: map[string]string{
				"gateway/door": `the API server refuses Service|provided port is already allocated`,
			},
		},
		{
			name:  "a Gateway asks for the node port of a kubelet",
			apply: wish(``, `stunner.l7mp.io/service-type: NodePort, stunner.l7mp.io/nodeport: '{"tcp": 10250}'`),
			told:  map[string]string{"gateway/door": `the API server refuses Service`},
		},
		{
			name:  "a listener uses the port of the pod's probes",
			apply: wish(``, `stunner.l7mp.io/targetport: '{"tcp": 8086}'`),
			told:  map[string]string{"gateway/door": `8086`},
		},
		{
			name: "a load balancer's health check is directed to the kubelet",
			apply: wish(
				``,
				`service.beta.kubernetes.io/do-loadbalancer-healthcheck-port: "10250", service.beta.kubernetes.io/do-loadbalancer-healthcheck-protocol: tcp`,
			),
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
				n.config("door")
				_, body := n.ask(n.doorToken("door"), "/api/v1/configs/"+n.name+"/door?node=control-1")
				if regexp.MustCompile(regexp.QuoteMeta(`"` + apiServer)).Match(body) {
					n.Errorf("a pod of worker-1 gets the address of control-1: %s", body)
				}
			},
		},
	}...)
}

// annotationAttempts: an annotation with any value affects only the Gateway that has it.
func annotationAttempts() []attempt {
	var attempts []attempt
	for _, annotation := range []string{
		"service-type", "enable-mixed-protocol-lb", "external-traffic-policy", "disable-managed-dataplane", "nodeport",
		"targetport", "disable-health-check-expose",
		"disable-session-affinity", "disable-external-ips", "enable-relay-address-discovery", "applied",
		"related-gateway-name", "related-gateway-namespace", "owned-by",
	} {
		attempts = append(attempts, attempt{
			name:  "the annotation " + annotation + " has unexpected values",
			apply: gateway(""),
			try: func(n *tenant) {
				for _, value := range []string{
					"victim/front-door", "ExternalName", `{"udp": 53, "udp": 6443}`, "true\u200b",
					strings.Repeat("true,", 10_000),
				} {
					n.must(
						n.Patch(
							n.Context(), n.read(gateway(""))[0],
							mergePatch(map[string]any{"metadata": map[string]any{
								"annotations": map[string]string{"stunner.l7mp.io/" + annotation: value},
							}}),
						),
					)
					n.settles()
				}
				n.ownsItsObjects("door")
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
	n.must(house.List(n.Context(), services, client.InNamespace(n.name)))
	for _, svc := range services.Items {
		if slices.ContainsFunc(append(svc.Spec.ExternalIPs, svc.Spec.LoadBalancerIP), same) {
			n.Errorf(
				"Service %s requests %s: externalIPs %v, loadBalancerIP %s", svc.Name, address, svc.Spec.ExternalIPs,
				svc.Spec.LoadBalancerIP,
			)
		}
	}
	for _, l := range n.config("door").Listeners {
		if same(l.PublicAddress) {
			n.Errorf("listener %s is published with address %s", l.Name, address)
		}
	}
	text, err := n.says(n.Context(), "gateway/door")
	n.must(err)
	if !strings.Contains(text, "Programmed=False") {
		n.Errorf("no condition reports that the address is not available:\n%s", text)
	}
}
