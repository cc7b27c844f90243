package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// TestAffinityOfAnOffice compares how the clients of an office, which have one address, use three pods with and without
// sessionAffinity: ClientIP, before and after the node has lost its table of flows.
func TestAffinityOfAnOffice(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	pods := []*pod{w.add(1), w.add(2), w.add(3)}
	for _, p := range pods {
		p.awaitPeers(2)
	}
	for name, selected := range map[string]string{
		"ClientIP": fmt.Sprintf("ip saddr map { %s : %s }", clientAddr, pods[0].addr),
		"None": fmt.Sprintf(
			"numgen random mod 3 map { 0 : %s, 1 : %s, 2 : %s }", pods[0].addr, pods[1].addr, pods[2].addr,
		),
	} {
		t.Run(name, func(t *testing.T) {
			w.balance(selected)
			const clients = 60
			var calls []*client
			for range clients {
				c := w.client()
				w.start(c, voice, 200)
				calls = append(calls, c)
			}
			awaitAll(t, calls, 50)
			var spread []int
			idle := 0
			for _, p := range pods {
				n := p.sessions()
				spread = append(spread, n)
				if n == 0 {
					idle++
				}
			}
			direct := cpuOf(t, pods, calls)
			w.loseFlows()
			awaitAll(t, calls, calls[0].Stats().Received+50)
			after := cpuOf(t, pods, calls)
			var lost atomic.Int64
			var ending sync.WaitGroup
			for _, c := range calls {
				ending.Go(func() { lost.Add(int64(c.End(time.Second).Lost)) })
			}
			ending.Wait()
			t.Logf("calls of the pods: %d; CPU of a datagram %s, after the table of flows was lost %s; %d datagrams lost",
				spread, direct, after, lost.Load())
			if want := map[string]int{"ClientIP": 2, "None": 0}[name]; idle != want {
				t.Errorf("%d pods have no call, want %d", idle, want)
			}
			if n := lost.Load(); n > 5*clients { // while the node loses its table, see loseFlows
				t.Errorf("%d datagrams lost", n)
			}
		})
	}
}

// cpuOf returns the CPU time that all pods use for a relayed datagram of the calls.
func cpuOf(t *testing.T, pods []*pod, calls []*client) time.Duration {
	t.Helper()
	measure := func() (used time.Duration, relayed int) {
		for _, p := range pods {
			used += p.cpu()
		}
		for _, c := range calls {
			relayed += 2 * c.Stats().Received
		}
		return used, relayed
	}
	used, relayed := measure()
	awaitAll(t, calls, calls[0].Stats().Received+200)
	usedThen, relayedThen := measure()
	return (usedThen - used) / time.Duration(relayedThen-relayed)
}

// sessions returns the number of sessions of a pod.
func (p *pod) sessions() int {
	p.world.t.Helper()
	body, err := p.get("sessions")
	var list inspection.SessionList
	if err = errors.Join(err, json.Unmarshal(body, &list)); err != nil {
		p.world.t.Fatal(err)
	}
	return list.Total
}
