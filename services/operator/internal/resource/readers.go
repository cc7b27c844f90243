package resource

import (
	"maps"
	"slices"
)

// Readers knows who was told which facts, to find out whom a change concerns. U names a unit of work. The zero Readers is ready to use.
//
// Most facts are told to one unit, and there are some thirty for each Gateway: a slice holds a fraction of what a map would.
type Readers[U comparable] struct {
	told map[U][]Fact
	of   map[Fact]*audience[U]
}

// fewReaders is how many readers of a fact are looked for one by one.
const fewReaders = 8

// audience are the units that were told a fact: a few, or many.
type audience[U comparable] struct {
	few  []U
	many map[U]struct{}
}

func (a *audience[U]) add(u U) {
	switch {
	case a.many != nil:
		a.many[u] = struct{}{}
	case slices.Contains(a.few, u):
	case len(a.few) < fewReaders:
		a.few = append(a.few, u)
	default:
		a.many = make(map[U]struct{}, 2*fewReaders)
		for _, other := range append(a.few, u) {
			a.many[other] = struct{}{}
		}
		a.few = nil
	}
}

// remove reports whether nobody is left.
func (a *audience[U]) remove(u U) (empty bool) {
	delete(a.many, u)
	a.few = slices.DeleteFunc(a.few, func(other U) bool { return other == u })
	return len(a.few)+len(a.many) == 0
}

// Told notes the facts that a unit was told, in the place of those that it was told before.
func (r *Readers[U]) Told(u U, facts Facts) {
	if r.told == nil {
		r.told, r.of = map[U][]Fact{}, map[Fact]*audience[U]{}
	}
	before, known := r.told[u]
	if known && r.same(before, facts) {
		return
	}
	r.Forget(u)
	told := make([]Fact, 0, len(facts))
	for f := range facts {
		told = append(told, f)
		if r.of[f] == nil {
			r.of[f] = &audience[U]{}
		}
		r.of[f].add(u)
	}
	r.told[u] = told
}

// same tells whether a unit was told the same before, as after most changes.
func (r *Readers[U]) same(before []Fact, now Facts) bool {
	return len(before) == len(now) && !slices.ContainsFunc(before, func(f Fact) bool { _, told := now[f]; return !told })
}

// Knows tells whether a unit has been told anything.
func (r *Readers[U]) Knows(u U) bool { return r.told[u] != nil }

// Forget notes that there is no such unit any more.
func (r *Readers[U]) Forget(u U) {
	for _, f := range r.told[u] {
		if r.of[f].remove(u) {
			delete(r.of, f)
		}
	}
	delete(r.told, u)
}

// Of adds to a set of units all that were told one of the facts.
func (r *Readers[U]) Of(facts Facts, units map[U]struct{}) {
	for f := range facts {
		if a := r.of[f]; a != nil {
			maps.Copy(units, a.many)
			for _, u := range a.few {
				units[u] = struct{}{}
			}
		}
	}
}
