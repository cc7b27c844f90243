// Package share divides limited resources among namespaces. A namespace that needs at most an equal share gets all that
// it needs, independent of the requests of other namespaces. The owner of the resources has priority for half of them.
package share

import (
	"cmp"
	"container/heap"
	"slices"
)

// Load is an amount of each limited resource. Its indexes are the constants Routes, Endpoints, Bytes and Names.
type Load [kinds]int

// The limited resources.
const (
	Routes = iota
	Endpoints
	Bytes
	Names
	kinds
)

// Plus returns the sum of two loads.
func (l Load) Plus(more Load) Load {
	for i := range l {
		l[i] += more[i]
	}
	return l
}

// Minus returns the difference of two loads.
func (l Load) Minus(less Load) Load {
	for i := range l {
		l[i] -= less[i]
	}
	return l
}

// Over returns the first resource whose amount in the load exceeds the limit; over is false if the load exceeds no
// limit.
func (l Load) Over(limit Load) (kind int, over bool) {
	for i := range l {
		if l[i] > limit[i] {
			return i, true
		}
	}
	return 0, false
}

// dominantShare returns the largest fraction of a limit that the load takes, over all resources.
func (l Load) dominantShare(limit Load) (most float64) {
	for i := range l {
		if l[i] > 0 {
			most = max(most, float64(l[i])/float64(max(limit[i], 1)))
		}
	}
	return most
}

// Claim is a request of a namespace for resources.
type Claim[T any] struct {
	Of T
	// MinCost is the minimum cost of the claim. If it fits into the limit, it is charged even if the claim is denied
	// after Measure, because measuring takes time as well.
	MinCost Load
	// Measure returns the cost of the claim, at least MinCost. It may be expensive, so it is called only if MinCost
	// fits into the limit.
	Measure func() Load
}

// Denied is a claim that does not fit.
type Denied[T any] struct {
	Of T
	// Kind is a resource whose limit the claim would exceed. Needed is the amount of this resource that the claim
	// needs.
	Kind, Needed int
	// Own means that the claim exceeds the limit of its namespace in Terms.Own.
	Own bool
}

// Terms are the limits of a division.
type Terms struct {
	// Limit is the limit of all claims together.
	Limit Load
	// Own are further limits of single namespaces.
	Own map[string]Load
	// Owner is the namespace to which the divided resources belong. Its claims are admitted first, up to half of Limit.
	Owner string
}

// ownerShare is the part of the limit that is reserved for the claims of the owner.
const ownerShare = 0.5

// Divide admits claims up to the limit by dominant resource fairness (Ghodsi et al. 2011). It repeatedly picks the
// namespace whose dominant share, including its next claim, is smallest. Therefore, of the resources that the owner
// does not need, a namespace that needs at most an equal part gets all that it needs, and so does an owner that needs
// at most half of the limit. The claims of a namespace are tried in their order. A claim that does not fit does not
// prevent later claims from being admitted. used is the load of each namespace.
func Divide[T any](t Terms, claims map[string][]Claim[T]) (admitted []T, denied []Denied[T], used map[string]Load) {
	q := make(queue[T], 0, len(claims))
	var all Load
	used = map[string]Load{}
	for namespace, remaining := range claims {
		p := &claimant[T]{namespace: namespace, remaining: remaining, owner: namespace == t.Owner, own: t.Limit}
		if own, bounded := t.Own[namespace]; bounded {
			p.own = own
		}
		denied = p.nextClaim(t.Limit, all, denied)
		if len(p.remaining) > 0 {
			q = append(q, p)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		p := q[0]
		next := p.remaining[0]
		cost := p.next
		if d, over := p.denies(next, cost, t.Limit, all); over {
			denied = append(denied, d)
			cost = next.MinCost
			if _, over := p.denies(next, cost, t.Limit, all); over {
				cost = Load{}
			}
		} else {
			admitted = append(admitted, next.Of)
		}
		all, p.used, p.remaining = all.Plus(cost), p.used.Plus(cost), p.remaining[1:]
		used[p.namespace] = p.used
		if denied = p.nextClaim(t.Limit, all, denied); len(p.remaining) > 0 {
			heap.Fix(&q, 0)
		} else {
			heap.Pop(&q)
		}
	}
	return admitted, denied, used
}

// claimant is a namespace with its remaining claims.
type claimant[T any] struct {
	namespace string
	remaining []Claim[T]
	owner     bool
	own, used Load
	// next is the cost of the first remaining claim.
	next Load
	// dominantShare is the dominant share of the namespace, including its next claim. It is negative if the claim is
	// within ownerShare of the owner.
	dominantShare float64
}

// denies reports whether a claim with a cost exceeds the limit of the namespace, or the limit of all namespaces.
func (p *claimant[T]) denies(c Claim[T], cost, limit, all Load) (Denied[T], bool) {
	if kind, over := p.used.Plus(cost).Over(p.own); over {
		return Denied[T]{c.Of, kind, cost[kind], p.own[kind] < limit[kind]}, true
	}
	kind, over := all.Plus(cost).Over(limit)
	return Denied[T]{c.Of, kind, cost[kind], false}, over
}

// nextClaim finds the first remaining claim whose MinCost fits into the limits, and measures it. The claims before it
// are denied.
func (p *claimant[T]) nextClaim(limit, all Load, denied []Denied[T]) []Denied[T] {
	for ; len(p.remaining) > 0; p.remaining = p.remaining[1:] {
		c := p.remaining[0]
		if d, over := p.denies(c, c.MinCost, limit, all); over {
			denied = append(denied, d)
			continue
		}
		p.next = c.Measure()
		p.dominantShare = p.used.Plus(p.next).dominantShare(limit)
		if p.owner && p.dominantShare <= ownerShare {
			p.dominantShare = -1
		}
		break
	}
	return denied
}

// Level returns the amount of a total that one namespace may have. wanted are the amounts that the other namespaces
// want. A namespace that wants less than an equal share gets all that it wants, and the rest is divided equally.
func Level(total int, wanted []int) int {
	others := slices.Sorted(slices.Values(wanted))
	for i, w := range others {
		if equal := total / (len(others) - i + 1); w > equal {
			return equal
		}
		total -= w
	}
	return total
}

// queue is a heap of namespaces, ordered by dominantShare.
type queue[T any] []*claimant[T]

func (q queue[T]) Len() int { return len(q) }
func (q queue[T]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].dominantShare, q[j].dominantShare), cmp.Compare(q[i].namespace, q[j].namespace)) < 0
}
func (q queue[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue[T]) Push(x any)   { *q = append(*q, x.(*claimant[T])) }
func (q *queue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
