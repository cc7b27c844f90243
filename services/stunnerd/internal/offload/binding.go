package offload

import (
	"cmp"
	"net/netip"
	"sync/atomic"
	"time"
)

// Flow counts the packets of one direction and the bytes of their payloads, without the headers of ChannelData.
type Flow struct {
	Packets, Bytes uint64
}

// Counters count the packets that the kernel has forwarded: Up from the client to the peer, Down from the peer to the
// client.
type Counters struct {
	Up, Down Flow
}

func (c Counters) minus(d Counters) Counters {
	return Counters{
		Up:   Flow{c.Up.Packets - d.Up.Packets, c.Up.Bytes - d.Up.Bytes},
		Down: Flow{c.Down.Packets - d.Down.Packets, c.Down.Bytes - d.Down.Bytes},
	}
}

// Entry describes one channel binding of one allocation.
type Entry struct {
	// Client is the address of the client, and Listener the local address to which it sends.
	Client, Listener netip.AddrPort
	Channel          uint16
	// Peer is the address of the peer, and Relay the local address of the relay socket. The address of Relay may be
	// unspecified or invalid, for a socket on the wildcard address: then it is the source address of the packets to the
	// peer. Before the first such packet, packets of the peer stay in user space: the programs cannot decide whether
	// their destination is an address of this host.
	Peer, Relay netip.AddrPort
	// Until is when the channel binding expires.
	Until time.Time
	// Permitted is when the permission of the peer expires. A packet of the client in this channel extends it to the
	// time of the packet plus Prolong.
	Permitted time.Time
	Prolong   time.Duration
	// Count is called with the packets since its last call, by Fold, End and Offload.Fold, and once more within two
	// seconds after the end for packets that were in progress. It must neither block nor call this package.
	Count func(Counters)
	// Share counts the slots of a client. It is called with 1 before a slot is used, and with -1 when its entry has
	// ended. It may be nil.
	Share Share
}

// Share limits the number of slots of a client.
type Share interface {
	// Add adds to the number of slots of the client. It returns an error, and adds nothing, if the client may not have
	// more. It must neither block nor call this package.
	Add(n int64) error
}

// Group is the set of bindings of one listener. They end together when its routes change.
type Group struct {
	table      *table
	index      uint32
	generation *uint64 // in mapped memory
	closed     atomic.Bool
}

// NewGroup returns a group without bindings. The group is nil, which is valid, if nothing is forwarded in the kernel or
// there are too many groups.
func (f *Offload) NewGroup() *Group {
	if f == nil || f.table == nil {
		return nil
	}
	return f.table.newGroup()
}

// Generation is the state of a Group between two calls of Group.Invalidate. Entries that were armed with a generation
// are invalid after the next call. It contains the group too, because the numbers of two groups may be equal. The zero
// Generation arms nothing.
type Generation struct {
	group  *Group
	number uint32
}

// Generation returns the current generation of the group. It is the zero Generation for a nil or closed group. It must
// be read before the view of the routes that is used to check an entry.
func (g *Group) Generation() Generation {
	if g == nil || g.closed.Load() {
		return Generation{}
	}
	return Generation{g, uint32(atomic.LoadUint64(g.generation))}
}

// IsZero reports whether nothing can be armed.
func (g Generation) IsZero() bool { return g.number == 0 }

// Current reports whether the group is open and was not invalidated.
func (g Generation) Current() bool { return !g.IsZero() && g == g.group.Generation() }

// Invalidate ends all entries of the group, at the instant of the call. Each binding can be armed again.
func (g *Group) Invalidate() {
	if g != nil && !g.closed.Load() {
		atomic.AddUint64(g.generation, 1)
	}
}

func (g *Group) Close() {
	if g != nil && !g.closed.Swap(true) {
		g.table.closeGroup(g)
	}
}

// Binding is the handle of one channel binding. The zero Binding is not armed. Methods may be called concurrently.
type Binding struct {
	record atomic.Pointer[record]
}

// Live reports whether the binding has an entry of this generation. It only reads a few values from memory.
func (b *Binding) Live(g Generation) bool {
	r := b.record.Load()
	return r != nil && !g.IsZero() && r.of(g.group) &&
		atomic.LoadUint32(&r.slot.generation) == g.number && atomic.LoadUint64(&r.slot.until) != 0 &&
		r.permitted.Load() == 0 // read last, because a released slot may belong to another binding
}

// Arm makes the kernel forward the packets of an entry. It reports false, and the packets stay in user space, if all
// slots are in use, if Entry.Share has no slot for the client, or if the kernel path does not support the entry: IPv4
// to IPv6, or addresses with a zone. Arming an entry again after Group.Invalidate only stores a few values in memory.
// Otherwise Arm makes two system calls. The fields Client, Listener, Channel, Peer and Relay must be the same for all
// entries of a binding.
func (g Generation) Arm(b *Binding, e Entry) bool {
	if g.IsZero() || g.group.closed.Load() {
		return false
	}
	if r := b.record.Load(); r != nil && r.of(g.group) && r.arm(g, &e) {
		return true
	}
	return g.group.table.arm(g, b, &e)
}

// Renew sets when the channel binding and the permission of its peer expire. It does nothing if the binding is not
// armed.
func (b *Binding) Renew(until, permitted time.Time) {
	if r := b.record.Load(); r != nil {
		r.renew(until, permitted)
	}
}

// Permitted returns when the permission of the peer expires. Packets of the client in the kernel have extended it. The
// value remains after Offload.Close. It is the zero Time if the binding was never armed.
func (b *Binding) Permitted() time.Time {
	if r := b.record.Load(); r != nil {
		inSlot := atomic.LoadUint64(&r.slot.permitted) // read first, because a released slot may change
		return r.table.offload.time(cmp.Or(r.permitted.Load(), inSlot))
	}
	return time.Time{}
}

// End ends the entry at once and calls its Count.
func (b *Binding) End() {
	if r := b.record.Swap(nil); r != nil {
		r.table.end(r)
	}
}

// Fold calls Count of the entry if the kernel has forwarded packets since the last call.
func (b *Binding) Fold() {
	if r := b.record.Load(); r != nil {
		r.fold()
	}
}

// Fold calls Count of every entry for which the kernel has forwarded packets since the last call.
func (f *Offload) Fold() {
	if f != nil && f.table != nil {
		f.table.foldAll()
	}
}
