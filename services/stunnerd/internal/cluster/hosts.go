package cluster

import (
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// hostTable contains the grants of single addresses, in buckets by the hash of the address. It is immutable. A change
// copies the buckets of the changed addresses and shares the others, so that one changed endpoint of thousands is
// cheap.
type hostTable struct {
	// The number of buckets is a power of two. In each bucket, the grants of one address are in the order of the
	// clusters in the config.
	buckets [][]hostGrant
	size    int
}

// hostGrant is a grant of one address.
type hostGrant struct {
	addr netip.Addr
	grant
}

const (
	// bucketSize is the number of grants of a bucket in a new table, on average.
	bucketSize = 8
	// maxBucketSize is the maximum average number of grants in a bucket. A changed table that exceeds it is rebuilt.
	maxBucketSize = 4 * bucketSize
)

// hostSeed makes the buckets unpredictable. Otherwise the owner of a route could fill one bucket.
var hostSeed = maphash.MakeSeed()

// newHostTable returns a table of grants. The grants of one address keep the order of the argument.
func newHostTable(grants []hostGrant) hostTable {
	count := 1
	for count*bucketSize < len(grants) {
		count *= 2
	}
	t := hostTable{buckets: make([][]hostGrant, count), size: len(grants)}
	ends := make([]int, count+1)
	places := make([]int32, len(grants))
	for i, g := range grants {
		places[i] = int32(t.place(g.addr))
		ends[places[i]+1]++
	}
	for i := range count {
		ends[i+1] += ends[i]
	}
	all := make([]hostGrant, len(grants))
	for i := range t.buckets {
		t.buckets[i] = all[ends[i]:ends[i]:ends[i+1]]
	}
	for i, g := range grants {
		t.buckets[places[i]] = append(t.buckets[places[i]], g)
	}
	return t
}

// place returns the bucket index of an address.
func (t hostTable) place(addr netip.Addr) int {
	bytes := addr.As16()
	return int(maphash.Bytes(hostSeed, bytes[:])) & (len(t.buckets) - 1)
}

// bucket returns the bucket that contains the grants of an address, among others.
func (t hostTable) bucket(addr netip.Addr) []hostGrant {
	if len(t.buckets) == 0 {
		return nil
	}
	return t.buckets[t.place(addr)]
}

// with returns a copy of the table in which the removed grants of a cluster are replaced by the added grants. It
// returns false if the table does not contain a removed grant, or if the table should be rebuilt.
func (t hostTable) with(removed, added []hostGrant) (next hostTable, ok bool) {
	changes := len(removed) + len(added)
	if t.size+len(added) > maxBucketSize*len(t.buckets) || changes > len(t.buckets) {
		return t, changes == 0
	}
	next = hostTable{buckets: slices.Clone(t.buckets), size: t.size + len(added) - len(removed)}
	own := make(map[int]bool, changes) // buckets that were copied for this change
	for i, g := range slices.Concat(removed, added) {
		place := t.place(g.addr)
		if !own[place] {
			next.buckets[place], own[place] = slices.Clone(next.buckets[place]), true
		}
		if i >= len(removed) {
			next.buckets[place] = insert(next.buckets[place], g)
			continue
		}
		at := slices.Index(next.buckets[place], g)
		if at < 0 {
			return t, false
		}
		next.buckets[place] = slices.Delete(next.buckets[place], at, at+1)
	}
	return next, true
}

// insert adds a grant in config order: before the grants of the same address that belong to later clusters, or to later
// endpoints of the same cluster.
func insert(bucket []hostGrant, g hostGrant) []hostGrant {
	at := len(bucket)
	for i, other := range bucket {
		if other.addr == g.addr && g.before(other) {
			at = i
			break
		}
	}
	return slices.Insert(bucket, at, g)
}

// before reports whether a grant is in the config before another grant of the same address.
func (g hostGrant) before(other hostGrant) bool {
	if g.cluster.order != other.cluster.order {
		return g.cluster.order < other.cluster.order
	}
	return other.ports != config.AllPorts && (g.ports == config.AllPorts || g.ports.String() < other.ports.String())
}
