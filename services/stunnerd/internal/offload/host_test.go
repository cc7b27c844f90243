package offload

import (
	"os"
	"path/filepath"
	"testing"
)

// Auto means TC in a network namespace of its own, and None in the network namespace of the host, with a reason.
func TestEngineAuto(t *testing.T) {
	w := newTopology(t)
	r := w.start(t, relayConfig{Engine: EngineAuto, Bindings: []relayBinding{binding(false)}})
	if s := r.do(t, "state").Status; s.Mechanism != mechanisms()[0] || s.Reason != "" {
		t.Errorf("in a namespace of its own: %+v", s)
	}
	for name, files := range map[string][]string{
		"the initial namespace": {"somaxconn", "netdev_budget"}, "an unknown namespace": nil,
	} {
		folder := t.TempDir()
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := Open(Options{Engine: EngineAuto, sysctls: folder})
		const reason = "in the network namespace of the host, Auto means None, because forwarded packets bypass " +
			"the packet filter of the host: use TC to accept this, or None"
		if s := f.Status(); f.NewGroup() != nil || s.Mechanism != None || s.Reason != reason {
			t.Errorf("in %s: %+v, want the reason %q", name, s, reason)
		}
	}
}
