package forward

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// call creates a session, and requests copies of it.
func (d *node) call(c Client) {
	d.sessions.mu.Lock()
	d.sessions.versions[c] = Version{Session: [12]byte{1, 2, 3}}
	d.sessions.mu.Unlock()
	d.create(c)
}

// owners returns the pods that have a session of a client.
func owners(c Client, nodes []*node) (list []*node) {
	for _, d := range nodes {
		if d.sessions.Has(c) {
			list = append(list, d)
		}
	}
	return list
}

// copies returns the number of copies of some pods.
func copies(nodes []*node) (total int) {
	for _, d := range nodes {
		total += d.Status().Copies
	}
	return total
}

// live returns the nodes that are not in without.
func live(nodes []*node, without ...*node) []*node {
	return slices.DeleteFunc(slices.Clone(nodes), func(d *node) bool { return slices.Contains(without, d) })
}

// talk makes a client send to pods in turn every 20 ms. It ends after the given time, or when enough reports true after
// a datagram.
func (n *network) talk(c Client, most time.Duration, enough func() bool, fronts ...*node) (took time.Duration) {
	n.t.Helper()
	begun := time.Now()
	for i := 0; time.Since(begun) < most; i++ {
		front := fronts[i%len(fronts)]
		if !front.sessions.Deliver(c, []byte("x"), ReturnPath{}, time.Now()) {
			front.pass(c, "x")
		}
		time.Sleep(20 * time.Millisecond)
		if synctest.Wait(); enough() {
			return time.Since(begun)
		}
	}
	n.t.Fatalf("client %v: not within %v", c.Addr, most)
	return 0
}

// away returns the first client of which the pod is not a home.
func away(d *node, nodes []*node, from int) Client {
	for i := from; ; i++ {
		if homes := homesOf(client(i), nodes); homes[0] != d && homes[1] != d {
			return client(i)
		}
	}
}

// the homes of a session have its latest record, until it ends.
func TestHomesHaveCopies(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		homes := homesOf(c, nodes)
		owner.call(c)
		time.Sleep(pingEvery)
		settle()
		k := keyFor(t, c)
		for _, h := range homes {
			s := h.index.copies[k]
			if s == nil || s.owner != podID(owner.name) || !strings.HasPrefix(string(s.record), "record 0") {
				t.Fatalf("%s has %+v", h.name, s)
			}
		}
		if got := copies(nodes); got != 2 {
			t.Errorf("%d copies", got)
		}
		owner.end(c)
		settle()
		if got := copies(nodes); got != 0 || homes[0].index.bytes != 0 {
			t.Errorf("%d copies, %d bytes, after the end", got, homes[0].index.bytes)
		}
	})
}

// no home keeps the copy of an ended session because a frame is lost.
func TestLostReleaseIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		owner.call(c)
		time.Sleep(2 * copyEvery)
		settle()
		if got := copies(nodes); got != 2 {
			t.Fatalf("%d copies", got)
		}
		n.cut(owner)
		owner.end(c)
		settle()
		n.heal()
		time.Sleep(pingEvery)
		settle()
		if got := copies(nodes); got != 0 {
			t.Errorf("%d copies of an ended session", got)
		}
		n.frames()
		time.Sleep(2 * releaseTicks * pingEvery)
		settle()
		n.frames()
		time.Sleep(2 * time.Second)
		if got := n.frames(); len(got) > 0 {
			t.Errorf("%d frames long after the end", len(got))
		}
	})
}

// a repeated release does not end a later session of the client.
func TestReleaseIsNotRepeatedForLaterSession(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		owner.call(c)
		time.Sleep(2 * copyEvery)
		owner.end(c)
		settle()
		owner.call(c)
		time.Sleep(2 * releaseTicks * pingEvery)
		settle()
		if got := copies(nodes); got != 2 {
			t.Errorf("%d copies of the later session", got)
		}
	})
}

