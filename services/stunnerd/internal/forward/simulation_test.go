package forward

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The simulation has the dimensions of a large Gateway. One pod is on each node.
const (
	simulatedPods = 100
	// roundTrip is the round-trip time between two pods. listWithin is how long a change of the list takes to reach all
	// pods.
	roundTrip  = 500 * time.Microsecond
	listWithin = time.Second
	// tries is how long a front searches until the simulation counts the call as ended.
	tries = 10 * time.Second
)

// event is a change in the cluster, and how the balancer distributes the clients over the pods before and after it.
type event struct {
	balancer, name string
	// lost pods end without notice. drained pods have no sessions. added pods are new. Pods are numbered: the last pods
	// among the first simulatedPods are lost or drained, and added pods follow.
	lost, drained, added int
	// before and after return the pod of a client, before and after the event, by the hash of the client. random is
	// independent of the hash.
	before func(hash uint64, random *rand.Rand) int
	after  func(hash uint64, random *rand.Rand, owner int) int
	// cut is the share of calls in percent that end without forwarding. mostSearch is the longest search with
	// forwarding.
	cut        float64
	mostSearch time.Duration
}

func anyOf(pods int) func(uint64, *rand.Rand) int {
	return func(_ uint64, random *rand.Rand) int { return random.IntN(pods) }
}

// lostTable distributes all clients again, without regard to their earlier pods.
func lostTable(pods int) func(uint64, *rand.Rand, int) int {
	return func(_ uint64, random *rand.Rand, _ int) int { return random.IntN(pods) }
}

func modulo(pods int) func(uint64, *rand.Rand) int {
	return func(hash uint64, _ *rand.Rand) int { return int(hash % uint64(pods)) }
}

// nextModulo is equal-cost multi-path routing to nodes. With externalTrafficPolicy Cluster a client that reaches
// another node gets any pod; with Local it gets the pod of that node.
func nextModulo(before, after int, local bool) func(uint64, *rand.Rand, int) int {
	return func(hash uint64, random *rand.Rand, owner int) int {
		node := int(hash % uint64(after))
		switch {
		case local:
			return node
		case node == int(hash%uint64(before)):
			return owner
		}
		return random.IntN(simulatedPods)
	}
}

// maglevSize is the size of the lookup table of Maglev (Eisenbud et al., NSDI 2016, section 3.4).
const maglevSize = 65_537

func maglev(pods int) []int {
	table, next := slices.Repeat([]int{-1}, maglevSize), make([]uint64, pods)
	for filled := 0; ; {
		for p := range pods {
			seed := mix(uint64(p) + 1)
			offset, skip := seed%maglevSize, mix(seed)%(maglevSize-1)+1
			slot := uint64(0)
			for taken := true; taken; next[p]++ {
				slot = (offset + next[p]*skip) % maglevSize
				taken = table[slot] >= 0
			}
			table[slot] = p
			if filled++; filled == maglevSize {
				return table
			}
		}
	}
}

func events() []event {
	const n = simulatedPods
	atOnce, soon := answerTimeout, listWithin+answerTimeout+4*roundTrip
	fewer, same, more := maglev(n-1), maglev(n), maglev(n+1)
	inTable := func(table []int) func(uint64, *rand.Rand, int) int {
		return func(hash uint64, _ *rand.Rand, _ int) int { return table[hash%maglevSize] }
	}
	fromTable := func(hash uint64, _ *rand.Rand) int { return same[hash%maglevSize] }
	stay := func(_ uint64, _ *rand.Rand, owner int) int { return owner }
	return []event{
		{"one node, kube-proxy", "+1 pod", 0, 0, 1, anyOf(n), stay, 0, 0},
		{"one node, kube-proxy", "-1 drained pod", 0, 1, 0, anyOf(n), stay, 0, 0},
		{"one node, kube-proxy", "flow table lost", 0, 0, 0, anyOf(n), lostTable(n), 99.0, atOnce},
		{"ECMP mod N, policy Local", "+1 pod", 0, 0, 1, modulo(n), nextModulo(n, n+1, true), 99.0, atOnce},
		{"ECMP mod N, policy Local", "-1 drained pod", 0, 1, 0, modulo(n), nextModulo(n, n-1, true), 99.0, atOnce},
		{"ECMP mod N, policy Cluster", "+1 node", 0, 0, 0, anyOf(n), nextModulo(n, n+1, false), 98.0, atOnce},
		{"ECMP mod N, policy Cluster", "-1 node", 0, 0, 0, anyOf(n), nextModulo(n, n-1, false), 98.0, atOnce},
		{"Maglev to pods, no flow table", "+1 pod", 0, 0, 1, fromTable, inTable(more), 1.55, atOnce},
		{"Maglev to pods, no flow table", "-1 drained pod", 0, 1, 0, fromTable, inTable(fewer), 0.57, atOnce},
		{"cloud balancer, policy Cluster", "-1 node", 0, 0, 0, anyOf(n), func(hash uint64, random *rand.Rand, owner int) int {
			if hash%n > 0 { // the flow table of the balancer keeps the node
				return owner
			}
			return random.IntN(n)
		}, 0.98, atOnce},
		{"cloud balancer, policy Cluster", "flow table lost", 0, 0, 0, anyOf(n), lostTable(n), 99.0, atOnce},
		{"any with a table that is lost", "10 % of pods lost", n / 10, 0, 0, anyOf(n), lostTable(n - n/10), 98.9, soon},
	}
}

// eventPods are the pods of one event.
type eventPods struct {
	pods          []home
	before, after []home
	dead          map[*pod]bool
	// listed is when each pod receives the list after the event.
	listed []time.Duration
}

