// Package meter counts packets, bytes, refusals and drops.
//
// A relay looks up the counters of a channel once for each view of the routes, and not for each datagram. A counter
// lives as long as the process, so a listener that is removed and added again continues to count.
//
// # Files
//
//	meter.go            counters of traffic
//	reason.go words.go  reasons of refusals and drops, and their texts
//	recent.go           the latest refusals and drops
//	refusallog.go       their log lines
//	unrestored.go       sessions that were not restored
//	fault.go kernel.go  panics; drops of the kernel
package meter

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Flow counts the packets of one direction.
type Flow struct {
	Packets, Bytes atomic.Uint64
}

// Add counts one packet of n bytes.
func (f *Flow) Add(n int) {
	f.Packets.Add(1)
	f.Bytes.Add(uint64(n))
}

// AddSum counts the packets of a sum.
func (f *Flow) AddSum(s Sum) {
	if s.Packets > 0 {
		f.Packets.Add(s.Packets)
		f.Bytes.Add(s.Bytes)
	}
}

// Sum is the number of packets of one batch, and of their bytes. It is not safe for concurrent use.
type Sum struct {
	Packets, Bytes uint64
}

// Add counts one packet of n bytes.
func (s *Sum) Add(n int) {
	s.Packets++
	s.Bytes += uint64(n)
}

// Tally collects the packets of a batch, so that the batch changes each Flow only once. Several processors share the
// Flows. The zero Tally is empty. It is not safe for concurrent use.
type Tally struct {
	entries []tallied
}

// tallied is the packets of one flow.
type tallied struct {
	flow *Flow
	sum  Sum
}

// Add counts one packet of n bytes. The search is linear, because a batch has few flows.
func (t *Tally) Add(f *Flow, n int) {
	for i := range t.entries {
		if t.entries[i].flow == f {
			t.entries[i].sum.Add(n)
			return
		}
	}
	t.entries = append(t.entries, tallied{f, Sum{1, uint64(n)}})
}

// Flush adds the packets to their flows, and empties the Tally.
func (t *Tally) Flush() {
	for i := range t.entries {
		t.entries[i].flow.AddSum(t.entries[i].sum)
	}
	clear(t.entries)
	t.entries = t.entries[:0]
}

// Traffic counts both directions: Rx is received by this process, Tx is sent by it.
type Traffic struct {
	Rx, Tx Flow
}

// Listener counts the traffic of one listener.
type Listener struct {
	// Name is the name of the listener.
	Name string
	Traffic
	// Open is the number of open sockets: the receiving sockets of a UDP listener, or the connections of any other
	// listener.
	Open atomic.Int64
	// Opened counts all sockets since the start.
	Opened atomic.Uint64
}

// Meter holds all counters of the process. Use New.
type Meter struct {
	mu        sync.Mutex
	listeners map[string]*Listener
	clusters  map[string]*Traffic

	refusals [reasonCount]atomic.Uint64
	drops    [reasonCount]atomic.Uint64
	recent   *recentDrops
	lines    *RefusalLog

	// ListenerDrops and RelayDrops count datagrams that the kernel dropped before stunnerd read them.
	ListenerDrops, RelayDrops KernelDrops
	// Offloaded counts the packets that the kernel has forwarded, seen from the relay: Rx from peers, Tx to peers. They
	// are also in the counters of listeners, clusters and sessions.
	Offloaded Traffic
	// ICMPErrors counts ICMP messages about packets to peers.
	ICMPErrors atomic.Uint64
	// Panics counts the panics that were recovered.
	Panics atomic.Uint64
	faults faults

	elsewhere atomic.Pointer[func()]

	// IgnoredFamilies counts REQUESTED-ADDRESS-FAMILY attributes after the MESSAGE-INTEGRITY of a request.
	// IgnoredOthers counts all other attributes there.
	IgnoredFamilies, IgnoredOthers atomic.Uint64

	// Sessions counts the sessions since the start of the process: connections, and UDP clients that created an
	// allocation.
	Sessions atomic.Uint64
	// UnknownFields counts the fields of applied configs that this release does not know.
	UnknownFields atomic.Uint64
	// Applied counts configs that were applied.
	Applied atomic.Uint64
	// Restored counts the sessions of a previous process that were restored.
	Restored atomic.Uint64
	// SessionsTaken counts the sessions that other pods have handed over to this pod. SessionsHanded counts the
	// sessions that this pod has handed over.
	SessionsTaken, SessionsHanded atomic.Uint64
	// SessionsAdopted counts the sessions that this pod has handed over to the pods at which the datagrams of their
	// clients arrive. SessionsNotAdopted counts the attempts that were refused.
	SessionsAdopted, SessionsNotAdopted atomic.Uint64
	// SessionsRescued counts the sessions of lost pods that this pod has taken over. SessionsGivenUp counts the
	// sessions of this pod that have ended because another pod has taken them over.
	SessionsRescued, SessionsGivenUp atomic.Uint64
	// PeersMoved counts the peers of sessions of another pod that have accepted the new relayed address in time.
	// PeersNotMoved counts the others.
	PeersMoved, PeersNotMoved atomic.Uint64
	// QuotaAdmitted and QuotaRefused count the allocations that the pods of the Gateway have admitted and refused
	// because of a limit of their user. QuotaUnanswered counts the allocations for which no other pod has answered.
	QuotaAdmitted, QuotaRefused, QuotaUnanswered atomic.Uint64
}

