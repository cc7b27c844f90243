// Package share divides limited resources among namespaces. A namespace that needs at most an equal share gets all that
// it needs, whatever other namespaces request.
package share

import (
	"cmp"
	"container/heap"
)

// Load is an amount of each limited resource, indexed by the constants below.
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

// Over returns the first resource of which the load exceeds the limit; false if there is none.
func (l Load) Over(limit Load) (kind int, over bool) {
	for i := range l {
		if l[i] > limit[i] {
			return i, true
		}
	}
	return 0, false
}

// part returns the dominant share of the load: the largest fraction of a limit that it takes, over all resources.
func (l Load) part(limit Load) (most float64) {
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
	// MinCost is the minimum cost of the claim. It is charged even if the claim is denied, because measuring a claim
	// takes time as well.
	MinCost Load
	// Measure returns the cost of the claim, at least MinCost. It may be expensive, so it is called only if the limit
	// has room for MinCost.
	Measure func() Load
}

// Denied is a claim that does not fit.
type Denied[T any] struct {
	Of T
	// Kind is a resource whose limit the claim would exceed. Needed is the amount of it that the claim needs.
	Kind, Needed int
}

// Divide admits claims up to the limit by dominant resource fairness (Ghodsi et al. 2011). It repeatedly picks the
// namespace whose dominant share, including its next claim, is smallest. Therefore, a namespace that needs at most the
// limit divided by the number of namespaces gets all that it needs. The claims of a namespace are tried in their order.
// A claim that does not fit does not prevent later claims from being admitted.
func Divide[T any](limit Load, claims map[string][]Claim[T]) (admitted []T, denied []Denied[T], used Load) {
	q := make(queue[T], 0, len(claims))
	for namespace, all := range claims {
		p := &party[T]{namespace: namespace, left: all}
		denied = p.advance(limit, used, denied)
		if len(p.left) > 0 {
			q = append(q, p)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		p := q[0]
		next := p.left[0]
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
		used, p.used, p.left = used.Plus(cost), p.used.Plus(cost), p.left[1:]
		if denied = p.advance(limit, used, denied); len(p.left) > 0 {
			heap.Fix(&q, 0)
		} else {
			heap.Pop(&q)
		}
	}
	return admitted, denied, used
}

// party is a namespace with the claims that are left.
type party[T any] struct {
	namespace string
	left      []Claim[T]
	used      Load
	// next is the cost of the first claim that is left.
	next Load
	// part is the dominant share of the namespace including next.
	part float64
}

// advance finds the first remaining claim whose MinCost fits, and measures it. The claims before it are denied.
func (p *party[T]) advance(limit, used Load, denied []Denied[T]) []Denied[T] {
	for ; len(p.left) > 0; p.left = p.left[1:] {
		c := p.left[0]
		if kind, over := used.Plus(c.MinCost).Over(limit); over {
			denied = append(denied, Denied[T]{c.Of, kind, c.MinCost[kind]})
			continue
		}
		p.next = c.Measure()
		p.part = p.used.Plus(p.next).part(limit)
		break
	}
	return denied
}

// queue is a heap of namespaces, ordered by their field part.
type queue[T any] []*party[T]

func (q queue[T]) Len() int { return len(q) }
func (q queue[T]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].part, q[j].part), cmp.Compare(q[i].namespace, q[j].namespace)) < 0
}
func (q queue[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue[T]) Push(x any)   { *q = append(*q, x.(*party[T])) }
func (q *queue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
