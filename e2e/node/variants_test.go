//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// Addresses of the test cluster: of its clients and of pods.
var (
	clientIP = netip.MustParseAddr("198.18.0.2")
	podRange = netip.MustParsePrefix("10.244.0.0/16")
)

// nodeIP returns the address of the node.
func (s site) nodeIP() netip.Addr {
	s.Helper()
	return netip.MustParseAddr(s.pods("app=echo")[0].Status.HostIP)
}

// servicesDiffer: a Gateway is exposed in different ways. Calls succeed through each, and the dataplane sees the
// address of the client, or of the node where Kubernetes applies SNAT.
func servicesDiffer(s site) {
	const both = udpListener + ", " + tcpListener
	for _, variant := range []struct {
		name        string
		annotations string
		addresses   func(site) []listenerAddress
		seen        func(netip.Addr) bool // checks the client address in the dataplane
		service     string                // type and ports of the Service front-door
	}{
		{"load balancer, a Service for each transport", "", site.usual, aNode, "LoadBalancer UDP/3478/3478"},
		{"one Service for both transports", `stunner.l7mp.io/enable-mixed-protocol-lb: "true"`, site.together, aNode, "LoadBalancer UDP/3478/3478 TCP/3478/3478"},
		{"local traffic only", "stunner.l7mp.io/external-traffic-policy: local", site.usual, theClient, "LoadBalancer UDP/3478/3478"},
		{"a port of the node", `stunner.l7mp.io/service-type: NodePort, stunner.l7mp.io/nodeport: '{"udp":30478}'`, nodePort, aNode, "NodePort UDP/3478/3478"},
		{"inside only", "stunner.l7mp.io/service-type: ClusterIP", clusterIP, aNode, "ClusterIP UDP/3478/3478"},
		{"another port of the pod", `stunner.l7mp.io/targetport: '{"udp":9478}'`, site.usual, aNode, "LoadBalancer UDP/3478/9478"},
	} {
		s.open(variant.annotations, both)
		service := s.kubectl(
			"", "get", "service", "front-door",
			"--output=jsonpath={.spec.type}{range .spec.ports[*]} {.protocol}/{.port}/{.targetPort}{end}",
		)
		if service != variant.service {
			s.Errorf("%s: the Service is %q, want %q", variant.name, service, variant.service)
		}
		s.through(variant.name, variant.addresses(s), variant.seen)
		s.close()
	}
	s.onTheNode()
}

// through makes a call through each address, and checks the client addresses in the dataplane.
func (s site) through(name string, addresses []listenerAddress, seen func(netip.Addr) bool) {
	s.Helper()
	var calls []*call.Call
	for _, w := range addresses {
		calls = append(calls, s.dial(w, s.echo()))
	}
	pod, err := s.serving("")
	if err != nil {
		s.Fatal(err)
	}
	clients := s.clients(pod.Name)
	if len(clients) != len(addresses) || !slices.ContainsFunc(clients, seen) || slices.ContainsFunc(
		clients, func(a netip.Addr) bool { return !seen(a) },
	) {
		s.Errorf("%s: the dataplane sees clients at %s", name, clients)
	}
	s.Logf("%s: %d calls, seen at %s", name, len(calls), clients)
	s.hangUp(calls...)
}

// close deletes the Gateway and waits until its objects are garbage-collected.
func (s site) close() {
	s.Helper()
	s.kubectl("", "delete", "gateway", "front-door")
	s.until("the Gateway's objects are deleted", func(context.Context) error {
		const all = "service,deployment,daemonset,pod,configmap,secret"
		if left := s.kubectl("", "get", all, "--selector="+dataplanes, "--output=name"); left != "" {
			return errors.New(strings.ReplaceAll(left, "\n", ", ") + " are left")
		}
		return nil
	})
}

func theClient(a netip.Addr) bool { return a == clientIP }

// aNode matches the address of the node in the pod network.
func aNode(a netip.Addr) bool { return podRange.Contains(a) }

// together returns the addresses of one Service for both transports.
func (s site) together() []listenerAddress {
	at := netip.AddrPortFrom(s.address("front-door"), 3478)
	return []listenerAddress{{call.UDP, at}, {call.TCP, at}}
}