// the homes have each of the first changes of a session at once, because its pod may be lost a moment later.
// After a second without a change, the next changes are copied at once again.
func TestFirstChangesAreCopiedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		k := keyFor(t, c)
		owner.call(c)
		for i := range 2 * earlyCopies {
			if i == earlyCopies {
				time.Sleep(2 * copyEvery)
			}
			time.Sleep(2 * pingEvery)
			owner.sessions.mu.Lock()
			owner.sessions.versions[c] = Version{Session: [12]byte{1, 2, 3}, Generation: uint32(i + 1)}
			owner.sessions.mu.Unlock()
			owner.Changed(c)
			time.Sleep(2 * pingEvery)
			settle()
			for _, h := range homesOf(c, nodes) {
				want := fmt.Sprintf("record %d ", i+1)
				if s := h.index.copies[k]; s == nil || !strings.HasPrefix(string(s.record), want) {
					t.Errorf("%s has %+v after change %d", h.name, s, i+1)
				}
			}
		}
	})
}

// a home gets at most one copy a second of a session that keeps changing, after the first changes, and none of an
// unchanged one.
func TestCopiesAreCoalesced(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		owner.call(c)
		time.Sleep(5 * time.Second)
		n.frames()
		const seconds = 10
		for range seconds * 100 {
			owner.Changed(c)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		count := func() map[string]int {
			sum := map[string]int{}
			for _, f := range n.frames() {
				sum[fmt.Sprint(f.from == owner.self.Address)]++
			}
			return sum
		}
		got := count() // a copy for each home, and its confirmation
		if most := 2 * (seconds + 1 + earlyCopies); got["true"] > most || got["true"] < most-4 || got["false"] > most {
			t.Errorf("frames of the owner (true) and the homes: %v, want up to %d of each", got, most)
		}
		time.Sleep(20 * time.Second)
		if got := count(); len(got) != 0 {
			t.Errorf("frames without a change: %v", got)
		}
	})
}

// the first home takes over the session of a lost pod. No pod takes it over while the owner answers or the client
// is silent. The former owner ends its session when it is reachable again.
func TestFirstHomeTakesOver(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		homes := homesOf(c, nodes)
		front := other(nodes, owner, homes[0], homes[1])
		owner.sessions.silent = true // the client only sends
		owner.call(c)
		time.Sleep(time.Second)
		sent := 0
		n.talk(c, 10*time.Second, func() bool { sent++; return sent > 400 }, front)
		if got := owners(c, nodes); len(got) != 1 || got[0] != owner {
			t.Fatalf("owners of a session whose owner is quiet: %d", len(got))
		}
		time.Sleep(2 * time.Second)
		n.cut(owner)
		time.Sleep(10 * time.Second)
		if got := owners(c, nodes); len(got) != 1 {
			t.Fatalf("%d owners of a session whose client is silent", len(got))
		}
		took := n.talk(c, 4*time.Second, func() bool { return homes[0].sessions.Has(c) }, front)
		t.Logf("taken over after %v", took)
		if took > 2500*time.Millisecond || took < 1500*time.Millisecond {
			t.Errorf("taken over after %v", took)
		}
		if v := homes[0].sessions.versions[c]; v.Generation != 1<<termBits {
			t.Errorf("generation %d", v.Generation)
		}
		if got := homes[0].sessions.takenOver[c]; got != fmt.Sprintf("record 0 of %v", c.Addr) {
			t.Errorf("from the record %q", got)
		}
		homes[0].sessions.got()
		n.talk(c, time.Second, func() bool { d, _ := homes[0].sessions.got(); return len(d) > 0 }, front)
		if got := owners(c, live(nodes, owner)); len(got) != 1 {
			t.Errorf("%d owners", len(got))
		}

		// The former owner ends its session when it is reachable again, although its client is silent.
		n.heal()
		time.Sleep(5 * time.Second)
		if got := owners(c, nodes); len(got) != 1 || got[0] != homes[0] {
			t.Errorf("%d owners after the return", len(got))
		}
		n.talk(c, time.Second, func() bool { d, _ := homes[0].sessions.got(); return len(d) > 0 }, owner)
		for _, j := range homes[0].copying.jobs {
			if j.former != 0 {
				t.Error("the new owner still waits for the former one")
			}
		}
	})
}

