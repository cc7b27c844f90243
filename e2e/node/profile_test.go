//go:build node

package node_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// TestProfileOpenova installs the chart with the profile openova. Manifests with their own GatewayConfig and
// ScaledObject work: all conditions are good, calls succeed with credentials from the auth service and with the static
// credentials of the GatewayConfig, and KEDA scales the dataplane by its name.
func TestProfileOpenova(t *testing.T) {
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := testNamespace{t, "stunner"}
	s.prepare()
	s.open()
	apps := testNamespace{t, "apps"}
	apps.open()
	testNamespace{t, "monitoring"}.metrics()
	// Low CPU requests, because all pods of this test must fit on the small node.
	s.shell([]string{"helm"}, `cd `+harnesstest.Root(t)+`/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --values stunner/values-openova.yaml \
  --set stunnerGatewayOperator.dataplane.spec.resources.requests.cpu=100m --wait`)
	apps.apply(harnesstest.Root(t) + "/" + example + "/deployment.yaml")
	apps.apply(harnesstest.Root(t) + "/" + example + "/service.yaml")
	s.apply("testdata/openova.yaml")
	s.wait("condition=Programmed", "gateway/front-door")
	s.wait("condition=Available", "deployment/stunner")
	s.inForce(
		"gatewayclass/stunner-gatewayclass", "gatewayconfig/stunner-config", "dataplane/default", "gateway/front-door",
		"udproutes.stunner.l7mp.io/to-echo",
	)

	m := caller{testNamespace: s, auth: s.publish(), peer: apps.echo()}
	t.Run("call", m.call)
	t.Run("call with static credentials", func(t *testing.T) {
		ice, err := m.ask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ice.Username, ice.Credential = "ada", "for-this-test-only"
		for network, protocol := range map[call.Network]config.Protocol{
			call.UDP: config.TURNUDP, call.TCP: config.TURNTCP,
		} {
			c, err := m.with(t.Context(), ice, network)
			if err != nil {
				t.Fatalf("%s: %v", protocol, err)
			}
			m.echoes(t, network, c)
			m.end(t, network, c)
		}
	})
	t.Run("scaled by calls", func(t *testing.T) {
		m.T = t
		(&callsByPod{caller: m, calls: map[string][]*call.Call{}}).profile()
	})
}

// metrics starts the Prometheus of the profile, whose API is below a path, as in systems with several tenants.
func (s testNamespace) metrics() {
	s.Helper()
	s.open()
	s.prometheus()
	s.kubectl("", "patch", "deployment", "prometheus", "--type=json", "--patch", `[
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--web.route-prefix=/prometheus"},
		{"op": "replace", "path": "/spec/template/spec/containers/0/readinessProbe/httpGet/path", "value": "/prometheus/-/ready"}]`)
	s.kubectl("", "rollout", "status", "deployment/prometheus", "--timeout="+timeout.String())
	s.kubectl("", "expose", "deployment", "prometheus", "--name=metrics", "--port=8080", "--target-port=9090")
}

// profile: with the ScaledObject of testdata/openova.yaml there is one pod per twenty calls, and at least two. Surplus
// pods exit after their last call.
func (c *callsByPod) profile() {
	defer c.leaveAll()
	c.wait("condition=Ready", "scaledobject/by-calls")
	c.awaitPods(2)
	c.dial(70, "")
	pods := c.awaitPods(4)
	c.intact()
	c.spread(map[string]int{pods[0]: 40, pods[1]: 14, pods[2]: 10, pods[3]: 6})
	// The default stabilization window of Kubernetes is five minutes.
	c.kubectl("", "patch", "scaledobject", "by-calls", "--type=merge", "--patch",
		`{"spec":{"advanced":{"horizontalPodAutoscalerConfig":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}}}`)
	c.leave(pods[0], 35)
	left := c.awaitPods(2)
	c.intact()
	for _, pod := range pods {
		if !slices.Contains(left, pod) {
			name := c.named(pod)
			c.leave(pod, len(c.calls[pod]))
			c.wait("delete", "pod/"+name)
		}
	}
	c.intact()
}

// inForce checks that all conditions of objects are True.
func (s testNamespace) inForce(objects ...string) {
	s.Helper()
	for _, o := range objects {
		said := s.kubectl(
			"", "get", o,
			"--output=jsonpath={range .status..conditions[*]}{.type}={.status} {.reason}: {.message}{\"\\n\"}{end}",
		)
		s.Logf("%s\n%s", o, said)
		for line := range strings.Lines(said) {
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), "=")
			status, _, _ := strings.Cut(rest, " ")
			if good := map[string]string{"Conflicted": "False"}[kind]; status != "True" && status != good {
				s.Errorf("%s: %s", o, line)
			}
		}
		if said == "" {
			s.Errorf("%s has no conditions", o)
		}
	}
}
