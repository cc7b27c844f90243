package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// balancerRefusals are the events of load balancer controllers. The texts come from the cloud controllers of
// Kubernetes, AWS, Azure, GKE and OCI, and from MetalLB.
var balancerRefusals = []pattern{
	{
		regexp.MustCompile(`(?i)mixed.?protocol|multiple protocols|same protocol|protocols? .*cannot be mixed`),
		"the load balancer does not serve UDP and TCP in one Service",
		"remove annotation stunner.l7mp.io/enable-mixed-protocol-lb from the Gateway: each transport gets a Service of its own",
	},
	{
		regexp.MustCompile(
			`(?i)(udp|protocol).*(not supported|unsupported|not support|invalid)|(only|unsupported).*(tcp|udp)`,
		),
		"the load balancer does not support UDP",
		"use a load balancer for UDP (spec.service.loadBalancerClass of the Dataplane, or an annotation of the provider), " +
			"or annotation stunner.l7mp.io/service-type: NodePort",
	},
	{
		regexp.MustCompile(`(?i)session.?affinity`),
		"the load balancer does not support session affinity",
		`set annotation stunner.l7mp.io/disable-session-affinity: "true" on the Gateway`,
	},
	{
		regexp.MustCompile(`(?i)quota|limit exceeded|too many`),
		"a quota of the cloud account is used up",
		"raise the quota, or delete load balancers that are not used",
	},
	{
		regexp.MustCompile(
			`(?i)no available ip|exhausted|not available|not allowed|in use|sharing key|address pool|no pool`,
		),
		"the load balancer has no address for the Service",
		"add addresses to the pool, or request another address in spec.addresses of the Gateway",
	},
}

// serviceRules check the Services of the Gateway and their events.
var serviceRules = []Rule{
	{"Service exists", func(s *Snapshot, g *Gateway) []Finding {
		if len(g.Services) > 0 || !s.readable("Service", g.Namespace) {
			return nil
		}
		return []Finding{{
			Severity: Error, Object: ref("Gateway", g), Field: "metadata.name",
			Problem: "the Gateway has no Service",
			Remedy:  "see the events of the Gateway and the log of the operator, which creates it",
			Command: describe("gateway", g),
		}}
	}},
	{"load balancer accepts the Service", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, svc := range g.Services {
			e := s.balancerEvent(svc)
			if e == nil || e.Type != corev1.EventTypeWarning || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
				continue
			}
			f := Finding{
				Severity: Error, Object: ref("Service", svc), Field: "status.loadBalancer",
				Problem: fmt.Sprintf("event %s: %s", e.Reason, e.Message),
				Remedy:  "see the documentation of the load balancer for the message",
				Command: describe("service", svc),
			}
			if len(svc.Status.LoadBalancer.Ingress) > 0 {
				f.Severity = Warning // clients can use the existing address
			}
			if p := match(balancerRefusals, e.Message); p != nil {
				f.Problem, f.Remedy = p.problem+": "+f.Problem, p.remedy
			}
			found = append(found, f)
		}
		return found
	}},
	{"load balancer has answered", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, svc := range g.Services {
			pending := svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0
			last := s.balancerEvent(svc)
			warned := last != nil && last.Type == corev1.EventTypeWarning // an earlier rule has reported this event
			if !pending || warned || g.requestsAddress() {
				continue
			}
			f := Finding{
				Severity: Error, Object: ref("Service", svc), Field: "status.loadBalancer",
				Problem: "no load balancer has assigned an address, and none has written an event",
				Remedy: "install a load balancer controller, such as MetalLB, or set annotation " +
					"stunner.l7mp.io/service-type: NodePort on the Gateway",
				Command: describe("service", svc),
			}
			if class := svc.Spec.LoadBalancerClass; class != nil {
				f.Field = "spec.loadBalancerClass"
				f.Problem += ": class " + *class
				f.Remedy = "install the controller of the class, or correct spec.service.loadBalancerClass of the Dataplane"
			}
			if last != nil {
				f.Problem = fmt.Sprintf(
					"the load balancer has not assigned an address; last event %s: %s",
					last.Reason,
					last.Message,
				)
				f.Remedy = "wait, and see the log of the load balancer controller if it takes minutes"
			}
			found = append(found, f)
		}
		return found
	}},
	{"load balancer serves the ports", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, svc := range g.Services {
			reported := map[corev1.PortStatus]bool{} // each address of a load balancer has all ports
			for i, ingress := range svc.Status.LoadBalancer.Ingress {
				for j, p := range ingress.Ports {
					port := corev1.PortStatus{Port: p.Port, Protocol: p.Protocol}
					if p.Error == nil || reported[port] {
						continue
					}
					reported[port] = true
					found = append(found, Finding{
						Severity: Error, Object: ref("Service", svc),
						Field:   fmt.Sprintf("status.loadBalancer.ingress[%d].ports[%d].error", i, j),
						Problem: fmt.Sprintf("the load balancer does not serve %s port %d: %s", p.Protocol, p.Port, *p.Error),
						Remedy:  "see the events of the Service, and the documentation of the load balancer for the error",
						Command: describe("service", svc),
					})
				}
			}
		}
		return found
	}},
	{"health check reaches a port", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, svc := range g.Services {
			found = append(append(found, g.healthCheck(svc)...), g.publicSessions(svc)...)
		}
		return found
	}},
}

