package forward

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// metric returns the value of a metric without labels.
func (p *pod) metric(name string) (value float64) {
	p.t.Helper()
	_, body, err := harness.Get(p.t.Context(), fmt.Sprintf("http://%s:8080", p.addr.Addr()))
	must(p.t, err)
	for line := range strings.Lines(string(body)) {
		if _, err := fmt.Sscanf(line, name+" %g", &value); err == nil {
			return value
		}
	}
	p.t.Fatalf("%s has no metric %s", p.name, name)
	return 0
}

// TestScaleOutSpreadsSessions: two pods are added to one, and the load balancer sends two of three calls to them.
// After half a minute they have the sessions of these calls, without a lost datagram, and the calls do not use the path
// through the first pod. A call with a peer that does not use ICE stays.
func TestScaleOutSpreadsSessions(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.config.Admin.MetricsEndpoint = "http://0.0.0.0:8080"
	g.discovery.Publish(g.config)
	first := g.add(1)[0]
	const number = 12
	plain := g.dialEach(2, voice, first)
	g.net.Peers.Do(func() { g.peer = harnesstest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	calls := g.dialICE(3*number, voice, first)
	all := slices.Concat(calls, plain)
	added := g.add(2)
	settle(t, all)
	before := laps(calls)
	for i, c := range calls {
		if i%3 > 0 {
			c.move(added[i%3-1])
		}
	}
	for _, c := range plain {
		c.move(added[0])
	}
	moved := time.Now()
	for _, p := range added {
		p.await("the sessions are here", func(context.Context) error {
			if n := len(p.sessions()); n != number {
				return fmt.Errorf("%d sessions, want %d", n, number)
			}
			return nil
		})
	}
	took := time.Since(moved)
	awaitMore(t, all, 100)
	gap := laps(calls)
	first.await("no relay socket is in use by another pod", func(context.Context) error {
		if n := added[0].metric(telemetry.PeersMoved) + added[1].metric(telemetry.PeersMoved); n != 2*number {
			return fmt.Errorf("%g peers use the new relay address, want %d", n, 2*number)
		}
		return nil
	})
	passed := added[1].forwarding().Passed
	awaitMore(t, all, 50)
	if n := added[1].forwarding().Passed; n != passed {
		t.Errorf("%d datagrams take the way through the first pod", n-passed)
	}
	t.Logf("%d of %d sessions adopted %s after their datagrams arrived elsewhere; longest gap %s, before %s",
		first.forwarding().Adopted, len(all), took, gap, before)
	if took < 30*time.Second {
		t.Error("adopted too early")
	}
	if n := first.metric(telemetry.SessionsAdopted); n != 2*number {
		t.Errorf("%g sessions adopted, want %d", n, 2*number)
	}
	for _, s := range first.sessions() {
		if s.Front != "" && !slices.ContainsFunc(plain, func(c *client) bool { return c.local.String() == s.Client }) {
			t.Errorf("a session with its client at %s has stayed", s.Front)
		}
	}
	if n := len(first.sessions()); n != number+len(plain) {
		t.Errorf("%d sessions are left", n)
	}
	for _, p := range added {
		for _, s := range p.sessions() {
			if s.Front != "" {
				t.Errorf("%s sends to the client at %s through %s", p.name, s.Client, s.Front)
			}
		}
	}
	end(t, all...)
}
