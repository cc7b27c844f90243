package session

// MaxReserved is how many reserved ports one user id may have at a time.
const MaxReserved = 8

// A tier is a part of the capacity that is kept for clients that hold little.
//
// While at least a fifth of the capacity is free, every client is admitted. In the last fifth a client is refused if its user id AND its
// source each hold a fifth of the capacity or more. In the last fiftieth a client is refused if its user id OR its source holds a
// fiftieth or more.
//
// With a capacity of 1,800 places: one holder of one user id and one address gets 1,440 and no more. Then 324 places are left for
// every client that shares at most one of the two with that holder, and a group that shares one user id and one address may itself
// have up to 360. The last 36 are for clients whose user id and address hold less than 36 each.
//
// Both conditions are needed. Applications that give all users one user id are common, and so are addresses that all clients share,
// so the first one spares a client that shares only one of them with a greedy one. A client that makes up user ids, or that has many
// addresses, passes the first one, and meets the second.
type tier struct {
	// part is the divisor: the tier begins when less than capacity/part is free, and "many" is capacity/part places.
	part int
	// either refuses a client if one of its user id and source holds many, instead of both.
	either bool
}

var tiers = []tier{{part: 5}, {part: 50, either: true}}

// holder is what is known of a user id, or of a source, while it holds places.
type holder struct {
	// places are those of allocations and of reserved ports, reserved those of the latter.
	places, reserved int
	paces            paces
}

// Place is one relay port, of an allocation or reserved for one (RFC 8656 §7.2). It counts against its user, its source and the process.
// The zero Place counts nothing.
type Place struct {
	table        *Table
	user, source *holder
	of           *Session
	reserved     bool
	// released needs the table's lock. The other fields do not change: the path of media reads them without a lock.
	released bool
}

// fits tells whether the process has a place for a client. It needs the lock.
func (t *Table) fits(capacity int, user, source *holder) bool {
	if capacity <= 0 {
		return true
	}
	free := capacity - t.places
	if free <= 0 {
		return false
	}
	for _, tier := range tiers {
		if free*tier.part > capacity {
			return true
		}
		u, s := user.places*tier.part >= capacity, source.places*tier.part >= capacity
		if u && s || tier.either && (u || s) {
			return false
		}
	}
	return true
}

// take takes a place for a session. It needs the lock.
func (t *Table) take(s *Session, reserved bool) Place {
	user, source := entry(t.users, s.UserID), entry(t.sources, s.Source)
	t.places++
	user.places++
	source.places++
	if reserved {
		user.reserved++
	}
	return Place{table: t, user: user, source: source, of: s, reserved: reserved}
}

// release gives a place back. It needs the lock.
func (t *Table) release(p *Place) {
	if p.table == nil || p.released {
		return
	}
	p.released = true
	t.places--
	p.source.places--
	p.user.places--
	if p.reserved {
		p.user.reserved--
	}
	if p.user.places == 0 {
		delete(t.users, p.of.UserID)
	}
	if p.source.places == 0 {
		delete(t.sources, p.of.Source)
	}
}

// Hold takes a place for a port that is reserved for the user and the source of a session. The error is ErrReserved, or one of Reserve.
func (t *Table) Hold(s *Session) (*Place, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.users[s.UserID]; u != nil && u.reserved >= MaxReserved {
		return nil, ErrReserved
	}
	if err := t.admits(s); err != nil {
		return nil, err
	}
	p := t.take(s, true)
	return &p, nil
}

// Inherit gives a session the place of the reserved port that it will use. It tells whether the port was reserved for the same user id;
// otherwise the session gets nothing, and the place is given back.
func (t *Table) Inherit(s *Session, p *Place) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.released || p.of.UserID != s.UserID {
		t.release(p)
		return false
	}
	s.place = t.take(s, false) // before the release, which would forget the user and its byte rate
	t.release(p)
	return true
}

// Release gives the place of a reserved port back. More calls do nothing.
func (p *Place) Release() {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	p.table.release(p)
}

func entry[K comparable](m map[K]*holder, key K) *holder {
	h := m[key]
	if h == nil {
		h = new(holder)
		m[key] = h
	}
	return h
}