// publicSessions checks that a Service does not expose the lists of sessions and refusals, which are on the port of the
// probes.
func (g *Gateway) publicSessions(svc *corev1.Service) []Finding {
	if g.Dataplane == nil || !exposes(svc, g.healthPort()) || !slices.Contains(g.Dataplane.Spec.Args, "--sessions-from=any") {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: ref("Service", svc), Field: fmt.Sprintf("spec.ports[%d]", g.healthPort()),
		Problem: "the port is public, and --sessions-from=any of Dataplane " + g.Dataplane.Name +
			" shows sessions and refusals to everybody",
		Remedy:  "remove --sessions-from=any from spec.args of the Dataplane: load balancers need /live and /ready only",
		Command: describe("service", svc),
	}}
}

// balancerEvent returns the last event of a load balancer about a Service, or nil. It ignores events of controllers of
// endpoints.
func (s *Snapshot) balancerEvent(svc *corev1.Service) (last *corev1.Event) {
	for _, e := range s.eventsOf("Service", svc) {
		ensuring := e.Reason == "EnsuringLoadBalancer" // this event is repeated after each failure
		if !strings.Contains(e.Reason, "Endpoint") && !(ensuring && last != nil) {
			last = e
		}
	}
	return last
}

// requestsAddress reports whether clients receive an address of spec.addresses, whatever the load balancer answers.
func (g *Gateway) requestsAddress() bool {
	return slices.ContainsFunc(g.Spec.Addresses, func(a gwapiv1.GatewaySpecAddress) bool { return a.Value != "" })
}

// annotationHealthPort sets the port of the probes in a pod.
const annotationHealthPort = "stunner.l7mp.io/health-port"

// healthPort returns the port of the probes in a pod. The operator refuses an annotation that is no port.
func (g *Gateway) healthPort() int32 {
	if port, err := strconv.ParseUint(strings.TrimSpace(g.annotation(annotationHealthPort)), 10, 16); err == nil && port > 0 {
		return int32(port)
	}
	return 8086
}

// healthCheck checks the annotations that configure the health check of a load balancer.
func (g *Gateway) healthCheck(svc *corev1.Service) []Finding {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	name, port := healthAnnotation(svc.Annotations)
	f := Finding{
		Severity: Error, Object: ref("Service", svc), Field: "metadata.annotations[" + name + "]",
		Command: describe("service", svc),
	}
	udp := slices.ContainsFunc(
		svc.Spec.Ports,
		func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolUDP },
	)
	switch {
	case port == 0 && udp && isAWS(svc):
		f.Severity, f.Field = Warning, "metadata.annotations"
		f.Problem = "a Network Load Balancer checks the health of UDP ports over TCP, and no TCP port of the pods answers " +
			"by default: it may forward no UDP"
		f.Remedy = fmt.Sprintf("set on the Gateway the annotations service.beta.kubernetes.io/aws-load-balancer-healthcheck-port: \"%d\", "+
			"-healthcheck-protocol: HTTP and -healthcheck-path: /live", g.healthPort())
	case port == 0:
		return nil
	case port == g.healthPort() && g.Dataplane != nil && g.Dataplane.Spec.DisableHealthCheck:
		f.Problem = fmt.Sprintf(
			"the load balancer checks port %d, which is closed: spec.disableHealthCheck of Dataplane %s is true",
			port,
			g.Dataplane.Name,
		)
		f.Remedy = "set spec.disableHealthCheck of the Dataplane to false"
	case port != g.healthPort() && !g.listens(port):
		f.Problem = fmt.Sprintf("the load balancer checks port %d, on which no pod listens", port)
		f.Remedy = fmt.Sprintf("set the annotation to %d, the port of the probes", g.healthPort())
	case !exposes(svc, port) && !g.truth(annotationHideHealth):
		f.Problem = fmt.Sprintf("the load balancer checks port %d, which the Service does not have", port)
		f.Remedy = "set this annotation, and that of the protocol (TCP or HTTP), on the Gateway: then the operator opens the port"
	default:
		return nil
	}
	return []Finding{f}
}

