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
)

// outage is how long the source of the number of calls is away. KEDA gives up after three attempts, well within a minute.
var outage = flag.Duration("outage", 90*time.Second, "how long nobody tells KEDA how many calls there are")

// source is the Deployment that KEDA asks for the number of calls.
type source struct{ namespace, deployment string }

var triggers = []trigger{
	{
		name:   "ScaledObject by hand",
		begin:  func(c *crowd) { c.kubectl(scaledObject(c), "apply", "--server-side", "-f", "-") },
		end:    func(c *crowd) { c.kubectl("", "delete", "scaledobject", "front-door") },
		source: source{deployment: "prometheus"},
	},
	{
		name: "Dataplane and a Prometheus",
		begin: func(c *crowd) {
			c.autoscaling(map[string]any{"trigger": "prometheus", "pollingInterval": 5, "prometheus": map[string]any{"serverAddress": prometheusOf(c.place)}})
		},
		end:    func(c *crowd) { c.autoscaling(nil) },
		source: source{deployment: "prometheus"},
	},
	{
		name: "Dataplane and no Prometheus",
		begin: func(c *crowd) {
			c.kubectl("", "delete", "deployment,service", "prometheus")
			c.autoscaling(map[string]any{"trigger": "external", "pollingInterval": 5})
		},
		end:    func(c *crowd) { c.autoscaling(nil) },
		source: source{home, "stunner-operator"},
	},
}

// prometheusOf is where KEDA reaches the Prometheus of a namespace.
func prometheusOf(s place) string { return fmt.Sprintf("http://prometheus.%s.svc:9090", s.namespace) }

// TestAutoscaling: KEDA scales the dataplane by its calls, and no call is dropped for it.
func TestAutoscaling(t *testing.T) {
	begun := time.Now()
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("after %s: KEDA scales", since(begun))
	m := hall(t)
	m.prometheus()
	for _, way := range triggers {
		t.Run(way.name, func(t *testing.T) {
			m.T = t
			c := &crowd{meeting: m, calls: map[string][]*call.Call{}}
			way.begin(c)
			defer way.end(c)
			way.scale(c)
		})
	}
}

// keeps looks each second of the outage whether so many pods take calls.
func (c *crowd) keeps(n int) {
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
			c.Fatalf("after %s of outage there are %d pods, and not %d", since(begun), pods, n)
		}
		if time.Since(begun) >= next {
			next += max(*outage/5, time.Second)
			c.Logf("%7s  of outage: %d pods take calls", since(begun), pods)
			c.intact()
		}
	}
}

// away has the source away while something is done.
func (s source) away(c *crowd, while func()) {
	c.Helper()
	in := place{c.T, s.namespace}
	if s.namespace == "" {
		in = c.place
	}
	replicas := in.kubectl("", "get", "deployment", s.deployment, "--output=jsonpath={.spec.replicas}")
	in.kubectl("", "scale", "deployment", s.deployment, "--replicas=0")
	in.wait("delete", "pod", "--selector=app="+s.deployment)
	while()
	in.kubectl("", "scale", "deployment", s.deployment, "--replicas="+replicas)
	in.wait("condition=Available", "deployment/"+s.deployment)
}

// behavior lets pods go one after the other without the minutes in between that calls are given.
const behavior = `{"scaleDown":{"stabilizationWindowSeconds":0,"policies":[{"type":"Pods","value":1,"periodSeconds":15}]}}`

// scaledObject is the one of keda/prometheus.yaml, for the Gateway of the test and its bounds.
func scaledObject(c *crowd) string {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(root(c.T), "keda/prometheus.yaml"))
	if err != nil {
		c.Fatal(err)
	}
	object := string(text)
	for old, now := range map[string]string{
		"stunner-system": c.namespace,
		"http://prometheus-operated.monitoring.svc:9090": prometheusOf(c.place),
		`threshold: "500"`:                 fmt.Sprintf(`threshold: "%d"`, perReplica),
		"minReplicaCount: 2":               fmt.Sprintf("minReplicaCount: %d", minReplicas),
		"maxReplicaCount: 10":              fmt.Sprintf("maxReplicaCount: %d", maxReplicas),
		"stabilizationWindowSeconds: 1800": "stabilizationWindowSeconds: 0",
		"periodSeconds: 300":               "periodSeconds: 15",
	} {
		if !strings.Contains(object, old) {
			c.Fatalf("keda/prometheus.yaml does not have %q", old)
		}
		object = strings.ReplaceAll(object, old, now)
	}
	return object
}

// autoscaling patches the Dataplane of the test.
func (c *crowd) autoscaling(settings map[string]any) {
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
