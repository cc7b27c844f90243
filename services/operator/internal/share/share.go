// Package share divides limited resources among namespaces. A namespace that needs at most an equal share gets all that
// it needs, no matter how much other namespaces request.
package share

import (
	"cmp"
	"container/heap"
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
	// MinCost is the minimum cost of the claim. It is charged, as far as the limit has room, even if the claim is
	// denied after Measure, because measuring takes time as well.
	MinCost Load
	// Measure returns the cost of the claim, at least MinCost. It may be expensive, so it is called only if the limit
	// has room for MinCost.
	Measure func() Load
}

// Denied is a claim that does not fit.
type Denied[T any] struct {
	Of T
	// Kind is a resource whose limit the claim would exceed. Needed is the amount of this resource that the claim
	// needs.
	Kind, Needed int
}

// Divide admits claims up to the limit by dominant resource fairness (Ghodsi et al. 2011). It repeatedly picks the
// namespace whose dominant share, including its next claim, is smallest. Therefore, a namespace that needs at most the
// limit divided by the number of namespaces gets all that it needs. The claims of a namespace are tried in their order.
// A claim that does not fit does not prevent later claims from being admitted.
func Divide[T any](limit Load, claims map[string][]Claim[T]) (admitted []T, denied []Denied[T], used Load) {
	q := make(queue[T], 0, len(claims))
	for namespace, all := range claims {
		p := &claimant[T]{namespace: namespace, remaining: all}
		denied = p.nextClaim(limit, used, denied)
		if len(p.remaining) > 0 {
			q = append(q, p)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		p := q[0]
		next := p.remaining[0]
		cost := p.next
		if kind, over := used.Plus(cost).Over(limit); over {
			denied = append(denied, Denied[T]{next.Of, kind, cost[kind]})
			cost = next.MinCost
			if _, over := used.Plus(cost).Over(limit); over {
				cost = Load{}
			}
		} else {
			admitted = append(admitted, next.Of)
		}
		used, p.used, p.remaining = used.Plus(cost), p.used.Plus(cost), p.remaining[1:]
		if denied = p.nextClaim(limit, used, denied); len(p.remaining) > 0 {
			heap.Fix(&q, 0)
		} else {
			heap.Pop(&q)
		}
	}
	return admitted, denied, used
}

// claimant is a namespace with the claims that are left.
type claimant[T any] struct {
	namespace string
	remaining []Claim[T]
	used      Load
	// next is the cost of the first claim that is left.
	next Load
	// dominantShare is the dominant share of the namespace, including its next claim.
	dominantShare float64
}

// nextClaim finds the first remaining claim whose MinCost fits into the limit, and measures it. The claims before it
// are denied.
func (p *claimant[T]) nextClaim(limit, used Load, denied []Denied[T]) []Denied[T] {
	for ; len(p.remaining) > 0; p.remaining = p.remaining[1:] {
		c := p.remaining[0]
		if kind, over := used.Plus(c.MinCost).Over(limit); over {
			denied = append(denied, Denied[T]{c.Of, kind, c.MinCost[kind]})
			continue
		}
		p.next = c.Measure()
		p.dominantShare = p.used.Plus(p.next).dominantShare(limit)
		break
	}
	return denied
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