// healthAnnotation returns the annotation with the port of a health check, or 0.
func healthAnnotation(annotations map[string]string) (string, int32) {
	for _, name := range slices.Sorted(keys(annotations)) {
		if !strings.HasPrefix(name, "service.beta.kubernetes.io/") || !strings.Contains(name, "health") ||
			!strings.HasSuffix(name, "port") {
			continue
		}
		if port, err := strconv.ParseUint(annotations[name], 10, 16); err == nil {
			return name, int32(port)
		}
	}
	return "", 0
}

func isAWS(svc *corev1.Service) bool {
	for name := range svc.Annotations {
		if strings.HasPrefix(name, "service.beta.kubernetes.io/aws-load-balancer-") {
			return true
		}
	}
	return slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return strings.HasSuffix(i.Hostname, ".amazonaws.com")
	})
}

// listens reports whether a listener of the Gateway has the TCP port.
func (g *Gateway) listens(port int32) bool {
	return slices.ContainsFunc(g.Spec.Listeners, func(l gwapiv1.Listener) bool {
		p := strings.ToUpper(string(l.Protocol))
		return int32(l.Port) == port && (strings.HasSuffix(p, "TCP") || strings.HasSuffix(p, "-TLS") || p == "TLS")
	})
}

func exposes(svc *corev1.Service, port int32) bool {
	return slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
	})
}

func serviceFact(s *Snapshot, g *Gateway) string {
	if !s.readable("Service", g.Namespace) {
		return notChecked + ": Services are not readable"
	}
	var names []string
	for _, svc := range g.Services {
		names = append(names, fmt.Sprintf("%s (%s)", svc.Name, svc.Spec.Type))
	}
	return cmp.Or(few(names), "none")
}

