package forward

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// voice is the time between two datagrams of a call.
const voice = 20 * time.Millisecond

// TestCallsGoOnAtAnotherPod: when the datagrams of clients arrive at another pod in the middle of a call, no
// datagram is lost.
func TestCallsGoOnAtAnotherPod(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	owner, front := w.add(1), w.add(2)
	owner.awaitPeers(1)
	front.awaitPeers(1)
	var calls []*client
	for range 20 {
		calls = append(calls, w.dial(owner, voice, 200))
	}
	const before, after = 200, 400 // echoes of a call
	awaitAll(t, calls, before)
	for _, c := range calls {
		w.send(c, front)
	}
	awaitAll(t, calls, after)
	sent, cpu := front.forwarding().Passed, []time.Duration{owner.cpu(), front.cpu()}
	awaitAll(t, calls, 2*after)
	f := front.forwarding()
	packets := time.Duration(2 * (f.Passed - sent)) // each is returned
	t.Logf("CPU of a forwarded datagram: owner %s, front %s", (owner.cpu()-cpu[0])/packets, (front.cpu()-cpu[1])/packets)
	for i, c := range calls {
		s := c.End(patience)
		if s.Lost != 0 {
			t.Errorf("call %d: %s", i, s)
		}
		if i == 0 {
			t.Logf("forwarded call: %s", s)
		}
	}
	if f, o := front.forwarding(), owner.forwarding(); f.Passed == 0 || f.Answered == 0 || o.Delivered == 0 || o.Replied == 0 {
		t.Errorf("front %+v, owner %+v", f, o)
	}
	// The same calls without forwarding.
	calls = nil
	for range 20 {
		calls = append(calls, w.dial(owner, voice, 200))
	}
	awaitAll(t, calls, before)
	t.Logf("direct call: %s", calls[0].Stats())
	packets, cpu[0] = 2*20*after, owner.cpu()
	awaitAll(t, calls, before+after)
	t.Logf("CPU of a datagram at the owner: %s", (owner.cpu()-cpu[0])/packets)
}

// awaitAll waits until every call has received a number of echoes since its start.
func awaitAll(t *testing.T, calls []*client, echoes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, c := range calls {
		if err := c.Await(ctx, echoes); err != nil {
			t.Fatalf("call %d: %v: %s", i, err, c.Stats())
		}
	}
}

// TestCallsOfLivingPodsGoOn: while clients move to another pod at random every second, a pod is killed and another one is added.
// Every call whose owner lives goes on, and loses at most two datagrams each time it moves.
func TestCallsOfLivingPodsGoOn(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	w.returnable = true
	pods := []*pod{w.add(1), w.add(2), w.add(3)}
	for _, p := range pods {
		p.awaitPeers(2)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	owners := map[*client]*pod{}
	var calls []*client
	for i := range 24 {
		c := w.dial(pods[i%3], voice, 200)
		owners[c] = pods[i%3]
		calls = append(calls, c)
	}
	awaitAll(t, calls, 50)
	moves := map[*client]int{}
	type flow struct {
		*client
		*pod
	}
	returns := map[flow]int{} // the first round in which the client may return to the pod
	move := func(c *client, round int) {
		var others []*pod
		for _, p := range pods {
			if p != c.at && round >= returns[flow{c, p}] {
				others = append(others, p)
			}
		}
		if len(others) > 0 {
			returns[flow{c, c.at}] = round + 2 // the owner has noticed the move then
			w.send(c, others[dice.IntN(len(others))])
			moves[c]++
		}
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for round := range 60 {
		switch round {
		case 20:
			killed := pods[2]
			pods = pods[:2]
			for _, c := range calls {
				if c.at == killed {
					w.send(c, pods[dice.IntN(len(pods))])
					moves[c]++
				}
			}
			calls = slices.DeleteFunc(calls, func(c *client) bool { return owners[c] == killed })
			if err := killed.process.Kill(); err != nil {
				t.Fatal(err)
			}
		case 30:
			added := w.add(4)
			added.awaitPeers(3)
			pods = append(pods, added)
		case 50: // 30 s after its last report
			w.forget("pod3")
		}
		if round >= 20 || round < 17 { // before the kill, so that its clients can go to every other pod
			for _, c := range calls {
				move(c, round)
			}
		}
		<-second.C
		for i, c := range calls {
			if ago := time.Since(c.LastEcho()); ago > 500*time.Millisecond {
				t.Logf("round %d: call %d of %s at %s: silent for %s", round, i, owners[c].name, c.at.name, ago)
			}
		}
	}
	total, lost := 0, 0
	for i, c := range calls {
		alive := c.Stats().Received
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := c.Await(ctx, alive+50); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
		cancel()
		s := c.End(time.Second)
		total, lost = total+moves[c], lost+s.Lost
		if s.Lost > 2*moves[c] {
			t.Errorf("call %d: %d moves: %s", i, moves[c], s)
		}
	}
	t.Logf("%d moves, %d datagrams lost", total, lost)
	if total < 600 {
		t.Errorf("%d moves only", total)
	}
}
