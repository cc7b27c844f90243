// Package meter counts what the dataplane does: packets and bytes per listener and per cluster, refusals and drops per
// reason.
//
// What is counted for a packet of a channel is an atomic add on a counter that was looked up beforehand: names are resolved when a
// channel meets a new view of the routes, not per packet. Counters live as long as the process, so that a removed and returned listener goes on counting.
package meter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Flow counts one direction of a traffic.
type Flow struct {
	Packets, Bytes atomic.Uint64
}

// Add counts one packet of n bytes.
func (f *Flow) Add(n int) {
	f.Packets.Add(1)
	f.Bytes.Add(uint64(n))
}

// Traffic counts both directions, seen from this process.
type Traffic struct {
	Rx, Tx Flow
}

// Listener counts what passes one listener.
type Listener struct {
	// Name is the listener's.
	Name string
	Traffic
	// Open is the number of sockets that are open: the reading sockets of a UDP listener, the connections of a TCP one.
	Open atomic.Int64
	// Opened counts the sockets that were ever opened.
	Opened atomic.Uint64
}

// Meter holds every counter of the process. The zero Meter is not usable: call New.
type Meter struct {
	mu        sync.Mutex
	listeners map[string]*Listener
	clusters  map[string]*Traffic

	refusals [reasonCount]atomic.Uint64
	drops    [reasonCount]atomic.Uint64
	trail    *trail

	// ListenerDrops and RelayDrops count what the kernel dropped before stunnerd could read it.
	ListenerDrops, RelayDrops KernelDrops
	// Panics counts faults of this program that ended one session, or nothing.
	Panics atomic.Uint64
	faults faults

	// Sessions counts client sessions since start: connections of stream transports, and UDP 5-tuples that made an allocation.
	Sessions atomic.Uint64
	// Invalid counts configs that were kept out because a field is wrong, Unreadable those that are none, or not for this process.
	Invalid, Unreadable atomic.Uint64
	// UnknownFields counts the fields of applied configs that this release does not know.
	UnknownFields atomic.Uint64
	// Applied counts configs that were applied.
	Applied atomic.Uint64
}

// New returns a Meter that has counted nothing.
func New() *Meter {
	return &Meter{listeners: map[string]*Listener{}, clusters: map[string]*Traffic{}, trail: newTrail()}
}

// Listener returns the counters of the listener of that name.
func (m *Meter) Listener(name string) *Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := entry(m.listeners, name)
	if l.Name == "" { // it is new, and nobody else has it yet
		l.Name = name
	}
	return l
}

// Cluster returns the counters of the cluster of that name.
func (m *Meter) Cluster(name string) *Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return entry(m.clusters, name)
}

// Listeners returns a snapshot of all listeners' counters by name.
func (m *Meter) Listeners() map[string]*Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.listeners)
}

// Clusters returns a snapshot of all clusters' counters by name.
func (m *Meter) Clusters() map[string]*Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.clusters)
}

// Refuse counts a STUN request that was answered with an error.
func (m *Meter) Refuse(r Reason) { m.refusals[r].Add(1) }

// Drop counts a message or datagram that was dropped without an answer.
func (m *Meter) Drop(r Reason) { m.drops[r].Add(1) }

// Refusals returns how often each reason led to an error answer.
func (m *Meter) Refusals() map[string]uint64 { return counts(&m.refusals) }

// Drops returns how often each reason led to a silent drop.
func (m *Meter) Drops() map[string]uint64 { return counts(&m.drops) }

func entry[T any](m map[string]*T, name string) *T {
	e, ok := m[name]
	if !ok {
		e = new(T)
		m[name] = e
	}
	return e
}

func counts(c *[reasonCount]atomic.Uint64) map[string]uint64 {
	out := make(map[string]uint64)
	for r := range c {
		if n := c[r].Load(); n > 0 {
			out[Reason(r).String()] = n
		}
	}
	return out
}

// Reasons returns the names of all reasons, sorted: the bounded set of values of a metric's label.
func Reasons() []string { return slices.Sorted(slices.Values(reasons[:])) }