// addressRules check the public addresses of the listeners.
var addressRules = []Rule{
	{"listeners have an address", func(s *Snapshot, g *Gateway) (found []Finding) {
		programmed := conditionOf(g.Status.Conditions, "Programmed")
		if programmed == nil || programmed.Reason != "AddressNotAssigned" || programmed.Status == "True" {
			return nil
		}
		f := s.fromCondition(ref("Gateway", g), "", *programmed, describe("gateway", g))[0]
		f.Field = "status.addresses"
		for _, svc := range g.Services {
			switch {
			case svc.Spec.Type == corev1.ServiceTypeNodePort && s.nodesAreInternal():
				f.Object, f.Field = ref("Service", svc), "spec.type"
				f.Problem = "the Service is of type NodePort, and no node has an external address (ExternalIP or ExternalDNS)"
				f.Remedy = "set spec.addresses of the Gateway to the address at which clients reach the nodes, or, if clients reach " +
					"their internal addresses, spec.nodeAddresses of the GatewayConfig to ExternalOrInternal"
				f.Command = "kubectl get nodes -o wide"
				return []Finding{f}
			case svc.Spec.Type == corev1.ServiceTypeClusterIP:
				f.Object, f.Field = ref("Service", svc), "spec.type"
				f.Problem = "the Service is of type ClusterIP, which has no public address"
				f.Remedy = "set annotation stunner.l7mp.io/service-type of the Gateway to LoadBalancer or NodePort, or set spec.addresses"
				return []Finding{f}
			}
		}
		return []Finding{f}
	}},
	{"listeners are exposed", func(s *Snapshot, g *Gateway) (found []Finding) {
		if len(wrong(g.Status.Conditions, "Programmed")) > 0 {
			return nil
		}
		for _, l := range g.Status.Listeners {
			for _, c := range wrong(l.Conditions, "Programmed") {
				found = append(found, s.fromCondition(ref("Gateway", g), fmt.Sprintf("spec.listeners[%s]", l.Name), c, describe("gateway", g))...)
			}
		}
		return found
	}},
	{"Services have the family of the address", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, a := range g.Status.Addresses {
			ip, err := netip.ParseAddr(a.Value)
			if err != nil || g.serves(ip) {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: ref("Gateway", g), Field: "status.addresses",
				Problem: fmt.Sprintf("clients are told the %s address %s, and no Service of the Gateway has this family",
					family(ip), ip),
				Remedy: fmt.Sprintf("set spec.service.ipFamilyPolicy of the Dataplane to PreferDualStack in a dual-stack "+
					"cluster, or use an %s address in spec.addresses", other(family(ip))),
				Command: "kubectl get services -n " + g.Namespace + " -o wide",
			})
		}
		return found
	}},
	{"address is one that clients reach", func(s *Snapshot, g *Gateway) (found []Finding) {
		severity := Warning
		if s.Folder {
			severity = Info // the default, for tests on one host
		}
		for _, a := range g.Status.Addresses {
			ip, err := netip.ParseAddr(a.Value)
			if err != nil || !(ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified()) {
				continue
			}
			found = append(found, Finding{
				Severity: severity, Object: ref("Gateway", g), Field: "status.addresses",
				Problem: "clients on other hosts cannot reach " + a.Value,
				Remedy:  "set spec.addresses, or with the file provider --address of the operator",
				Command: describe("gateway", g),
			})
		}
		return found
	}},
	{"address has not left the host", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, status := range g.Statuses {
			for _, a := range status.LostAddresses {
				found = append(found, Finding{
					Severity: Error, Object: objectName("Pod", g.Namespace, status.Pod), Field: "lostAddresses",
					Problem: "its host had address " + a + " and has it no longer: packets of clients and peers to " + a + " are lost",
					Remedy:  "assign " + a + " to the host again, or set --address of the operator to an address that it has",
				})
			}
		}
		return found
	}},
	{"address is one of this host", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, a := range g.Status.Addresses {
			ip, err := netip.ParseAddr(a.Value)
			if !s.Folder || len(s.HostAddresses) == 0 || err != nil || ip.IsLoopback() || ip.IsUnspecified() ||
				slices.Contains(s.HostAddresses, ip) {
				continue
			}
			found = append(found, Finding{
				Severity: Info, Object: ref("Gateway", g), Field: "status.addresses",
				Problem: a.Value + " is not an address of this host",
				Remedy:  "set --address of the operator to an address of this host, unless a router forwards " + a.Value + " to it",
			})
		}
		return found
	}},
}

// serves reports whether a Service has the family of an address, as far as it is known.
func (g *Gateway) serves(ip netip.Addr) bool {
	known := false
	for _, svc := range g.Services {
		known = known || len(svc.Spec.IPFamilies) > 0
		if slices.Contains(svc.Spec.IPFamilies, family(ip)) {
			return true
		}
	}
	return !known
}

func family(ip netip.Addr) corev1.IPFamily {
	if ip.Unmap().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func other(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// nodesAreInternal reports whether it is known that no node has an external address.
func (s *Snapshot) nodesAreInternal() bool {
	nodes := list[corev1.Node](s, "Node")
	return s.readable("Node", "") && !slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type == corev1.NodeExternalIP || a.Type == corev1.NodeExternalDNS
		})
	})
}

func addressFact(_ *Snapshot, g *Gateway) string {
	var addresses []string
	for _, a := range g.Status.Addresses {
		addresses = append(addresses, a.Value)
	}
	var ports []string
	for _, l := range g.Spec.Listeners {
		ports = append(
			ports,
			fmt.Sprintf("%d/%s", l.Port, strings.ToLower(strings.TrimPrefix(string(l.Protocol), "TURN-"))),
		)
	}
	if len(ports) == 0 {
		return cmp.Or(few(addresses), "none")
	}
	return cmp.Or(few(addresses), "none") + ", ports " + few(ports)
}
