package offload

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// slot is struct slot of bpf/turn.c. Ports, the channel and addresses are in network byte order.
type slot struct {
	until, permitted, prolong                              uint64
	generation, group                                      uint32
	clientIf, peerIf                                       uint32
	clientMax, peerMax                                     uint32
	channel, clientPort, listenerPort, peerPort, relayPort [2]byte
	bound                                                  uint16
	hops                                                   uint32
	client, peer, listener, relay                          [16]byte
	upPackets, upBytes                                     uint64
	peerHop                                                hop
	_                                                      [4]uint64
	downPackets, downBytes                                 uint64
	clientHop                                              hop
	_                                                      [4]uint64
}

// hop is struct hop of bpf/turn.c.
type hop struct{ to, from uint64 }

// key is struct key of bpf/turn.c.
type key struct {
	remote                            [16]byte
	remotePort, localPort, channel, _ [2]byte
}

// downKey is struct down_key of bpf/turn.c.
type downKey struct {
	remote                [16]byte
	remotePort, localPort [2]byte
}

const (
	slotSize = 256
	// candidate is CANDIDATE of bpf/turn.c, a flag in the interfaces of a slot.
	candidate = 1 << 31
	// groupCount is the number of elements of the map generations. The first is not used.
	groupCount = 1024
	// rest is how long a slot stays unused after its end, because a packet that is being forwarded may still hold its
	// index.
	rest = time.Second
	// expireInterval is how often the entries are ended whose channel binding has expired.
	expireInterval = 10 * time.Second
)

var _ = [1]struct{}{}[unsafe.Sizeof(slot{})-slotSize]

// table holds the slots, groups and keys.
type table struct {
	offload     *Offload
	up, down    *ebpf.Map
	slots       []slot   // in mapped memory
	generations []uint64 // in mapped memory

	records []atomic.Pointer[record] // by slot; a record stays until the rest time of its slot ends
	room    atomic.Int64             // free and unused slots

	mu      sync.Mutex // guards the fields below and the maps
	unused  int        // the first slot that was never used
	free    []uint32
	resting []*record // in the order of their ends
	groups  []uint32  // indexes of closed groups
	count   int
	highest uint32 // index of a group
	closed  bool

	expired time.Time // when expire was last called; only sweep uses it
}

// record is one use of a slot.
type record struct {
	table *table
	slot  *slot
	index uint32
	group uint32
	key   key
	down  downKey
	count func(Counters)
	share Share // nil if the slot is not counted

	permitted atomic.Uint64 // of the slot when it was released; 0 before

	mu       sync.Mutex
	ended    time.Time // zero while armed
	released bool      // the slot belongs to another record, or its memory is gone
	seen     Counters
}

func newTable(f *Offload, k *kernel) *table {
	t := &table{
		offload: f, up: k.collection.Maps["up"], down: k.collection.Maps["down"],
		slots: k.slots, generations: k.generations,
		records: make([]atomic.Pointer[record], len(k.slots)),
	}
	t.room.Store(int64(len(k.slots)))
	return t
}

func (t *table) armed() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

func (t *table) newGroup() *Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := &Group{table: t}
	switch n := len(t.groups); {
	case n > 0:
		g.index, t.groups = t.groups[n-1], t.groups[:n-1]
	case t.highest < groupCount-1:
		t.highest++
		g.index = t.highest
	default:
		return nil
	}
	g.generation = &t.generations[g.index]
	atomic.AddUint64(g.generation, 1)
	return g
}