func newEventPods(e event, random *rand.Rand) eventPods {
	w := eventPods{dead: map[*pod]bool{}}
	for i := range simulatedPods + e.added {
		h := home{pod: &pod{id: podID(fmt.Sprintf("stunner-%d", i))}}
		w.pods = append(w.pods, h)
		w.listed = append(w.listed, time.Duration(random.Int64N(int64(listWithin))))
	}
	w.before = w.pods[:simulatedPods]
	w.after = w.pods[:simulatedPods-e.lost-e.drained]
	if e.added > 0 {
		w.after = w.pods
	}
	for _, h := range w.before[len(w.before)-e.lost:] {
		w.dead[h.pod] = true
	}
	return w
}

// search returns how long after the event a front finds the owner of a client, by the rules of route. It asks the first
// home, and the second one after an unknown frame or after answerTimeout. With a new list it begins again.
func (w *eventPods) search(k clientKey, owner, front int) (at time.Duration, found bool) {
	before, after := rank(w.before, k), rank(w.after, k)
	knows := func(h home) bool {
		return h == before[0] || h == before[1] || (h == after[0] || h == after[1]) && at >= w.listed[owner]
	}
	self := w.pods[front]
	for at < tries {
		homes, listed := before, at >= w.listed[front]
		if listed {
			homes = after
		}
		if (homes[0] == self || homes[1] == self) && knows(self) {
			return at, true
		}
		for _, h := range homes {
			if h == self {
				continue
			}
			if w.dead[h.pod] {
				at += answerTimeout
			} else if at += roundTrip; knows(h) {
				return at, true
			}
			if !listed && at >= w.listed[front] { // search again
				at = min(at, max(w.listed[front], at-answerTimeout))
				break
			}
		}
		if listed || at < w.listed[front] {
			at += answerTimeout // the search has found no owner
		}
	}
	return at, false
}

// outcome is a row of the table.
type outcome struct {
	cutToday, cutForwarded float64 // percent
	median, longest        time.Duration
	held                   int // the number of clients in the largest index
}

func simulate(e event, seed uint64) (o outcome) {
	random := rand.New(rand.NewPCG(seed, 16))
	w := newEventPods(e, random)
	held := map[*pod]int{}
	var searches []time.Duration
	calls, cut := 0, 0
	for i := range *simulated {
		k := clientKey{low: uint64(i)<<16 | 0xFFFF<<48, port: uint16(random.Uint32()), listener: 3478}
		hash := random.Uint64()
		owner := e.before(hash, random)
		if owner >= len(w.before)-e.lost-e.drained {
			continue // the call has ended, or ends with its owner
		}
		calls++
		for _, h := range rank(w.before, k) {
			held[h.pod]++
		}
		front := e.after(hash, random, owner)
		if front == owner {
			continue
		}
		took, found := w.search(k, owner, front)
		if !found {
			cut++
			continue
		}
		searches = append(searches, took)
	}
	slices.Sort(searches)
	o.cutToday = 100 * float64(len(searches)+cut) / float64(calls)
	o.cutForwarded = 100 * float64(cut) / float64(calls)
	if len(searches) > 0 {
		o.median, o.longest = searches[len(searches)/2], searches[len(searches)-1]
	}
	for _, n := range held {
		o.held = max(o.held, n)
	}
	return o
}

// simulated is the number of sessions. The documented results are for a larger number: the race detector makes the
// simulation ten times slower.
var simulated = flag.Int("sessions", 100_000, "sessions of TestSimulation")

// TestSimulation prints which share of calls over UDP an event ends without and with forwarding. With 1,000,000
// sessions of 100 pods it takes less than a minute:
//
//	go test ./services/stunnerd/internal/forward -run Simulation -v -sessions 1000000
func TestSimulation(t *testing.T) {
	begin := time.Now()
	var table strings.Builder
	fmt.Fprintf(&table, "%-31s %-18s %9s %15s %10s %10s\n",
		"path to the pods", "event", "cut today", "with forwarding", "median", "longest")
	held := 0
	for i, e := range events() {
		o := simulate(e, uint64(i))
		held = max(held, o.held)
		fmt.Fprintf(&table, "%-31s %-18s %7.2f %% %13.2f %% %10v %10v\n",
			e.balancer, e.name, o.cutToday, o.cutForwarded, o.median, o.longest)
		if o.cutForwarded > 0 {
			t.Errorf("%s, %s: %.3f %% of calls are cut with forwarding, want none", e.balancer, e.name, o.cutForwarded)
		}
		if o.longest > e.mostSearch {
			t.Errorf("%s, %s: the longest search is %v, want at most %v", e.balancer, e.name, o.longest, e.mostSearch)
		}
		if o.cutToday < e.cut-0.15 || o.cutToday > e.cut+0.15 {
			t.Errorf("%s, %s: %.2f %% of calls move, want about %.2f %%", e.balancer, e.name, o.cutToday, e.cut)
		}
	}
	perPod := 2 * *simulated / simulatedPods
	t.Logf("%d sessions, %d pods, %v:\n%slargest index %d clients (mean %d); renewal %.0f clients/s a pod in frames of %d",
		*simulated, simulatedPods, time.Since(begin).Round(time.Millisecond), table.String(), held, perPod,
		float64(perPod)/renewEvery.Seconds(), batchSize/record4)
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("the simulation took %v", took)
	}
	if held > perPod*11/10 {
		t.Errorf("the largest index has %d clients, want about %d: the homes are uneven", held, perPod)
	}
}
