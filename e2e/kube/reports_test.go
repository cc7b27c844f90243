package kube

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// the sessions that a dataplane reports become the deletion cost of its pod.
// Its reports also decide whether the Gateway is programmed. A new config that pods have not reported yet causes no
// status write.
func TestReportsDecideWhetherAGatewayIsProgrammed(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.pod("front-door-0", "front-door")
	id := s.name + "/front-door"
	source, err := discovery.Open(fmt.Sprintf("http://127.0.0.1:%d", s.discovery), discovery.Options{ID: id})
	s.must(err)
	events := source.Watch(t.Context())
	go func() {
		for range events {
		}
	}()
	dataplane, ok := source.(discovery.Reporter)
	if !ok {
		t.Fatal("a dataplane cannot report")
	}
	says := func(r discovery.Report) {
		r.ID, r.Pod = id, "front-door-0"
		dataplane.Report(r)
	}
	s.await(func(context.Context) error { // both listeners have a public address
		if c := s.config(); len(c.Listeners) != 2 || c.Listeners[0].PublicAddress == "" ||
			c.Listeners[1].PublicAddress == "" {
			return fmt.Errorf("config %+v", c)
		}
		return nil
	})

	says(discovery.Report{Revision: "older", Error: "listener udp: port 3478 is taken"})
	s.sees("gateway/front-door", condition("Programmed"), "False")
	s.says("gateway/front-door", "Programmed", "pod front-door-0 says: listener udp: port 3478 is taken")
	says(discovery.Report{Revision: s.revision(), Accepted: true, Draining: true})
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`, "programmed, 1 pod draining")
	cost := `.metadata.annotations.controller\.kubernetes\.io/pod-deletion-cost`
	s.sees("pod/front-door-0", cost, "-1")
	says(discovery.Report{Revision: s.revision(), Accepted: true, Allocations: 42})
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`, "")
	s.sees("pod/front-door-0", cost, "42")

	before, changed := s.revision(), time.Now()
	s.moveEcho("192.0.2.55")
	s.await(func(context.Context) error {
		if s.revision() == before {
			return fmt.Errorf("%s is still published", before)
		}
		return nil
	})
	says(discovery.Report{Revision: s.revision(), Accepted: true, Allocations: 84})
	s.sees("pod/front-door-0", cost, "84")
	for _, e := range s.writes(changed) {
		if e.Resource != "pods" {
			t.Errorf("unneeded write: %s %s/%s %s", e.Verb, e.Resource, e.Subresource, e.Name)
		}
	}
}

// revision returns the revision of the config that the Gateway's dataplanes receive.
func (s *installation) revision() string {
	s.Helper()
	c := s.config()
	return c.Revision()
}
