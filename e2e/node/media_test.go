//go:build node

package node_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// T-05: pods of media servers are added and removed. Calls to removed pods are cut and refused with 403, and all other
// calls continue.
func mediaServersChange(s site) {
	s.copied("testdata/echo.yaml", "echo", "steady")
	s.kubectl("", "patch", "udproutes.stunner.l7mp.io", "to-echo", "--type=json", "-p",
		`[{"op":"add","path":"/spec/rules/0/backendRefs/-","value":{"name":"steady","port":7002}}]`)
	s.scale("echo", 3)
	s.open("", udpListener, tcpListener)
	addresses := s.usual()
	steady := []*call.Call{
		s.dial(addresses[0], echoOf(s.pods("app=steady")[0])), s.dial(addresses[1], echoOf(s.pods("app=steady")[0])),
	}
	calls := s.toEach(addresses)

	s.scale("echo", 1)
	s.divide("scaled from 3 to 1", calls, 1, steady...)
	s.scale("echo", 5)
	for name, c := range s.toEach(addresses) {
		if calls[name] == nil {
			calls[name] = c
			continue
		}
		s.hangUp(c)
	}
	if len(calls) != 5 {
		s.Fatalf("calls to %d pods, want 5", len(calls))
	}
	for _, c := range calls {
		s.goOn("scaled from 1 to 5", c)
	}
	s.kubectl("", "rollout", "restart", "deployment", "echo")
	s.kubectl("", "rollout", "status", "deployment", "echo", "--timeout="+timeout.String())
	s.divide("rolled", calls, 0, steady...)
	for _, c := range s.toEach(addresses) {
		s.hangUp(c)
	}
	s.hangUp(steady...)
}

// scale scales a Deployment, and waits until the pods are ready and the others are terminating.
func (s site) scale(deployment string, replicas int) {
	s.Helper()
	s.kubectl("", "scale", "deployment", deployment, fmt.Sprintf("--replicas=%d", replicas))
	s.kubectl("", "rollout", "status", "deployment", deployment, "--timeout="+timeout.String())
	s.until(fmt.Sprintf("the number of pods is %d", replicas), func(context.Context) error {
		if pods := s.pods("app=" + deployment); len(pods) != replicas {
			return fmt.Errorf("it is %d", len(pods))
		}
		return nil
	})
}

// toEach makes a call to each echo peer, through the given addresses in turn.
func (s site) toEach(addresses []listenerAddress) map[string]*call.Call {
	s.Helper()
	calls := map[string]*call.Call{}
	for i, p := range s.pods("app=echo") {
		calls[p.Name] = s.dial(addresses[i%len(addresses)], echoOf(p))
	}
	return calls
}

// divide checks that exactly the calls to removed pods were cut, removes them from calls, and checks that all others
// continue.
func (s site) divide(after string, calls map[string]*call.Call, stay int, others ...*call.Call) {
	s.Helper()
	alive := map[string]bool{}
	for _, p := range s.pods("app=echo") {
		alive[p.Name] = true
	}
	var gone []*call.Call
	var left []netip.AddrPort
	for name, c := range calls {
		if alive[name] {
			others = append(others, c)
			stay--
			continue
		}
		s.wait("delete", "pod/"+name)
		gone, left = append(gone, c), append(left, c.Peer())
		delete(calls, name)
	}
	if stay != 0 {
		s.Errorf("%s: %d calls to remaining pods were cut", after, stay)
	}
	received := make([]int, len(gone))
	for i, c := range gone {
		received[i] = c.Stats().Received
	}
	s.goOn(after, others...)
	for _, peer := range left {
		s.until(
			"permissions for a removed pod are refused",
			func(context.Context) error { return refusal(s.options(s.usual()[0], peer), "403") },
		)
	}
	for i, c := range gone {
		if more := c.Stats().Received - received[i]; more != 0 {
			s.Errorf("%s: %d echoes from a removed pod", after, more)
		}
		s.Logf("%s, call to a removed pod: %s", after, c.End(time.Millisecond))
	}
}
