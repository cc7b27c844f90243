package kube

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A change of only the status of a workload does not cause a comparison with the wanted workload. Any other change
// does.
func TestAStatusOfAWorkloadQueuesNothing(t *testing.T) {
	e := newEdge(t)
	recorded := &adds{}
	e.writer.queue = writeQueue{
		fairWrites: &fairWrites{TypedRateLimitingInterface: recorded, turns: newWriteTurns()}, progress: map[translate.ObjectRef]progress{},
	}
	d := deployment()
	e.objects(d)
	d.Generation, d.ResourceVersion = 1, "7"
	reported, scaled, labelled := d.DeepCopy(), d.DeepCopy(), d.DeepCopy()
	reported.ResourceVersion, reported.Status.ReadyReplicas = "8", 1
	scaled.ResourceVersion, scaled.Generation = "8", 2
	labelled.ResourceVersion = "8"
	labelled.Labels["added"] = "by a user"
	for _, c := range []struct {
		name string
		now  any
		want int
	}{{"status", reported, 0}, {"spec", scaled, 1}, {"labels", labelled, 1}} {
		recorded.refs = nil
		ownedHandler{e.writer}.OnUpdate(d, c.now)
		if len(recorded.refs) != c.want {
			t.Errorf("a change of the %s: %d Gateways are queued, want %d", c.name, len(recorded.refs), c.want)
		}
	}
}
