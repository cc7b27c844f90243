package resource

import (
	"maps"
	"slices"
)

// Readers is an index from facts to the translations that depend on these facts, called the readers of a fact. U
// identifies a translation. The zero value is ready to use.
//
// Short sets are stored in slices, because slices take a fraction of the memory of maps: a Gateway depends on about
// thirty facts, and most facts have a single reader.
type Readers[U comparable] struct {
	facts   map[U][]Fact
	readers map[Fact]*readerSet[U]
}

// fewReaders is the maximum length of readerSet.few.
const fewReaders = 8

// readerSet is the set of the readers of a fact, in a slice or in a map.
type readerSet[U comparable] struct {
	few  []U
	many map[U]struct{}
}

func (a *readerSet[U]) add(u U) {
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

func (a *readerSet[U]) has(u U) bool {
	_, has := a.many[u]
	return has || slices.Contains(a.few, u)
}

// remove reports whether the set is empty afterwards.
func (a *readerSet[U]) remove(u U) (empty bool) {
	delete(a.many, u)
	a.few = slices.DeleteFunc(a.few, func(other U) bool { return other == u })
	return len(a.few)+len(a.many) == 0
}

// Record replaces the facts that u depends on.
func (r *Readers[U]) Record(u U, facts Facts) {
	if r.facts == nil {
		r.facts, r.readers = map[U][]Fact{}, map[Fact]*readerSet[U]{}
	}
	before, known := r.facts[u]
	if known && r.same(before, facts) {
		return
	}
	r.Delete(u)
	list := make([]Fact, 0, len(facts))
	for f := range facts {
		list = append(list, f)
		if r.readers[f] == nil {
			r.readers[f] = &readerSet[U]{}
		}
		r.readers[f].add(u)
	}
	r.facts[u] = list
}

// Extend adds facts that u depends on, if Record has been called for it.
func (r *Readers[U]) Extend(u U, facts Facts) {
	if !r.Has(u) {
		return
	}
	for f := range facts {
		if a := r.readers[f]; a != nil && a.has(u) {
			continue
		}
		if r.readers[f] == nil {
			r.readers[f] = &readerSet[U]{}
		}
		r.readers[f].add(u)
		r.facts[u] = append(r.facts[u], f)
	}
}

// same reports whether a translation depends on the same facts as before, which is the case for most translations.
func (r *Readers[U]) same(before []Fact, now Facts) bool {
	return len(before) == len(now) && !slices.ContainsFunc(before, func(f Fact) bool { _, has := now[f]; return !has })
}

// Has reports whether facts are recorded for u.
func (r *Readers[U]) Has(u U) bool { return r.facts[u] != nil }

// Delete removes u and its facts.
func (r *Readers[U]) Delete(u U) {
	for _, f := range r.facts[u] {
		if r.readers[f].remove(u) {
			delete(r.readers, f)
		}
	}
	delete(r.facts, u)
}

// Of adds the readers of all given facts to set.
func (r *Readers[U]) Of(facts Facts, set map[U]struct{}) {
	for f := range facts {
		if a := r.readers[f]; a != nil {
			maps.Copy(set, a.many)
			for _, u := range a.few {
				set[u] = struct{}{}
			}
		}
	}
}
