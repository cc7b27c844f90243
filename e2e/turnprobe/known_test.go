package main

import (
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// fault is a check that our dataplane is known to fail, with the defect. Empty lists of transports or families mean
// all.
type fault struct {
	id     string
	wrong  string
	on     []probe.Transport
	family string
}

// known lists the open defects. Remove an entry when its check passes.
var known = []fault{}

// knownAt returns the defect if a check is known to fail for a target, or "".
func knownAt(id string, target probe.Target) string {
	family := "IPv4"
	if target.Server.Addr().Is6() {
		family = "IPv6"
	}
	for _, f := range known {
		if f.id == id && (len(f.on) == 0 || slices.Contains(f.on, target.Transport)) &&
			(f.family == "" || f.family == family) {
			return f.wrong
		}
	}
	return ""
}

// TestKnown: each entry of the list names an existing check and describes the defect.
func TestKnown(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range probe.Checks() {
		if ids[c.ID] || c.ID == "" || c.RFC == "" || c.Says == "" || c.Run == nil {
			t.Errorf("check %q is a duplicate or incomplete", c.ID)
		}
		ids[c.ID] = true
	}
	for _, f := range known {
		if !ids[f.id] || f.wrong == "" {
			t.Errorf("check %q does not exist, or its entry has no description", f.id)
		}
	}
	if len(ids) < 92 {
		t.Errorf("%d checks, want at least 92", len(ids))
	}
}
