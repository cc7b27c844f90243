package forward

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// The day that TestCallsThatEndInADay simulates: 1,000,000 sessions at a time in 100 pods. Durations are log-normal.
const (
	daySessions  = 1_000_000
	medianCall   = 12 * time.Minute
	meanCall     = 25 * time.Minute
	shareUDP     = 0.92
	shareTaking  = 0.85 // the share of peers that accept another relayed address
	perPod       = daySessions / simulatedPods
	repeatedDays = 15 // the expected number of each event in this time is an integer
)

// disturbance is an event that concerns the sessions of one pod.
type disturbance struct {
	name string
	// events is how many times the event occurs in repeatedDays. share is the part of the sessions of the pod that the
	// event concerns.
	events int
	share  float64
	// notice is the time from SIGTERM to the end of the process; 0 means that there is no SIGTERM.
	notice time.Duration
	// back is set if a process continues with the journal of the earlier one. lost is set if the pod ends without a
	// successor.
	back, lost bool
}

var disturbances = []disturbance{
	{name: "process crash", events: 5 * repeatedDays, share: 1, back: true},
	{name: "container restart", events: 2 * repeatedDays, share: 1, back: true},
	{name: "rolling update, drain 1 h", events: simulatedPods * repeatedDays / 3, share: 1, notice: time.Hour},
	{name: "scale-in, drain 1 h", events: 20 * repeatedDays, share: 0.5, notice: time.Hour},
	{name: "spot node, 2 min notice", events: 2 * repeatedDays, share: 1, notice: 2 * time.Minute},
	{name: "node lost", events: repeatedDays / 5, share: 1, lost: true},
}

// daySession is a session at the time of a disturbance.
type daySession struct {
	client      clientKey
	udp, taking bool
	age, left   time.Duration
}

// newDaySession returns a session that exists at a random moment. Long sessions are more frequent among these than
// among all sessions of a day.
func newDaySession(random *rand.Rand, spread float64) daySession {
	all := medianCall.Seconds() * math.Exp(spread*spread+spread*random.NormFloat64())
	age := all * random.Float64()
	return daySession{
		client: clientKey{low: random.Uint64()<<16 | 0xFFFF<<48, port: uint16(random.Uint32()), listener: 3478},
		udp:    random.Float64() < shareUDP, taking: random.Float64() < shareTaking,
		age: time.Duration(age * float64(time.Second)), left: time.Duration((all - age) * float64(time.Second)),
	}
}

// cutBy is the cause of the end of a call.
type cutBy int

const (
	// goesOn: the call does not end.
	goesOn cutBy = iota
	// withoutMoves: only a move of the session would continue the call.
	withoutMoves
	// connected: the client uses a connection, which ends in the process.
	connected
	// notTaking: the peer accepts no other relayed address than the one of the pod.
	notTaking
	// noCopy: no living pod has a copy.
	noCopy
	causes
)

// cut returns why the call of a session at a pod ends. If moves is set, pods hand over sessions and copy them.
func (d disturbance) cut(s daySession, w *eventPods, owner home, moves bool) cutBy {
	switch {
	case d.back && s.udp: // restored from the journal
		return goesOn
	case !d.back && !d.lost && s.left <= d.notice: // ends before the process
		return goesOn
	case !s.udp:
		return connected
	case !moves:
		return withoutMoves
	case !s.taking:
		return notTaking
	case !d.lost: // handed over
		return goesOn
	case s.age < copyEvery:
		return noCopy
	}
	for _, h := range rank(w.before, s.client) {
		if h != owner && h.pod != nil && !w.dead[h.pod] {
			return goesOn // a home has the copy
		}
	}
	return noCopy
}

// total returns the number of calls that end.
func total(by [causes]int) (n int) {
	for why, calls := range by {
		if cutBy(why) != goesOn {
			n += calls
		}
	}
	return n
}

// TestCallsThatEndInADay prints how many calls of a day end because of disturbances of pods, nodes and balancers. It
// prints the number for forwarding with the journal, and the number for forwarding with the journal, moves and copies.
// For the latter it prints the number by reason, too. The numbers of events are assumptions. Homes, copies and searches
// work as in the product:
//
//	go test ./services/stunnerd/internal/forward -run TestCallsThatEndInADay -v
func TestCallsThatEndInADay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	spread := math.Sqrt(2 * math.Log(meanCall.Seconds()/medianCall.Seconds()))
	calls := float64(daySessions) * (24 * time.Hour).Seconds() / meanCall.Seconds()
	var table strings.Builder
	fmt.Fprintf(&table, "%-47s %10s %16s %11s %9s %8s\n",
		"cause", "forwarding", "moves and copies", "connection", "peer", "no copy")
	var before, after float64
	row := func(name string, stays, moves float64, by [causes]int) {
		each := func(why cutBy) float64 { return float64(by[why]) / repeatedDays }
		fmt.Fprintf(&table, "%-47s %10.0f %16.0f %11.0f %9.0f %8.0f\n",
			name, stays, moves, each(connected), each(notTaking), each(noCopy))
		before, after = before+stays, after+moves
	}
	for _, d := range disturbances {
		var stays, moved [causes]int
		for range d.events {
			lost := 0
			if d.lost {
				lost = 1
			}
			w := newEventPods(event{lost: lost}, random)
			owner := w.before[len(w.before)-1]
			for range int(d.share * perPod) {
				s := newDaySession(random, spread)
				stays[d.cut(s, &w, owner, false)]++
				moved[d.cut(s, &w, owner, true)]++
			}
		}
		row(d.name, float64(total(stays))/repeatedDays, float64(total(moved))/repeatedDays, moved)
	}
	spreads := map[string]float64{"flow table lost": 4, "-1 node": 10} // a day
	for i, e := range events() {
		if times, ok := spreads[e.name]; ok && e.balancer == "cloud balancer, policy Cluster" {
			cut := times * simulate(e, uint64(i)).cutForwarded / 100 * daySessions
			row(e.balancer+", "+e.name, cut, cut, [causes]int{})
		}
	}
	share := 100 * after / calls
	t.Logf("%.0f calls a day:\n%sshare of the calls: %.3f %%, and %.3f %%", calls, table.String(), 100*before/calls, share)
	if share > 0.06 {
		t.Errorf("%.3f %% of the calls are cut, want at most 0.06 %%", share)
	}
}
