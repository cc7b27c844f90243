package forward

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func day(n byte) Key { return Key{ID: n, Secret: [32]byte{n, 1}} }

// The pods get their keys of the next day at different times, for three days. No frame is lost.
func TestKeysAtMidnight(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(1)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		keys := func(today byte) Peers {
			p := list(nodes...)
			p.Keys = []Key{day(today), day(today - 1)}
			return p
		}
		publish(keys(1), nodes...)
		owner.create(c)
		settle()
		// A frame is sealed with one of these keys.
		sealedWith := func(allowed ...byte) {
			t.Helper()
			for _, f := range n.frames() {
				ok := false
				for _, id := range allowed {
					ok = ok || f.frame[1] == id
				}
				if !ok {
					t.Errorf("a frame is sealed with key %d, want one of %v", f.frame[1], allowed)
				}
			}
		}
		sent := 0
		call := func(last time.Duration) {
			t.Helper()
			for begin := time.Now(); time.Since(begin) < last; time.Sleep(100 * time.Millisecond) {
				if !front.pass(c, fmt.Sprint(sent)) {
					t.Fatal("a datagram is dropped")
				}
				settle()
				owner.expect([]string{fmt.Sprint(sent)}, nil)
				front.expect(nil, []string{"re: " + fmt.Sprint(sent)})
				sent++
			}
		}
		call(2 * time.Second)
		sealedWith(0, 1)
		for today := byte(2); today < 5; today++ {
			call(2 * settleAfter)
			n.frames()
			call(time.Second)
			sealedWith(today - 1)
			late := n.start(fmt.Sprint("new-", today))
			for _, d := range []*node{front, homes[0], owner, homes[1]} {
				d.SetPeers(keys(today))
				call(time.Second)
			}
			sealedWith(today - 1)
			// A process that starts after midnight has had both keys for the same time.
			p := keys(today)
			p.Pods = append(p.Pods, list(late).Pods...)
			publish(p, append(nodes, late)...)
			if !late.pass(c, "late") {
				t.Error("the new process drops a datagram")
			}
			settle()
			owner.expect([]string{"late"}, nil)
			late.expect(nil, []string{"re: late"})
			publish(keys(today), nodes...)
			call(settleAfter)
			sealedWith(today-1, today)
			call(10 * time.Second)
			n.frames()
			call(time.Second)
			sealedWith(today)
		}
		for _, d := range nodes {
			d.refused(map[string]uint64{})
		}
		// A frame with a key from two days ago does not open.
		n.inject(front, owner, forge(front, owner, day(2), 1<<20, data, c, []byte("old")))
		settle()
		owner.refused(map[string]uint64{"bad_key": 1})
		synctest.Wait()
	})
}

func TestSealing(t *testing.T) {
	keys := []datedKey{{day(3), 100 * time.Second}, {day(2), 50 * time.Second}}
	for now, want := range map[time.Duration]Key{
		100 * time.Second:                 day(2), // no key is older than settleAfter
		110 * time.Second:                 day(2),
		100*time.Second + settleAfter - 1: day(2),
		100*time.Second + settleAfter:     day(3),
	} {
		if got := sealing(keys, now); got != want {
			t.Errorf("after %v key %d seals, want %d", now, got.ID, want.ID)
		}
	}
	if got := sealing(keys[:1], 0); got != day(3) {
		t.Errorf("of one key %d seals", got.ID)
	}
}

// After retireAfter, little memory is kept for the former processes of a pod, and replays are still detected if such a
// process is listed again.
func TestFormerProcessesAreRetired(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		pods := n.cluster(2)
		c := client(1)
		pods[0].create(c)
		settle()
		former := pods[1]
		frame := func(counter uint64) []byte { return forge(former, pods[0], yesterday, counter, data, c, []byte("x")) }
		n.inject(former, pods[0], frame(1000))
		n.inject(former, pods[0], frame(990))
		settle()
		pods[0].sessions.got()
		const restarts = 20
		for range restarts {
			pods[1] = n.start(pods[1].name)
			publish(list(pods...), pods...)
		}
		openers := func() (openers, retired int) {
			pods[0].lists.Lock()
			defer pods[0].lists.Unlock()
			return len(pods[0].openers), len(pods[0].retired)
		}
		for _, step := range []struct {
			after            time.Duration
			openers, retired int
		}{{0, 2 * (restarts + 1), 0}, {retireAfter - time.Minute, 2 * (restarts + 1), 0}, {2 * time.Minute, 2, 2 * restarts}} {
			time.Sleep(step.after)
			settle()
			if o, r := openers(); o != step.openers || r != step.retired {
				t.Errorf("%s later: %d openers, %d retired, want %d, %d", step.after, o, r, step.openers, step.retired)
			}
		}
		publish(list(pods[0], former), pods[0])
		for _, counter := range []uint64{1000, 999, 990, 1, 1002, 1001, 1002} {
			n.inject(former, pods[0], frame(counter))
			settle()
		}
		if delivered, _ := pods[0].sessions.got(); len(delivered) != 2 {
			t.Errorf("%d datagrams are delivered, want the 2 that are new", len(delivered))
		}
		pods[0].refused(map[string]uint64{"replay": 5})
		other := Peers{Keys: []Key{{ID: 9}}, Pods: list(pods[0], former).Pods}
		publish(other, pods[0])
		if o, r := openers(); o != 1 || r != 0 {
			t.Errorf("with other keys: %d openers, %d retired, want 1, 0", o, r)
		}
	})
}

// skip marks exactly the counters up to the given one as seen.
func TestWindowSkips(t *testing.T) {
	for _, at := range []uint64{1, 62, 63, 64, 65, windowSize - 1, windowSize, 10*windowSize + 17} {
		var w window
		w.skip(at)
		for counter := at - min(at, 2*windowSize); counter <= at; counter++ {
			if w.fresh(counter) {
				t.Fatalf("skip(%d): counter %d is fresh", at, counter)
			}
		}
		w.mark(at + 2*windowSize/3)
		for counter := at + 1; counter < at+2*windowSize/3; counter++ {
			if !w.fresh(counter) {
				t.Fatalf("skip(%d): counter %d is not fresh", at, counter)
			}
		}
	}
}