// when an owner has left the list, a home takes over the session with the next datagram of the client. If that
// home is lost too, the other home takes it over.
func TestTwoPodsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		homes := homesOf(c, nodes)
		front := other(nodes, owner, homes[0], homes[1])
		owner.call(c)
		time.Sleep(time.Second)
		n.cut(owner)
		n.cut(homes[0])
		took := n.talk(c, 5*time.Second, func() bool { return homes[1].sessions.Has(c) }, front)
		t.Logf("two silent pods: taken over after %v", took)
		n.heal()
		time.Sleep(5 * time.Second)
		if got := owners(c, nodes); len(got) != 1 || got[0] != homes[1] {
			t.Errorf("%d owners after the return", len(got))
		}

		// The new owner leaves the list.
		rest := live(nodes, homes[1])
		publish(list(rest...), rest...)
		time.Sleep(time.Second)
		took = n.talk(c, time.Second, func() bool { return len(owners(c, rest)) == 1 }, front)
		t.Logf("pod that has left the list: taken over after %v", took)
		if took > 100*time.Millisecond {
			t.Errorf("taken over after %v", took)
		}
	})
}

// a home that cannot continue a session forgets it, so that the client gets an error.
func TestRefusedTakeOver(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(2)
		c := client(1)
		nodes[0].call(c)
		nodes[1].sessions.refuse = true
		time.Sleep(time.Second)
		publish(list(nodes[1], n.start("new")), nodes[1])
		n.talk(c, time.Second, func() bool { return copies(nodes[1:]) == 0 }, nodes[1])
		if len(owners(c, nodes[1:])) != 0 || nodes[1].index.bytes != 0 || nodes[1].index.len() != 0 {
			t.Error("a refused session is not forgotten")
		}
	})
}

// a pod ignores frames about copies from another Gateway, repeated frames, malformed frames, and generations that
// are too high.
func TestForeignCopiesChangeNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner := nodes[0]
		c := away(owner, nodes, 0)
		homes := homesOf(c, nodes)
		owner.call(c)
		n.frames()
		time.Sleep(time.Second)
		recorded := n.frames()
		k := keyFor(t, c)
		state := func() string {
			s := homes[0].index.copies[k]
			return fmt.Sprint(owners(c, nodes)[0].name, s.owner == podID(owner.name), s.Generation, copies(nodes))
		}
		before, from := state(), other(nodes, owner, homes[0], homes[1])
		frame := func(session byte, generation uint32, number uint64, rest string) []byte {
			b := Version{[12]byte{session, 2, 3}, generation}.append(nil)
			return append(binary.BigEndian.AppendUint64(b, number), rest...)
		}
		foe, now := n.start("foe"), uint64(time.Now().UnixMilli())
		foreign := Key{ID: today.ID, Secret: [32]byte{9}}
		for _, to := range []*node{owner, homes[0]} {
			for _, what := range []kind{copyOf, copied, newer, ping, pingRequest} {
				n.inject(foe, to, forge(foe, to, today, 1, what, c, frame(1, 1<<termBits, now, "r")))
				n.inject(homes[1], to, forge(homes[1], to, foreign, 100_000, what, c, frame(1, 1<<termBits, now, "r")))
			}
			counter := uint64(200_000)
			for _, bad := range []struct {
				what    kind
				payload []byte
			}{
				{copyOf, frame(1, (maxTerms+1)<<termBits, now, "r")},
				{newer, frame(1, 1<<31, podID(from.name), "")},
				{copyOf, frame(1, 1, now, "")},
				{copyOf, frame(1, 1, now, strings.Repeat("r", MaxCopy+1))},
				{copyOf, []byte("short")},
				{newer, []byte("short")},
				{newer, frame(1, 1, now, "more")},
				{copied, frame(1, 1, now, "more")},
				{pingRequest, []byte("short")},
				{copyOf, frame(9, 0, now, "another session")},
				{newer, frame(9, 5<<termBits, podID(from.name), "")},
			} {
				counter++
				n.inject(from, to, forge(from, to, yesterday, counter, bad.what, c, bad.payload))
			}
			settle()
			if got := state(); got != before {
				t.Fatalf("frames to %s: %s, was %s", to.name, got, before)
			}
			if got := to.Status().Refused["bad_frame"]; got < 9 {
				t.Errorf("%s has refused %d frames", to.name, got)
			}
		}
		// A home takes over the session. When the recorded frames of the former owner arrive again, they do not restore
		// the session at the former owner.
		n.cut(owner)
		n.talk(c, 5*time.Second, func() bool { return homes[0].sessions.Has(c) }, homes[1])
		n.heal()
		time.Sleep(3 * time.Second)
		for _, f := range recorded {
			n.inject(n.nodes[f.from], n.nodes[f.to], f.frame)
		}
		settle()
		if got := owners(c, nodes); len(got) != 1 || got[0] != homes[0] {
			t.Errorf("%d owners after replayed frames", len(got))
		}
	})
}

