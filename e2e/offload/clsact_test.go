package offload

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// With clsact no check of the prober fails. The filters remain when stunnerd is killed: they forward nothing, and
// the next stunnerd removes them when it ends.
func clsact(t *testing.T, n *network) {
	bpf.OccupyTCX(t, "clients", "peers")
	g := n.start(t)
	if m := g.status().Offload.Mechanism; m != "clsact" {
		t.Fatalf("mechanism %s, want clsact", m)
	}
	prober(t, g)
	s := g.path(v4).stream()
	s.kernel(50)
	harnesstest.NoError(t, g.Kill())
	killed, sent := time.Now(), s.sent.Load()
	if err := harness.Until(t.Context(), func(context.Context) error {
		if s.sent.Load() < sent+100 {
			return errors.New("the client has sent too few datagrams")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close(s.stop)
	s.workers.Wait()
	if late := time.Unix(0, s.last.Load()).Sub(killed); late > stopTime {
		t.Errorf("a datagram reached the peer %s after the end of stunnerd", late)
	}
	if filters(t) == "" {
		t.Error("no filter remains, so nothing was tested")
	}
	g = n.start(t)
	p := g.path(v4)
	p.inKernel()
	p.hangUp()
	if err := g.Stop(timeout); err != nil {
		t.Error(err)
	}
	if left := filters(t); left != "" {
		t.Errorf("filters are left:\n%s", left)
	}
}

// filters lists the filters of the interfaces of the gateway.
func filters(t *testing.T) (all string) {
	t.Helper()
	for _, name := range []string{"clients", "peers"} {
		all += netns.Run(t, "tc qdisc show dev "+name+" clsact")
		for _, hook := range []string{"ingress", "egress"} {
			all += netns.Run(t, "tc filter show dev "+name+" "+hook)
		}
	}
	return all
}
