package forward

import (
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// with less memory, each table has fewer clients. A client that is in all tables and in the caches of two readers
// uses at most PriceOfClient.
func TestPriceCoversClientsOfOtherPods(t *testing.T) {
	const clients, more = 10_000, 12_000
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	m := meter.New()
	before := used()
	f := &Forwarder{
		meter: m, clients: clients, index: index{held: map[clientKey]holding{}, clients: clients}, front: newFront(),
		pending: map[clientKey]change{}, quotas: newQuotas(), wake: make(chan struct{}, 1),
	}
	f.front.clients = clients
	caches := []*Outbox{f.Outbox(), f.Outbox()}
	owner := &pod{id: 1}
	f.view.Store(&view{self: owner, links: map[uint64]*link{2: {}}})
	v := &view{homes: []home{{pod: owner}, {pod: &pod{id: 2}}}}
	for i := range more {
		var source datagram.Source
		k := clientKey{low: uint64(i), port: uint16(i)}
		f.index.hold(k, 1, math.MaxInt64/2, true)
		if n := f.front.learn(k, owner, &source, 0); n != nil {
			caches[0].cache(k, n)
			caches[1].cache(k, n)
		}
		k.high = 1
		if s := f.front.search(v, k, &source, 0); s != nil {
			s.ask()
		}
		f.queue(k, Client{}, hold)
		var u User
		binary.BigEndian.PutUint64(u[:], uint64(i))
		f.Count(u, 1, false)
		f.store(u, count{sessions: 1, counter: 1})
	}
	price := (used() - before) / clients
	t.Logf("a client needs %d bytes, the price is %d", price, PriceOfClient)
	if price > PriceOfClient {
		t.Errorf("a client needs %d bytes, the price is %d", price, PriceOfClient)
	}
	for name, n := range map[string]int{
		"index": f.index.len(), "known": len(f.front.known), "searches": len(f.front.searches), "pending": len(f.pending),
		"changed": len(f.quotas.changed), "counts": f.quotas.counted,
	} {
		if n != clients {
			t.Errorf("%s has %d clients, want %d", name, n, clients)
		}
	}
	runtime.KeepAlive(caches)
}
