package kube

import (
	"context"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// A pod reports a state that flips between ready and draining every 2 ms. The status of its Gateway is written at most
// every ten seconds, and nothing else is written. Objects of other tests would cause translations, so the operator
// watches only one namespace, and the test does not run in parallel.
func TestReports_ThatFlipAreRateLimited(t *testing.T) {
	g := guard(t, "strict", "--watch-namespaces=testreports-thatflipareratelimited")
	g.expose("192.0.2.9")
	g.sees("gateway/front-door", condition("Programmed"), "True")
	token, ca := g.mount()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id := g.name + "/front-door"
	source := g.source("wss://127.0.0.1:%d", discovery.Options{ID: id, TokenFile: token, CAFile: ca})
	revision := ""
	events := source.Watch(ctx)
	for e := range events {
		if e.ID != "" {
			revision = e.Revision
			break
		}
	}
	go func() {
		for range events {
		}
	}()
	const during = 15 * time.Second
	begun, translated := time.Now(), g.metric("stunner_operator_translations_total")
	flips := 0
	for ; time.Since(begun) < during; flips++ {
		source.(discovery.Reporter).Report(discovery.Report{
			ID: id, Pod: "dataplane", Revision: revision, Accepted: flips%2 == 0, Draining: flips%3 == 0, Error: "no",
		})
		time.Sleep(2 * time.Millisecond)
	}
	translated = g.metric("stunner_operator_translations_total") - translated
	statuses := 0
	for _, e := range g.writes(begun) {
		if e.Resource == "gateways" {
			statuses++
			continue
		}
		if e.Resource != "pods" && e.Resource != "events" { // the pod deletion cost is also written every ten seconds
			t.Errorf("unneeded write: %s %s/%s %s", e.Verb, e.Resource, e.Subresource, e.Name)
		}
	}
	t.Logf("%d flips within %s: %d writes of the status, %.0f translations", flips, during, statuses, translated)
	if statuses < 1 || statuses > 2 || translated > 100 {
		t.Errorf(
			"%d flips within %s: %d writes of the status, want 1 or 2; %.0f translations, want at most 100", flips,
			during, statuses, translated,
		)
	}
}
