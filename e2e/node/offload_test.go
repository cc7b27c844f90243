//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Names by which a dataplane reports in-kernel forwarding.
const (
	offloadPackets = "stunner_offload_packets_total" // labels direction
	offloadInfo    = "stunner_offload_info"          // labels engine, mechanism, reason
	offloadNone    = `mechanism="None"`
	statusNone     = "None" // admin.offload in /status
)

// TestOffload installs the chart with the profile offload. In a namespace that allows the capabilities, the kernel
// forwards calls between a client and a pod of the same node, in both directions. In a restricted namespace pods
// forward them in user space. Calls continue while the pods are replaced.
func TestOffload(t *testing.T) {
	s := newTestNamespace(t)
	s.prepare()
	s.admit("privileged")
	// Low CPU requests, because all pods of this test must fit on the small node.
	s.shell([]string{"helm"}, `cd `+harnesstest.Root(t)+`/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --values stunner/values-offload.yaml \
  --set 'stunnerAuthService.gateways={*/*}' \
  --set stunnerGatewayOperator.dataplane.spec.resources.requests.cpu=100m \
  --set 'stunnerGatewayOperator.dataplane.spec.command={stunnerd}' \
  --set 'stunnerGatewayOperator.dataplane.spec.args={--watch,--sessions-from=any}' --wait`)
	s.kubectl("", "apply", "--kustomize", harnesstest.Root(t)+"/"+example)
	s.wait("condition=Programmed", "gateway/front-door")
	s.wait("condition=Available", "deployment/echo", "deployment/front-door")
	m := caller{testNamespace: s, auth: s.publish(), peer: s.echo()}

	first := m.pods(dataplanes)[0].Name
	c := m.dial(t, call.UDP)
	before := m.offloaded(first)
	m.echoes(t, call.UDP, c)
	m.until("the kernel forwards nearly all packets", func(context.Context) error {
		// A hundred echoes are two hundred packets. User space forwards the first packets, and packets of renewed
		// channels.
		if n := m.offloaded(first) - before; n < 150 {
			return fmt.Errorf("it has forwarded %v", n)
		}
		return nil
	})
	m.reports(first, true)

	m.admit("restricted")
	var second string
	m.until("a pod without the capabilities serves the Gateway", func(context.Context) error {
		for _, p := range m.pods(dataplanes) {
			if second = p.Name; second != first && len(p.Spec.Containers[0].SecurityContext.Capabilities.Add) == 0 {
				return nil
			}
		}
		return fmt.Errorf("the only pod is %s", first)
	})
	m.wait("condition=Ready", "pod/"+second)
	m.goesOn(t, map[call.Network]*call.Call{call.UDP: c}, first)
	m.call(t)
	m.reports(second, false)
	if n := m.offloaded(second); n != 0 {
		t.Errorf("without the capabilities the kernel has forwarded %v packets", n)
	}
}

// admit sets the Pod Security Standard of the namespace.
func (s testNamespace) admit(standard string) {
	s.Helper()
	s.kubectl("", "label", "--overwrite", "namespace", s.namespace, "pod-security.kubernetes.io/enforce="+standard)
}

// offloaded returns the number of packets that the kernel has forwarded for a pod.
func (m caller) offloaded(pod string) float64 {
	m.Helper()
	return count(m.T, page(m.testNamespace, pod, 8080, "metrics"), offloadPackets)
}

// reports checks that the metrics and the status of a pod agree on whether the kernel forwards media.
func (m caller) reports(pod string, inKernel bool) {
	m.Helper()
	metrics := page(m.testNamespace, pod, 8080, "metrics")
	if all, none := count(m.T, metrics, offloadInfo), count(m.T, metrics, offloadInfo, offloadNone); all != 1 ||
		(none == 0) != inKernel {
		m.Errorf("pod %s: %s has %v series, %v without a mechanism", pod, offloadInfo, all, none)
	}
	var status struct{ Admin struct{ Offload string } }
	text := page(m.testNamespace, pod, 8086, "status")
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Admin.Offload == "" ||
		(status.Admin.Offload != statusNone) != inKernel {
		m.Errorf("pod %s: admin.offload is %q in /status (%v): %s", pod, status.Admin.Offload, err, text)
	}
}
