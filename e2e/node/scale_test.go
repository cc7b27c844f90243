//go:build node

package node_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// Limits of scaling.
const (
	perReplica  = 50
	minReplicas = 2
	maxReplicas = 5
)

// trigger is a method to scale dataplanes.
type trigger struct {
	name   string
	begin  func(*callsByPod) // enables scaling
	end    func(*callsByPod)
	source source // empty for manual scaling
}

// tell sets the number of replicas if scaling is manual.
func (w trigger) tell(c *callsByPod, replicas int) {
	c.Helper()
	if w.source.deployment == "" {
		c.kubectl("", "scale", "deployment/front-door", fmt.Sprintf("--replicas=%d", replicas))
	}
}

// TestScaling: the dataplane is scaled manually, and no call is dropped.
func TestScaling(t *testing.T) {
	trigger{}.scale(&callsByPod{caller: newBusyCaller(t), calls: map[string][]*call.Call{}})
}

// newBusyCaller returns a caller for many calls: its Gateway and echo peer have low CPU requests.
func newBusyCaller(t *testing.T) caller {
	t.Helper()
	s := newTestNamespace(t)
	s.install(installMethods[0])
	// Low CPU requests, because all pods of this test must fit on the small node.
	s.kubectl(
		"", "patch", "dataplane", "default", "--type=merge", "--patch",
		`{"spec":{"resources":{"requests":{"cpu":"100m"}}}}`,
	)
	s.kubectl("", "set", "resources", "deployment/echo", "--requests=cpu=100m")
	for _, d := range []string{"front-door", "echo"} {
		s.kubectl("", "rollout", "status", "deployment/"+d, "--timeout="+timeout.String())
	}
	m := caller{testNamespace: s, auth: s.publish(), peer: s.echo()}
	m.call(t)
	return m
}

// more calls add pods. Fewer calls remove the pod with the fewest calls first, and its calls continue until they
// end.
// while the number of calls is unknown the pods stay.
func (w trigger) scale(c *callsByPod) {
	defer c.leaveAll()
	c.dial(10, "")
	w.tell(c, minReplicas)
	c.awaitPods(minReplicas)
	c.dial(250, "")
	w.tell(c, maxReplicas)
	pods := c.awaitPods(maxReplicas)
	c.intact()
	slices.SortFunc(pods, func(a, b string) int { return len(c.calls[b]) - len(c.calls[a]) })

	// The total still needs all five pods.
	loads := map[string]int{pods[0]: 145, pods[1]: 50, pods[2]: 10, pods[3]: 0, pods[4]: 0}
	c.spread(loads)
	c.awaitDeletionCosts(loads)

	c.leave(pods[0], 45) // 160 calls need four pods
	w.tell(c, 4)
	left, gone := c.awaitRemoval(pods)
	c.wasEmpty(gone)
	c.leave(pods[0], 20) // 140 calls need three pods
	w.tell(c, 3)
	left, gone = c.awaitRemoval(left)
	c.wasEmpty(gone)
	c.intact()

	if w.source.deployment != "" {
		w.source.away(c, func() { c.keeps(len(left)) })
	}

	c.leave(pods[0], 45) // 95 calls need two pods
	w.tell(c, 2)
	_, gone = c.awaitRemoval(left)
	if gone != pods[2] {
		c.Errorf("the pod at %s was removed, want the one with the fewest calls, at %s", gone, pods[2])
	}
	name := c.named(gone)
	c.intact()
	c.leave(gone, len(c.calls[gone]))
	c.wait("delete", "pod/"+name)
	c.intact()
}

// wasEmpty checks that a removed pod had no calls.
func (c *callsByPod) wasEmpty(pod string) {
	c.Helper()
	if n := len(c.calls[pod]); n > 0 {
		c.Errorf("the pod at %s was removed with %d calls although others had none", pod, n)
	}
}