// New returns a Meter whose counters are zero.
func New() *Meter {
	m := &Meter{listeners: map[string]*Listener{}, clusters: map[string]*Traffic{}, recent: newRecentDrops()}
	m.lines = NewRefusalLog(nil, func(r Reason) uint64 { return m.refusals[r].Load() + m.drops[r].Load() })
	return m
}

// CountElsewhere sets a function that adds packets that are counted outside of this package, such as in the kernel.
// Refresh calls it.
func (m *Meter) CountElsewhere(add func()) { m.elsewhere.Store(&add) }

// Refresh updates the counters. It must be called before Traffic is read.
func (m *Meter) Refresh() {
	if add := m.elsewhere.Load(); add != nil {
		(*add)()
	}
}

// Listener returns the counters of a listener.
func (m *Meter) Listener(name string) *Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := entry(m.listeners, name)
	if l.Name == "" { // a new listener
		l.Name = name
	}
	return l
}

// Cluster returns the counters of a cluster.
func (m *Meter) Cluster(name string) *Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return entry(m.clusters, name)
}

// maxFormer is the maximum number of removed listeners, and of removed clusters, whose counters are kept. Each name is
// a time series of the metrics. Users who create and delete routes can cause any number of names.
const maxFormer = 512

// Keep removes the counters of listeners and clusters that are no longer in the config, if there are more than
// maxFormer of them. If a later config contains a removed name, its counters start at 0.
func (m *Meter) Keep(listeners, clusters []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keep(m.listeners, listeners)
	keep(m.clusters, clusters)
}

// keep removes entries that are not in names from a map, until at most maxFormer of them are left.
func keep[T any](m map[string]*T, names []string) {
	former := maps.Clone(m)
	for _, name := range names {
		delete(former, name)
	}
	for name := range former {
		if len(former) <= maxFormer {
			return
		}
		delete(former, name)
		delete(m, name)
	}
}

// Listeners returns the counters of all listeners by name.
func (m *Meter) Listeners() map[string]*Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.listeners)
}

// Clusters returns the counters of all clusters by name.
func (m *Meter) Clusters() map[string]*Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.clusters)
}

// Refuse counts a STUN request that was answered with an error.
func (m *Meter) Refuse(r Reason) { m.refusals[r].Add(1) }

// Drop counts a message or datagram that was dropped without an answer.
func (m *Meter) Drop(r Reason) { m.drops[r].Add(1) }

// Decline counts and logs an event of a Family other than Clients.
func (m *Meter) Decline(r Reason, n Note) {
	m.drops[r].Add(1)
	m.lines.Note(r, n)
}

// Refusals returns the number of refusals by reason.
func (m *Meter) Refusals() map[string]uint64 { return counts(&m.refusals, Clients) }

// Drops returns the number of drops by reason.
func (m *Meter) Drops() map[string]uint64 { return m.Declined(Clients) }

// Declined returns the number of drops by reason of a family.
func (m *Meter) Declined(f Family) map[string]uint64 { return counts(&m.drops, f) }

func entry[T any](m map[string]*T, name string) *T {
	e, ok := m[name]
	if !ok {
		e = new(T)
		m[name] = e
	}
	return e
}

func counts(c *[reasonCount]atomic.Uint64, f Family) map[string]uint64 {
	out := make(map[string]uint64)
	for r := range c {
		if n := c[r].Load(); n > 0 && Reason(r).Family() == f {
			out[Reason(r).String()] = n
		}
	}
	return out
}