// a flood of copies uses only the memory for copies, and replaces no stored copy.
func TestFloodOfCopies(t *testing.T) {
	x := newIndex(0, 100*(priceCopy+100))
	for i := range 1000 {
		s := &saved{owner: uint64(i % 7), record: make([]byte, 100)}
		what, _ := x.keep(clientKey{low: uint64(i)}, s, 0)
		if want := map[bool]stored{true: kept, false: full}[i < 100]; what != want {
			t.Fatalf("copy %d: %d, want %d", i, what, want)
		}
	}
	if what, _ := x.keep(clientKey{low: 1}, &saved{owner: 1, record: make([]byte, 90)}, 0); what != kept {
		t.Errorf("a newer copy: %d", what)
	}
	if number, size := x.numCopies(); number != 100 || size != 100*(priceCopy+100)-10 {
		t.Errorf("%d copies of %d bytes", number, size)
	}
	x.sweep(holdTime)
	if number, size := x.numCopies(); number != 0 || size != 0 {
		t.Errorf("%d copies of %d bytes after their time", number, size)
	}
}

// TestRandomFaultsLeaveOneOwner lets pods and the network fail at random: frames are lost, pods are cut off alone
// and in groups, two pods fail at once, pods restart and leave the list. In the end each client that sends has exactly
// one owner.
func TestRandomFaultsLeaveOneOwner(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				dice := rand.New(rand.NewPCG(seed, 1))
				nodes := n.cluster(5)
				var clients []Client
				for i := range 10 {
					clients = append(clients, client(i))
					nodes[i%5].call(clients[i])
				}
				time.Sleep(2 * time.Second)
				n.loss(rand.New(rand.NewPCG(seed, 2)), 0.2)
				talk := func(d, every time.Duration) {
					for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(every) {
						for _, c := range clients {
							front := nodes[dice.IntN(5)]
							if !front.sessions.Has(c) {
								front.pass(c, "x")
							}
						}
					}
				}
				talk(time.Second, 20*time.Millisecond)
				for range 3 {
					lost := nodes[dice.IntN(5)]
					second := nodes[dice.IntN(5)]
					switch dice.IntN(3) {
					case 0:
						n.cut(lost)
					case 1:
						n.cut(lost)
						n.cut(second)
					case 2: // two groups
						n.split(nodes[:2], nodes[2:])
					}
					talk(6*time.Second, 20*time.Millisecond)
					n.heal()
					talk(time.Duration(dice.IntN(4000))*time.Millisecond, 20*time.Millisecond)
				}
				n.loss(nil, 0)
				talk(75*time.Second, 200*time.Millisecond) // an owner announces each session within renewEvery
				for i, c := range clients {
					got := owners(c, nodes)
					if len(got) != 1 {
						var versions []string
						for _, d := range got {
							versions = append(versions, fmt.Sprint(d.name, d.sessions.versions[c].Generation))
						}
						t.Errorf("client %d: %d owners: %v", i, len(got), versions)
					}
				}
			})
		})
	}
}
