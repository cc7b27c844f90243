package forward

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
)

// addShowing adds pods that show the clients of their sessions.
func (g *gateway) addShowing(count int) (pods []*pod) {
	g.t.Helper()
	for range count {
		p := g.pod()
		p.start("--show-users")
		pods = append(pods, p)
	}
	g.awaitPeers(pods...)
	return pods
}

// owners returns the pods that have a session of each client.
func owners(pods ...*pod) map[string][]string {
	all := map[string][]string{}
	for _, p := range pods {
		for _, s := range p.sessions() {
			all[s.Client] = append(all[s.Client], p.name)
		}
	}
	return all
}

// awaitOwner waits until each client has one owner among some pods.
func awaitOwner(pods []*pod, calls []*client) (took time.Duration) {
	pods[0].t.Helper()
	begun := time.Now()
	pods[0].await("one owner of each client", func(context.Context) error {
		all := owners(pods...)
		for _, c := range calls {
			if got := all[c.local.String()]; len(got) != 1 {
				return fmt.Errorf("client %s has the owners %v", c.local, got)
			}
		}
		return nil
	})
	return time.Since(begun)
}

// copiedEchoes is the number of echoes that a call gets in two seconds. A pod copies a session at most once a second,
// so the first copy of a session may lack its channel, and a pod that continues the session drops the data of the
// channel.
const copiedEchoes = int(2 * time.Second / voice)

// copied waits until the pods have the given number of copies of sessions.
func copied(pods []*pod, want int) {
	pods[0].t.Helper()
	pods[0].await("copies", func(context.Context) error {
		total := 0
		for _, p := range pods {
			total += p.forwarding().Copies
		}
		if total < want {
			return fmt.Errorf("%d copies, want %d", total, want)
		}
		return nil
	})
}

// TestNodeIsLost: one of three pods is cut off, and its clients are sent to the others. Their calls continue,
// calls of other pods lose nothing, and when the link is restored each session has one owner. A call over TCP waits for
// its pod.
func TestNodeIsLost(t *testing.T) {
	g := newGateway(t)
	g.net.Peers.Do(func() { g.peer = harnesstest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	g.listenTCP()
	pods := g.addShowing(3)
	lost, others := pods[0], pods[1:]
	const count = 40
	calls := g.dialICE(count, voice, lost)
	control := g.dialICE(10, voice, others[0])
	stream, err := lost.tryTCP(voice, ice.NewSession(-1))
	must(t, err)
	streams := []*client{stream}
	awaitMore(t, streams, 5)
	copied(pods, count+10)
	awaitMore(t, calls, copiedEchoes)
	laps(calls)
	laps(control)

	must(t, lost.net.Unplug())
	for i, c := range calls {
		c.move(others[i%2])
	}
	awaitMore(t, calls, 50)
	t.Logf("%d calls of the lost pod were silent for %s at most, those of another pod for %s", count, laps(calls), laps(control))
	awaitOwner(others, slices.Concat(calls, control))

	must(t, lost.net.Plug())
	t.Logf("one owner of each session %s after the link was back", awaitOwner(pods, slices.Concat(calls, control)))
	awaitMore(t, streams, 20)
	if n := len(lost.sessions()); n != len(streams) {
		t.Errorf("the pod that was lost has %d sessions, want that over TCP", n)
	}
	for _, c := range calls {
		c.move(lost)
	}
	awaitMore(t, calls, 50)
	end(t, control...)
	for _, c := range slices.Concat(calls, streams) {
		c.End(0)
	}
}

// TestTwoNodesAreLost: two of five pods are cut off at once, while a fifth of all datagrams to pods are lost.
// Calls of which a living pod has a copy continue. When the links are restored, all calls continue, with one owner
// each.
func TestTwoNodesAreLost(t *testing.T) {
	g := newGateway(t)
	g.net.Peers.Do(func() { g.peer = harnesstest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	pods := g.addShowing(5)
	lost, others := pods[:2], pods[2:]
	var calls []*client
	for _, p := range lost {
		calls = append(calls, g.dialICE(25, voice, p)...)
	}
	copied(pods, len(calls))
	awaitMore(t, calls, copiedEchoes)
	for _, p := range pods {
		_, err := p.net.Exec("nft table inet loss { chain in { type filter hook input priority 0; " +
			"meta l4proto udp numgen random mod 100 < 20 drop; }; }")
		must(t, err)
	}
	laps(calls)
	for _, p := range lost {
		must(t, p.net.Unplug())
	}
	for i, c := range calls {
		c.move(others[i%len(others)])
	}
	var gone []*client
	others[0].await("take-overs", func(context.Context) error {
		all := owners(others...)
		gone = nil
		for _, c := range calls {
			if len(all[c.local.String()]) == 0 {
				gone = append(gone, c)
			}
		}
		// One session in ten has both of its homes in the lost pods, and so no copy.
		if most := len(calls) / 4; len(gone) > most {
			return fmt.Errorf("%d of %d calls have no owner, want %d at most", len(gone), len(calls), most)
		}
		return nil
	})
	going := slices.DeleteFunc(slices.Clone(calls), func(c *client) bool { return slices.Contains(gone, c) })
	awaitMore(t, going, 20)
	awaitOwner(others, going)
	t.Logf("%d of %d calls go on, after %s at most", len(going), len(calls), laps(going))
	for _, p := range lost {
		must(t, p.net.Plug())
	}
	t.Logf("one owner of each session %s after the links were back", awaitOwner(pods, calls))
	awaitMore(t, calls, 20)
	awaitOwner(pods, calls)
	for _, c := range calls {
		c.End(0)
	}
}