func (t *table) closeGroup(g *Group) {
	atomic.AddUint64(g.generation, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.groups = append(t.groups, g.index)
}

func port(p uint16) [2]byte { return [2]byte{byte(p >> 8), byte(p)} }

// supported reports whether the programs can forward the packets of an entry. It unmaps the addresses.
func (e *Entry) supported() bool {
	for _, a := range []*netip.AddrPort{&e.Client, &e.Listener, &e.Peer, &e.Relay} {
		*a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	four := e.Client.Addr().Is4()
	for _, a := range []netip.Addr{e.Client.Addr(), e.Listener.Addr(), e.Peer.Addr()} {
		if !a.IsValid() || a.IsUnspecified() || a.Zone() != "" || a.Is4() != four {
			return false
		}
	}
	relay := e.Relay.Addr()
	return !relay.IsValid() || relay.IsUnspecified() || relay.Zone() == "" && relay.Is4() == four
}

func (t *table) arm(g Generation, b *Binding, e *Entry) bool {
	if t.room.Load() <= 0 {
		t.offload.exhausted.Add(1)
		return false
	}
	if !e.supported() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := b.record.Load(); r != nil {
		if r.of(g.group) && r.arm(g, e) { // another goroutine has armed the binding meanwhile
			return true
		}
		b.record.Store(nil)
		if r.table == t {
			t.endLocked(r)
		} else {
			r.table.end(r) // of an earlier Offload
		}
	}
	if t.closed {
		return false
	}
	if e.Share != nil && e.Share.Add(1) != nil {
		t.offload.exhausted.Add(1)
		return false
	}
	index, ok := t.take()
	if !ok {
		if e.Share != nil {
			_ = e.Share.Add(-1)
		}
		t.offload.exhausted.Add(1)
		return false
	}
	r := &record{table: t, slot: &t.slots[index], index: index, group: g.group.index, count: e.Count, share: e.Share}
	r.key = key{
		remote: e.Client.Addr().As16(), remotePort: port(e.Client.Port()), localPort: port(e.Listener.Port()),
		channel: port(e.Channel),
	}
	r.down = downKey{remote: e.Peer.Addr().As16(), remotePort: port(e.Peer.Port()), localPort: port(e.Relay.Port())}
	*r.slot = slot{
		prolong: uint64(e.Prolong), group: r.group, channel: r.key.channel, client: r.key.remote, peer: r.down.remote,
		listener: e.Listener.Addr().As16(), clientPort: r.key.remotePort, listenerPort: r.key.localPort,
		peerPort: r.down.remotePort, relayPort: r.down.localPort,
	}
	if a := e.Relay.Addr(); a.IsValid() && !a.IsUnspecified() {
		r.slot.relay, r.slot.bound = a.As16(), 1
	}
	if t.offload.options.Engine == EngineXDP {
		r.slot.hops = 1
	}
	t.records[index].Store(r)
	t.count++
	r.arm(g, e)
	if t.up.Put(&r.key, index) != nil || t.down.Put(&r.down, index) != nil {
		t.endLocked(r)
		return false
	}
	b.record.Store(r)
	return true
}

// take returns a slot that is not in use.
func (t *table) take() (index uint32, ok bool) {
	switch n := len(t.free); {
	case n > 0:
		index, t.free = t.free[n-1], t.free[:n-1]
	case t.unused < len(t.slots):
		index = uint32(t.unused)
		t.unused++
	default:
		return 0, false
	}
	t.room.Add(-1)
	return index, true
}

// of reports whether a record belongs to a group. Groups of two Offloads may have the same index.
func (r *record) of(g *Group) bool { return r.table == g.table && r.group == g.index }

// arm stores the fields that may differ between two entries of one binding. It reports false if the slot has ended.
func (r *record) arm(g Generation, e *Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		return false
	}
	r.prolong(e.Until, e.Permitted)
	atomic.StoreUint32(&r.slot.generation, g.number)
	return true
}

// prolong stores when the channel binding and the permission expire. The BPF program may have extended the permission
// further.
func (r *record) prolong(until, permitted time.Time) {
	f := r.table.offload
	permittedNS := max(f.nanoseconds(permitted), atomic.LoadUint64(&r.slot.permitted))
	atomic.StoreUint64(&r.slot.permitted, permittedNS)
	atomic.StoreUint64(&r.slot.until, f.nanoseconds(until))
}

func (r *record) renew(until, permitted time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended.IsZero() {
		r.prolong(until, permitted)
	}
}

func (t *table) end(r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(r)
}

func (t *table) endLocked(r *record) {
	if !r.stop() {
		return
	}
	t.count--
	t.resting = append(t.resting, r)
	// A key may lead to the slot of a later binding, for example after a channel was bound to another peer.
	var index uint32
	if t.up.Lookup(&r.key, &index) == nil && index == r.index {
		_ = t.up.Delete(&r.key)
	}
	if t.down.Lookup(&r.down, &index) == nil && index == r.index {
		_ = t.down.Delete(&r.down)
	}
	r.fold()
}

// stop ends the entry. It reports false if it was ended before.
func (r *record) stop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		return false
	}
	atomic.StoreUint64(&r.slot.until, 0)
	r.ended = time.Now()
	if r.share != nil {
		_ = r.share.Add(-1)
	}
	return true
}

