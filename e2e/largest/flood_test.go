package largest

import (
	"maps"
	"slices"
	"strings"
)

// sideBySide is the number of batches that are repeated together in one flood.
const sideBySide = 5

// floodAll creates all objects once, and then, a few rows at a time, as many copies of all of them as fit into -for.
// Others are measured in a control before each flood, and again after a flood that seems to slow them down, because the
// machine may have become slower.
func (s *suite) floodAll(all []*candidate) {
	s.Helper()
	floods := floodsOf(all)
	for i, of := range floods {
		s.control()
		s.Logf("flood %d of %d: %s", i+1, len(floods), subjectOf(of))
		r := s.attempt(of, *flood)
		if p99(r.changes) > s.changeLimit || p99(r.creations) > s.creationLimit {
			change, creation := s.changeLimit, s.creationLimit
			s.control()
			s.changeLimit, s.creationLimit = max(s.changeLimit, change), max(s.creationLimit, creation)
		}
		s.judge(r)
	}
	s.Logf("%d objects in %d floods of %s, operator limited to %d MiB:\n%s", len(all), len(floods), *flood, memory>>20,
		strings.Join(s.report, "\n"))
}

// batch has objects of one row that are repeated together: either those that refer to base objects, or those that refer
// to one large object of each row in `uses`.
type batch struct {
	objects []*candidate
	using   map[string]*candidate
	uses    map[string]string
}

// floodsOf returns the objects that are repeated together.
func floodsOf(all []*candidate) (floods [][]*candidate) {
	var batches []*batch
	for _, r := range rows {
		batches = append(batches, batchesOf(all, r)...)
	}
	for len(batches) > 0 {
		together := &batch{using: map[string]*candidate{}, uses: map[string]string{}}
		number := 0
		batches = slices.DeleteFunc(batches, func(b *batch) bool {
			if number == sideBySide || !together.join(b) {
				return false
			}
			number++
			return true
		})
		floods = append(floods, together.objects)
	}
	return floods
}

func batchesOf(all []*candidate, r row) (batches []*batch) {
	plain := &batch{using: map[string]*candidate{}, uses: r.uses}
	large := map[string][]*batch{} // by the name of the used object
	for _, c := range all {
		if c.row.name != r.name {
			continue
		}
		if c.using == nil {
			plain.objects = append(plain.objects, c)
			continue
		}
		for name, u := range c.using {
			at := slices.IndexFunc(large[name], func(b *batch) bool { return b.using[name] == u })
			if at < 0 {
				at = len(large[name])
				large[name] = append(large[name], &batch{using: c.using, uses: r.uses})
			}
			large[name][at].objects = append(large[name][at].objects, c)
		}
	}
	if len(plain.objects) > 0 {
		batches = append(batches, plain)
	}
	// Objects that refer to large objects of different rows are in one batch.
	var joined []*batch
	for _, name := range slices.Sorted(maps.Keys(large)) {
		for i, b := range large[name] {
			if i == len(joined) {
				joined = append(joined, &batch{using: map[string]*candidate{}, uses: r.uses})
			}
			joined[i].objects = append(joined[i].objects, b.objects...)
			maps.Copy(joined[i].using, b.using)
		}
	}
	return append(batches, joined...)
}

// join adds the objects of another batch. It returns false and adds nothing if the batches use different large objects
// of the same name.
func (b *batch) join(other *batch) bool {
	for name := range other.uses {
		if _, both := b.uses[name]; both && b.using[name] != other.using[name] {
			return false
		}
	}
	b.objects = append(b.objects, other.objects...)
	maps.Copy(b.uses, other.uses)
	maps.Copy(b.using, other.using)
	return true
}
