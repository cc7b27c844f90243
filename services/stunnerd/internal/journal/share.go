package journal

import (
	"cmp"
	"container/heap"
	"net/netip"
)

// class is a class of entries. Checks are removed first: without its checks a session continues, and the client repeats
// them. Without its other entries a session could not continue.
type class int

const (
	essential class = iota // allocations, permissions, channels
	checks
	classes
)

// A tier is a part of the capacity that is kept for clients with few bytes, as in ../session/ledger.go.
//
// The journal has a third holder beside user ID and source: the session. Where all clients share one user ID and one
// address, only the session distinguishes a client that stores little from a client that stores much.
type tier struct {
	// part is a divisor of the capacity. The tier begins when at most capacity/part is free, and capacity/part bytes
	// are "many".
	part int64
	// either refuses a client if its user ID or its source has many bytes. Without it, the tier refuses a client only
	// if both have many bytes.
	either bool
	// little admits a session that has at most little bytes, although its user ID and its source have many.
	little int64
}

var tiers = []tier{{part: 5, little: 600}, {part: 10}, {part: 50, either: true}}

// count is a number of bytes of each class.
type count [classes]int64

// upTo returns the bytes that entries of a class may not displace. Essential entries may displace checks.
func (c *count) upTo(k class) int64 {
	if k == essential {
		return c[essential]
	}
	return c[essential] + c[checks]
}

type holder struct {
	count
	sessions int
}

// share counts the bytes of one session in the journal. The zero share belongs to no session.
type share struct {
	count
	user, source *holder
}

// shares divide the capacity of the journal among sessions, user IDs and sources. They count the bytes that the live
// state has in a file, and decide whose entries are not stored.
type shares struct {
	capacity int64
	total    count
	users    map[string]*holder
	sources  map[netip.Prefix]*holder
}

func newShares() shares {
	return shares{users: map[string]*holder{}, sources: map[netip.Prefix]*holder{}}
}

// join adds a session without bytes, and returns its share.
func (s *shares) join(user string, source netip.Prefix) share {
	u, o := entry(s.users, user), entry(s.sources, source)
	u.sessions++
	o.sessions++
	return share{user: u, source: o}
}

// leave removes the share of a session.
func (s *shares) leave(of *share, user string, source netip.Prefix) {
	s.set(of, count{})
	if of.user.sessions--; of.user.sessions == 0 {
		delete(s.users, user)
	}
	if of.source.sessions--; of.source.sessions == 0 {
		delete(s.sources, source)
	}
}

// set replaces the bytes of a session.
func (s *shares) set(of *share, bytes count) {
	for k := range classes {
		more := bytes[k] - of.count[k]
		for _, c := range [...]*count{&s.total, &of.user.count, &of.source.count, &of.count} {
			c[k] += more
		}
	}
}

// admits reports whether a session may store n more bytes of a class.
func (s *shares) admits(of *share, k class, n int64) bool {
	free := s.capacity - s.total.upTo(k)
	if n <= 0 {
		return true
	}
	if n > free {
		return false
	}
	for _, t := range tiers {
		if free*t.part > s.capacity {
			return true
		}
		user, source := of.user.upTo(k)*t.part >= s.capacity, of.source.upTo(k)*t.part >= s.capacity
		if (user && source || t.either && (user || source)) && of.count[k]+n > t.little {
			return false
		}
	}
	return true
}

// most returns the maximum number of stored bytes that count for a class (see upTo). For essential entries the maximum
// is twice the capacity, because the capacity may have become smaller since they were stored. In that case the file is
// compacted in place.
func (s *shares) most(k class) int64 {
	if k == essential {
		return 2 * s.capacity
	}
	return s.capacity
}

// exceeded returns the class whose entries must be removed next, because it exceeds its limit.
func (s *shares) exceeded() (k class, ok bool) {
	for _, k := range [...]class{checks, essential} {
		if s.total[k] > 0 && s.total.upTo(k) > s.most(k) {
			return k, true
		}
	}
	return 0, false
}

// weights sort sessions. Entries of the first session are removed first. Sessions whose user ID and source both have
// many bytes are first, then sessions whose user ID or source has many bytes, then sessions that have many bytes
// themselves.
type weights struct {
	class class
	list  []weighted
}

type weighted struct {
	id   ID
	of   *share
	when [3]int64
}

func (w *weights) weigh(of *share) [3]int64 {
	user, source := of.user.count[w.class], of.source.count[w.class]
	return [3]int64{min(user, source), max(user, source), of.count[w.class]}
}

func (w *weights) add(id ID, of *share) { w.list = append(w.list, weighted{id, of, w.weigh(of)}) }

// next removes the heaviest session from the list. The caller removes its entries. Weights can only decrease, so a
// session is weighed again when it is the first.
func (w *weights) next() ID {
	for {
		first := &w.list[0]
		if now := w.weigh(first.of); now != first.when {
			first.when = now
			heap.Fix(w, 0)
			continue
		}
		return heap.Pop(w).(weighted).id
	}
}

func (w *weights) Len() int      { return len(w.list) }
func (w *weights) Swap(i, j int) { w.list[i], w.list[j] = w.list[j], w.list[i] }
func (w *weights) Push(any)      { panic("weights do not grow") }

func (w *weights) Less(i, j int) bool {
	a, b := &w.list[i], &w.list[j]
	return cmp.Or(cmp.Compare(b.when[0], a.when[0]), cmp.Compare(b.when[1], a.when[1]),
		cmp.Compare(b.when[2], a.when[2]), cmp.Compare(b.id, a.id)) < 0
}

func (w *weights) Pop() any {
	last := w.list[len(w.list)-1]
	w.list = w.list[:len(w.list)-1]
	return last
}

func entry[K comparable](m map[K]*holder, key K) *holder {
	h := m[key]
	if h == nil {
		h = new(holder)
		m[key] = h
	}
	return h
}
