package meter

import (
	"fmt"
	"testing"
)

// The number of counters whose name has left the config is bounded, however many routes are created and deleted. Names
// in the config keep their counters.
func TestFormerNamesAreBounded(t *testing.T) {
	m := New()
	m.Cluster("stays").Rx.Add(1)
	m.Listener("stays").Rx.Add(1)
	for i := range 3 * maxFormer {
		name := fmt.Sprint("route-", i)
		m.Cluster(name).Rx.Add(1)
		m.Listener(name).Rx.Add(1)
		m.Keep([]string{"stays", name}, []string{name, "stays"})
		if m.Clusters()[name] == nil || m.Listeners()[name] == nil {
			t.Fatalf("%s is of the config, and has no counters", name)
		}
	}
	if c, l := len(m.Clusters()), len(m.Listeners()); c > maxFormer+2 || l > maxFormer+2 {
		t.Errorf("%d clusters and %d listeners have counters, want at most %d", c, l, maxFormer+2)
	}
	if n := m.Clusters()["stays"].Rx.Packets.Load() + m.Listeners()["stays"].Rx.Packets.Load(); n != 2 {
		t.Errorf("the counters of the config have %d packets, want 2", n)
	}
	few := New()
	few.Cluster("former").Rx.Add(1)
	if few.Keep(nil, nil); few.Clusters()["former"] == nil {
		t.Error("a former name has lost its counters although there are few")
	}
}