// fold passes the packets and bytes that the kernel has relayed since the last call to count.
func (r *record) fold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return
	}
	now := Counters{
		Up:   Flow{atomic.LoadUint64(&r.slot.upPackets), atomic.LoadUint64(&r.slot.upBytes)},
		Down: Flow{atomic.LoadUint64(&r.slot.downPackets), atomic.LoadUint64(&r.slot.downBytes)},
	}
	if now == r.seen {
		return
	}
	if r.count != nil {
		r.count(now.minus(r.seen))
	}
	r.seen = now
}

// foldAll calls fold for all slots. Arm and End need not wait for it.
func (t *table) foldAll() {
	t.mu.Lock()
	used := t.unused
	t.mu.Unlock()
	for i := range used {
		if r := t.records[i].Load(); r != nil {
			r.fold()
		}
	}
}

// expire ends the entries whose channel binding has expired, so that their slots become available while their sessions
// go on. If an entry is renewed at the same time, its next packet arms it again.
func (t *table) expire(now time.Time) {
	t.mu.Lock()
	used := t.unused
	t.mu.Unlock()
	ns := t.offload.nanoseconds(now)
	for i := range used {
		if r := t.records[i].Load(); r != nil {
			if until := atomic.LoadUint64(&r.slot.until); until != 0 && until <= ns {
				t.end(r)
			}
		}
	}
}

// sweep makes slots available after their rest time. Every expireInterval it also ends expired entries.
func (t *table) sweep(now time.Time) {
	if now.Sub(t.expired) >= expireInterval {
		t.expired = now
		t.expire(now)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for ; n < len(t.resting) && now.Sub(t.resting[n].ended) >= rest; n++ {
		r := t.resting[n]
		r.fold()
		r.release()
		t.records[r.index].Store(nil)
		t.free = append(t.free, r.index)
		t.room.Add(1)
	}
	if t.resting = t.resting[n:]; len(t.resting) == 0 {
		t.resting = nil
	}
}

func (r *record) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.permitted.Store(atomic.LoadUint64(&r.slot.permitted))
	r.released = true
}

// releaseAll copies the state of all records out of their slots, so that the memory of the slots can be freed.
func (t *table) releaseAll() {
	for i := range t.records {
		if r := t.records[i].Load(); r != nil {
			r.release()
		}
	}
}

// relearn makes the BPF programs learn the paths to clients and peers again, if a change affects these paths.
func (t *table) relearn(c *change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.unused {
		s := &t.slots[i]
		relearn(c, &s.clientIf, &s.clientMax, s.client)
		relearn(c, &s.peerIf, &s.peerMax, s.peer)
	}
}

func relearn(c *change, interfaceIndex, longest *uint32, address [16]byte) {
	if c.concerns(atomic.LoadUint32(interfaceIndex)&^candidate, address) {
		atomic.StoreUint32(interfaceIndex, 0)
		atomic.StoreUint32(longest, 0)
	}
}

// close ends all entries. Their keys end with the maps.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.room.Store(0)
	for i := range t.unused {
		if r := t.records[i].Load(); r != nil && r.stop() {
			t.count--
		}
	}
}
