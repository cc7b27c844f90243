//go:build node

package node_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// outage is how long the metrics source is unavailable. KEDA uses its fallback after three failed attempts, within a
// minute.
var outage = flag.Duration("outage", 90*time.Second, "how long KEDA cannot read the number of calls")

// source is the Deployment that KEDA reads the number of calls from.
type source struct{ namespace, deployment string }

var triggers = []trigger{
	{
		name:   "ScaledObject by hand",
		begin:  func(c *callsByPod) { c.kubectl(scaledObject(c), "apply", "--server-side", "-f", "-") },
		end:    func(c *callsByPod) { c.kubectl("", "delete", "scaledobject", "front-door") },
		source: source{deployment: "prometheus"},
	},
	{
		name: "Dataplane and a Prometheus",
		begin: func(c *callsByPod) {
			c.autoscaling(map[string]any{
				"trigger": "prometheus", "pollingInterval": 5,
				"prometheus": map[string]any{"serverAddress": prometheusOf(c.testNamespace)},
			})
		},
		end:    func(c *callsByPod) { c.autoscaling(nil) },
		source: source{deployment: "prometheus"},
	},
	{
		name: "Dataplane and no Prometheus",
		begin: func(c *callsByPod) {
			c.kubectl("", "delete", "deployment,service", "prometheus")
			c.autoscaling(map[string]any{"trigger": "external", "pollingInterval": 5})
		},
		end:    func(c *callsByPod) { c.autoscaling(nil) },
		source: source{home, "stunner-operator"},
	},
}

// prometheusOf returns the URL of a namespace's Prometheus for KEDA.
func prometheusOf(s testNamespace) string {
	return fmt.Sprintf("http://prometheus.%s.svc:9090", s.namespace)
}

// TestAutoscaling: KEDA scales the dataplane by its calls, and no call is dropped.
func TestAutoscaling(t *testing.T) {
	begun := time.Now()
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("KEDA ready after %s", since(begun))
	m := newBusyCaller(t)
	m.prometheus()
	for _, scaling := range triggers {
		t.Run(scaling.name, func(t *testing.T) {
			m.T = t
			c := &callsByPod{caller: m, calls: map[string][]*call.Call{}}
			scaling.begin(c)
			defer scaling.end(c)
			scaling.scale(c)
		})
	}
}

// keeps checks every second of the outage that the number of pods is unchanged.
func (c *callsByPod) keeps(n int) {
	c.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for begun, next := time.Now(), time.Duration(0); time.Since(begun) < *outage; <-tick.C {
		pods := 0
		for _, p := range c.pods(dataplanes) {
			if ready(p) {
				pods++
			}
		}
		if pods != n {
			c.Fatalf("after %s of the outage there are %d pods, want %d", since(begun), pods, n)
		}
		if time.Since(begun) >= next {
			next += max(*outage/5, time.Second)
			c.Logf("%7s  of the outage: %d pods accept calls", since(begun), pods)
			c.intact()
		}
	}
}

// away runs a function while the source is unavailable.
func (s source) away(c *callsByPod, while func()) {
	c.Helper()
	in := testNamespace{c.T, s.namespace}
	if s.namespace == "" {
		in = c.testNamespace
	}
	replicas := in.kubectl("", "get", "deployment", s.deployment, "--output=jsonpath={.spec.replicas}")
	in.kubectl("", "scale", "deployment", s.deployment, "--replicas=0")
	in.wait("delete", "pod", "--selector=app="+s.deployment)
	while()
	in.kubectl("", "scale", "deployment", s.deployment, "--replicas="+replicas)
	in.wait("condition=Available", "deployment/"+s.deployment)
}

// behavior removes one pod at a time without the default delay of minutes.
const behavior = `{"scaleDown":{"stabilizationWindowSeconds":0,"policies":[{"type":"Pods","value":1,"periodSeconds":15}]}}`

// scaledObject returns keda/prometheus.yaml adapted to the Gateway and the limits of the test.
func scaledObject(c *callsByPod) string {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(harnesstest.Root(c.T), "keda/prometheus.yaml"))
	if err != nil {
		c.Fatal(err)
	}
	object := string(text)
	for old, now := range map[string]string{
		"stunner-system": c.namespace,
		"http://prometheus-operated.monitoring.svc:9090": prometheusOf(c.testNamespace),
		`threshold: "500"`:                 fmt.Sprintf(`threshold: "%d"`, perReplica),
		"minReplicaCount: 2":               fmt.Sprintf("minReplicaCount: %d", minReplicas),
		"maxReplicaCount: 10":              fmt.Sprintf("maxReplicaCount: %d", maxReplicas),
		"stabilizationWindowSeconds: 1800": "stabilizationWindowSeconds: 0",
		"periodSeconds: 300":               "periodSeconds: 15",
	} {
		if !strings.Contains(object, old) {
			c.Fatalf("keda/prometheus.yaml does not contain %q", old)
		}
		object = strings.ReplaceAll(object, old, now)
	}
	return object
}

// autoscaling patches spec.autoscaling of the test's Dataplane.
func (c *callsByPod) autoscaling(settings map[string]any) {
	c.Helper()
	if settings != nil {
		settings["minReplicas"], settings["maxReplicas"], settings["allocationsPerReplica"] = minReplicas, maxReplicas, perReplica
		settings["behavior"] = json.RawMessage(behavior)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"autoscaling": settings}})
	if err != nil {
		c.Fatal(err)
	}
	c.kubectl("", "patch", "dataplane", "default", "--type=merge", "--patch", string(patch))
}
