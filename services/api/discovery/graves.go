package discovery

import (
	"slices"
	"time"
)

// Deletions are remembered for as long as a client may be away without being new: the newest of them, in a bounded room.
const (
	graveTime  = time.Hour
	graveLimit = 10_000
)

// graves are deletions.
type graves struct {
	dug map[string]time.Time
	// order holds the ids, those first that were buried first. An id may be in it that was published again since.
	order []burial
}

type burial struct {
	id string
	at time.Time
}

func newGraves() graves { return graves{dug: map[string]time.Time{}} }

// bury notes a deletion.
func (g *graves) bury(id string, now time.Time) {
	g.dug[id] = now
	g.order = append(g.order, burial{id, now})
	for len(g.order) > graveLimit || now.Sub(g.order[0].at) > graveTime {
		if oldest := g.order[0]; g.dug[oldest.id].Equal(oldest.at) {
			delete(g.dug, oldest.id)
		}
		g.order = g.order[1:]
	}
}

// open notes that what was deleted is there again.
func (g *graves) open(id string) { delete(g.dug, id) }

// of returns the deletions that want means, sorted.
func (g *graves) of(want selector, now time.Time) (ids []string) {
	if want.one() {
		if at, there := g.dug[string(want)]; there && now.Sub(at) <= graveTime {
			return []string{string(want)}
		}
		return nil
	}
	for id, at := range g.dug {
		if want.matches(id) && now.Sub(at) <= graveTime {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
