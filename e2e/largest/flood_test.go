package largest

import (
	"maps"
	"slices"
	"strings"
)

// sideBySide is the number of lanes in one flood.
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
		if p99(r.changes) > s.changeLimit || p99(r.births) > s.birthLimit {
			change, birth := s.changeLimit, s.birthLimit
			s.control()
			s.changeLimit, s.birthLimit = max(s.changeLimit, change), max(s.birthLimit, birth)
		}
		s.judge(r)
	}
	s.Logf("%d objects in %d floods of %s, operator limited to %d MiB:\n%s", len(all), len(floods), *flood, memory>>20,
		strings.Join(s.report, "\n"))
}

// lane has the objects of a row that are repeated together: those that refer to base objects, or those that refer to
// one large object of each row that they use.
type lane struct {
	objects []*candidate
	using   map[string]*candidate
	uses    map[string]string
}

// floodsOf returns the objects that are repeated together.
func floodsOf(all []*candidate) (floods [][]*candidate) {
	var lanes []*lane
	for _, r := range rows {
		lanes = append(lanes, lanesOf(all, r)...)
	}
	for len(lanes) > 0 {
		together := &lane{using: map[string]*candidate{}, uses: map[string]string{}}
		number := 0
		lanes = slices.DeleteFunc(lanes, func(l *lane) bool {
			if number == sideBySide || !together.join(l) {
				return false
			}
			number++
			return true
		})
		floods = append(floods, together.objects)
	}
	return floods
}

// lanesOf returns the lanes of a row.
func lanesOf(all []*candidate, r row) (lanes []*lane) {
	plain := &lane{using: map[string]*candidate{}, uses: r.uses}
	large := map[string][]*lane{} // by the name of the used object
	for _, c := range all {
		if c.row.name != r.name {
			continue
		}
		if c.using == nil {
			plain.objects = append(plain.objects, c)
			continue
		}
		for name, u := range c.using {
			at := slices.IndexFunc(large[name], func(l *lane) bool { return l.using[name] == u })
			if at < 0 {
				at = len(large[name])
				large[name] = append(large[name], &lane{using: c.using, uses: r.uses})
			}
			large[name][at].objects = append(large[name][at].objects, c)
		}
	}
	if len(plain.objects) > 0 {
		lanes = append(lanes, plain)
	}
	// Objects that refer to large objects of different rows are in one lane.
	var joined []*lane
	for _, name := range slices.Sorted(maps.Keys(large)) {
		for i, l := range large[name] {
			if i == len(joined) {
				joined = append(joined, &lane{using: map[string]*candidate{}, uses: r.uses})
			}
			joined[i].objects = append(joined[i].objects, l.objects...)
			maps.Copy(joined[i].using, l.using)
		}
	}
	return append(lanes, joined...)
}

// join adds the objects of another lane. It returns false, and adds none, if the lanes use different objects of one
// name.
func (l *lane) join(other *lane) bool {
	for name := range other.uses {
		if _, both := l.uses[name]; both && l.using[name] != other.using[name] {
			return false
		}
	}
	l.objects = append(l.objects, other.objects...)
	maps.Copy(l.uses, other.uses)
	maps.Copy(l.using, other.using)
	return true
}
