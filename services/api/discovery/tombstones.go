package discovery

import (
	"slices"
	"time"
)

// A deletion is remembered for tombstoneTime, so that a client that reconnects within that time receives it. At most
// tombstoneLimit deletions are remembered, the newest ones.
const (
	tombstoneTime  = time.Hour
	tombstoneLimit = 10_000
)

// tombstones contains the ids of deleted configs.
type tombstones struct {
	deleted map[string]time.Time
	// order contains the deletions, the oldest first. Some of its ids may have been published again.
	order []tombstone
}

type tombstone struct {
	id string
	at time.Time
}

func newTombstones() tombstones { return tombstones{deleted: map[string]time.Time{}} }

// add records the deletion of id at the time now.
func (t *tombstones) add(id string, now time.Time) {
	t.deleted[id] = now
	t.order = append(t.order, tombstone{id, now})
	for len(t.order) > tombstoneLimit || now.Sub(t.order[0].at) > tombstoneTime {
		if oldest := t.order[0]; t.deleted[oldest.id].Equal(oldest.at) {
			delete(t.deleted, oldest.id)
		}
		t.order = t.order[1:]
	}
}

// remove removes the deletion of id, because a config with the id was published again.
func (t *tombstones) remove(id string) { delete(t.deleted, id) }

// matching returns the deleted ids that want selects, sorted.
func (t *tombstones) matching(want selector, now time.Time) (ids []string) {
	if want.one() {
		if at, ok := t.deleted[string(want)]; ok && now.Sub(at) <= tombstoneTime {
			return []string{string(want)}
		}
		return nil
	}
	for id, at := range t.deleted {
		if want.matches(id) && now.Sub(at) <= tombstoneTime {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