func nodePort(s site) []listenerAddress {
	var tcp uint16
	text := s.kubectl("", "get", "service", "front-door-tcp", "--output=jsonpath={.spec.ports[0].nodePort}")
	if _, err := fmt.Sscan(text, &tcp); err != nil {
		s.Fatal(err)
	}
	return []listenerAddress{
		{call.UDP, netip.AddrPortFrom(s.nodeIP(), 30478)}, {call.TCP, netip.AddrPortFrom(s.nodeIP(), tcp)},
	}
}

// clusterIP returns the Service's cluster IP, which is reachable from outside if it is routed to a node.
func clusterIP(s site) (addresses []listenerAddress) {
	for network, service := range map[call.Network]string{call.UDP: "front-door", call.TCP: "front-door-tcp"} {
		ip := netip.MustParseAddr(s.kubectl("", "get", "service", service, "--output=jsonpath={.spec.clusterIP}"))
		addresses = append(addresses, listenerAddress{network, netip.AddrPortFrom(ip, 3478)})
	}
	return addresses
}

// onTheNode: a DaemonSet, and then a Deployment, with hostNetwork sees the addresses of its clients, and relays from
// the external address of the node.
func (s site) onTheNode() {
	external := netip.MustParseAddr("203.0.113.9")
	s.admit("privileged")
	s.kubectl("", "patch", "validatingadmissionpolicy", "stunner-operator-workloads", "--type=json", "--patch",
		`[{"op":"test","path":"/spec/variables/1/name","value":"hostNetwork"},{"op":"replace","path":"/spec/variables/1/expression","value":"true"}]`)
	s.kubectl(
		"", "patch", "dataplane", s.namespace, "--type=merge", "-p",
		`{"spec":{"dataplaneResource":"DaemonSet","hostNetwork":true}}`,
	)
	pod := s.open(`stunner.l7mp.io/enable-relay-address-discovery: "true"`, udpListener, tcpListener)
	if pod.Status.PodIP != pod.Status.HostIP || !pod.Spec.HostNetwork {
		s.Errorf("the pod is at %s", pod.Status.PodIP)
	}
	direct := []listenerAddress{
		{call.UDP, netip.AddrPortFrom(s.nodeIP(), 3478)}, {call.TCP, netip.AddrPortFrom(s.nodeIP(), 3478)},
	}
	s.through("on the node", direct, theClient)
	for ring, kind := range []string{"DaemonSet", "Deployment", "Deployment"} {
		pod = s.handOver(direct[0], pod, kind, fmt.Sprint("ring-", ring))
	}
	s.until("relays have the external address of the node", func(ctx context.Context) error {
		// A kubelet without cloud provider overwrites the address with its next status update.
		_, err := cluster.Kubectl(ctx, "patch", "node", pod.Spec.NodeName, "--subresource=status", "-p",
			fmt.Sprintf(`{"status":{"addresses":[{"type":"ExternalIP","address":%q}]}}`, external))
		if err != nil {
			return err
		}
		c, err := call.Start(s.Context(), s.options(direct[0], s.echo()))
		if err != nil {
			return err
		}
		defer c.End(0)
		if relay := netip.MustParseAddrPort(c.Relay().String()); relay.Addr() != external {
			return fmt.Errorf("relayed address %s", relay)
		}
		return nil
	})
}

// a DaemonSet or Deployment replaces the pod on the host network. A call over UDP continues in the next pod of
// the node, from the same relay port. Two pods never run there at the same time. handOver returns the next pod.
func (s site) handOver(d listenerAddress, old corev1.Pod, kind, ring string) (next corev1.Pod) {
	s.Helper()
	c := s.dial(d, s.echo())
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"dataplaneResource":%q,"labels":{"ring":%q}}}`, kind, ring))
	s.until("the next pod of the node is ready", func(context.Context) (err error) {
		var running []string
		for _, p := range s.pods(dataplanes) {
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Running != nil {
					running = append(running, p.Name)
				}
			}
		}
		if len(running) > 1 {
			s.Errorf("%s: two pods run on the node: %s", kind, strings.Join(running, ", "))
		}
		if next, err = s.serving(old.Name); err == nil && next.Labels["ring"] != ring {
			err = errors.New("it has no such label")
		}
		return err
	})
	s.goOn("another pod on the node", c)
	stats := c.End(5 * time.Second)
	s.Logf("call from %s over two pods, the second one of a %s: %s", c.Relay(), kind, stats)
	if stats.Err != nil {
		s.Error(stats.Err)
	}
	return next
}
