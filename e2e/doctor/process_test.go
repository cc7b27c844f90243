package doctor

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// denyEgress lets the pods of the Gateway send only to the cluster's DNS and to other media servers.
const denyEgress = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: egress, namespace: %s}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - {to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{protocol: UDP}]}
  - {ports: [{protocol: TCP}]}
`

// faultsOfCluster are faults of the objects, processes and networks of a cluster.
func faultsOfCluster(t *testing.T, p *installation) (faults []fault) {
	e, g := p.Env, p.Gateways[0]
	all := []string{"doctor", "-n", g.Namespace}
	pods, err := g.Dataplanes()
	must(t, err)
	control, err := e.ControlPlane(t.Context())
	must(t, err)
	pod := pods[0]
	name := "Pod " + g.Namespace + "/" + pod.Name
	paused := func(f fault, send func(syscall.Signal) error) {
		f.command, f.severity = all, "error"
		f.make = func(t *testing.T) { must(t, send(syscall.SIGSTOP)) }
		f.undo = func(t *testing.T) { must(t, send(syscall.SIGCONT)) }
		faults = append(faults, f)
	}
	paused(fault{name: "a dataplane hangs", object: name, problem: "does not answer the operator", remedy: "hang"}, pod.Signal)
	paused(fault{name: "the auth service hangs", object: "Pod " + e.System() + "/" + control.AuthPod, problem: "auth service",
		remedy: "log"}, control.AuthProcess.Signal)

	cut, join := rules(pod.Net.Space, fmt.Sprintf("chain faulty { type filter hook output priority filter;\ntcp dport %d drop\n}",
		netip.MustParseAddrPort(strings.TrimPrefix(control.Discovery, "https://")).Port()))
	faults = append(faults, fault{name: "a firewall between a pod and the operator", command: all, severity: "warning", object: name,
		field: "config", problem: "no connection to the operator", remedy: "13478", make: cut, undo: join})

	policy := fmt.Sprintf(denyEgress, g.Namespace)
	peer := g.Listeners[0].Peers()[0]
	var set, unset []func(*testing.T)
	for _, of := range pods {
		drop, pass := rules(of.Net.Space, fmt.Sprintf("chain faulty { type filter hook output priority filter;\nip daddr %s udp dport %d drop\n}",
			peer.Addr(), peer.Port()))
		set, unset = append(set, drop), append(unset, pass)
	}
	faults = append(faults, fault{name: "a NetworkPolicy denies media to the backends", severity: "warning",
		object: "NetworkPolicy " + g.Namespace + "/egress", field: "spec.egress",
		problem: "lets them send UDP to ports 7000-7100 to Service " + g.ID() + "-first", remedy: "enableNetworkPolicy",
		make: func(t *testing.T) { must(t, e.Apply(t.Context(), g.Namespace, policy)); each(set)(t) },
		undo: func(t *testing.T) {
			must(t, e.Delete(t.Context(), g.Namespace, "networkpolicy/egress"))
			each(unset)(t)
		}})

	faults = append(faults, faultsOfServices(p)...)
	faults = append(faults, faultsOfObjects(t, p)...)

	var second *harness.Process
	return append(faults, fault{name: "a second operator has the same controller name", command: all, lasts: true, severity: "error",
		object: fmt.Sprintf("GatewayClass calls-%d", e.Number), problem: "second-operator", remedy: "uninstall the operator",
		make: func(t *testing.T) {
			must(t, e.Apply(t.Context(), "", "{apiVersion: v1, kind: Namespace, metadata: {name: second-operator}}"))
			var err error
			second, err = harness.Start(harness.Command{Name: "second", Path: filepath.Join(e.Dir, "operator"),
				Logs: t.TempDir(), Args: []string{
					"--provider=kubernetes", "--kubeconfig", e.Cluster.Admin.Kubeconfig, "--namespace=second-operator",
					fmt.Sprintf("--controller-name=stunner.l7mp.io/calls-%d", e.Number), "--discovery-auth=off",
					"--address=192.0.2.201",
					"--discovery-address", harnesstest.Address(t), "--health-address", harnesstest.Address(t),
					"--scaler-address=",
				}})
			must(t, err)
		},
		undo: func(t *testing.T) { must(t, second.Kill()) },
	})
}

// faultsOfServices are faults of load balancers and backends that the status of a Service shows.
func faultsOfServices(p *installation) []fault {
	e, g := p.Env, p.Gateways[0]
	port := g.Listeners[0].Port()
	patch := func(text string) func(*testing.T) {
		return func(t *testing.T) { must(t, e.PatchStatus(t.Context(), g.Namespace, "service/"+g.Name, text)) }
	}
	at := g.Listeners[0].Addresses()[0].Addr()
	empty := strings.NewReplacer("endpoints: [{", "endpoints: [] #").Replace(g.BackendYAML())
	return []fault{
		{name: "the load balancer does not serve a port", severity: "error", object: "Service " + g.ID(), field: "ports[0].error",
			problem: fmt.Sprintf("the load balancer does not serve UDP port %d: QuotaExceeded", port), remedy: "events of the Service",
			make: patch(fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ports":[{"port":%d,"protocol":"UDP","error":"QuotaExceeded"}]}]}}}`, at, port)),
			undo: patch(fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, at))},
		{name: "the Service of a route has no endpoints", severity: "error", object: "Service " + g.ID() + "-first", field: "spec.selector",
			problem: "the Service has no endpoints", remedy: "start the media server",
			make: func(t *testing.T) { must(t, e.Apply(t.Context(), g.Namespace, empty)) },
			undo: func(t *testing.T) { must(t, e.Apply(t.Context(), g.Namespace, g.BackendYAML())) }},
	}
}
