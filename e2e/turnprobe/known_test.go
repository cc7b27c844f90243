package main

import (
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// fault is a check that our dataplane fails, and what is wrong with the dataplane. No list of transports means all of them, no family
// both.
type fault struct {
	id     string
	wrong  string
	on     []probe.Transport
	family string
}

// known are the faults that wait to be mended. A check that passes must be taken off.
var known = []fault{}

// knownAt says what is wrong when a check is known to fail for a target.
func knownAt(id string, target probe.Target) string {
	family := "IPv4"
	if target.Server.Addr().Is6() {
		family = "IPv6"
	}
	for _, f := range known {
		if f.id == id && (len(f.on) == 0 || slices.Contains(f.on, target.Transport)) && (f.family == "" || f.family == family) {
			return f.wrong
		}
	}
	return ""
}

// TestKnown: the list names checks that there are, each with what is wrong.
func TestKnown(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range probe.Checks() {
		if ids[c.ID] || c.ID == "" || c.RFC == "" || c.Says == "" || c.Run == nil {
			t.Errorf("check %q is there twice, or incomplete", c.ID)
		}
		ids[c.ID] = true
	}
	for _, f := range known {
		if !ids[f.id] || f.wrong == "" {
			t.Errorf("no check %q, or nothing said about it", f.id)
		}
	}
	if len(ids) < 92 {
		t.Errorf("%d checks are fewer than 92", len(ids))
	}
}
