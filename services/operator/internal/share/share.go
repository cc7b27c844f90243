// Package share divides what is bounded among namespaces: no namespace that asks for less than an equal part goes without because of another.
//
// The package is pure.
package share

import (
	"cmp"
	"container/heap"
)

// Load is an amount of each of the things that are bounded.
type Load [kinds]int

// What is bounded.
const (
	Routes = iota
	Endpoints
	Bytes
	Names
	kinds
)

// Plus is the sum.
func (l Load) Plus(more Load) Load {
	for i := range l {
		l[i] += more[i]
	}
	return l
}

// Over returns the first thing of which a load has more than the limit; false if there is none.
func (l Load) Over(limit Load) (kind int, over bool) {
	for i := range l {
		if l[i] > limit[i] {
			return i, true
		}
	}
	return 0, false
}

// part is the largest part of a limit that a load takes.
func (l Load) part(limit Load) (most float64) {
	for i := range l {
		if l[i] > 0 {
			most = max(most, float64(l[i])/float64(max(limit[i], 1)))
		}
	}
	return most
}

// Claim is something that a namespace asks room for.
type Claim[T any] struct {
	Of T
	// Least is what the claim costs even if it is turned down: the work to measure it.
	Least Load
	// Measure returns what it costs if it is admitted, at least Least. It is called only while there is room for Least.
	Measure func() Load
}

// Denied is a claim that there is no room for.
type Denied[T any] struct {
	Of T
	// Kind is what there is too little of, Asks how much of it the claim asks for.
	Kind, Asks int
}

// Divide admits claims as long as there is room for them. The claims of a namespace are admitted in their order. The namespace whose next claim
// leaves it with the smallest part is next: whoever asks for no more than a part of limit divided by the number of namespaces gets all of it, whatever others
// ask for (dominant resource fairness, Ghodsi et al. 2011). A claim that does not fit leaves room for those after it.
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
			cost = next.Least
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

// party is a namespace.
type party[T any] struct {
	namespace string
	left      []Claim[T]
	used      Load
	// next is the cost of the first claim that is left, and part what the namespace would have with it.
	next Load
	part float64
}

// advance measures the first claim that there may be room for, and adds those before it to what is denied.
func (p *party[T]) advance(limit, used Load, denied []Denied[T]) []Denied[T] {
	for ; len(p.left) > 0; p.left = p.left[1:] {
		c := p.left[0]
		if kind, over := used.Plus(c.Least).Over(limit); over {
			denied = append(denied, Denied[T]{c.Of, kind, c.Least[kind]})
			continue
		}
		p.next = c.Measure()
		p.part = p.used.Plus(p.next).part(limit)
		break
	}
	return denied
}

// queue is a heap of namespaces: first the one that would have the smallest part.
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
