package session

// MaxReserved is the maximum number of reserved ports of one user ID at a time.
const MaxReserved = 8

// A tier is a part of the capacity of the process that is kept for clients with few places. A place is one session or
// one reserved port.
//
// While more than a fifth of the capacity is free, every client is admitted. In the last fifth a client is refused if
// its user ID AND its source each have a fifth of the capacity or more. In the last fiftieth a client is also refused
// if its user ID OR its source has a fiftieth or more.
//
// Example: with a capacity of 1,800 places, one user ID at one address gets at most 1,440. Then 324 places are left for
// clients that share at most one of the two with it. Another user ID at another address may take all of them, because
// they are less than a fifth (360). The last 36 are for clients whose user ID and address have less than 36 each.
//
// Both conditions are needed. Applications that give all users one user ID are common, and so are addresses that all
// clients share, so the first condition spares a client that shares only one of them with a client that has many
// places. A client with many user IDs, or with many addresses, passes the first condition and is bounded by the second.
type tier struct {
	// part is a divisor of the capacity. The tier begins when at most capacity/part is free, and capacity/part places
	// are "many".
	part int
	// either refuses a client if its user ID or its source has many places. Otherwise both must have many.
	either bool
}

var tiers = []tier{{part: 5}, {part: 50, either: true}}

// holder is the state of a user ID, or of a source, that has at least one place.
type holder struct {
	// places counts allocations and reserved ports.
	places int
	// reserved counts reserved ports.
	reserved int
	rates    rates
}

// Place counts one relay port, of an allocation or reserved for one (RFC 8656 §7.2), against the limits of its user, of
// its source and of the process. The zero Place counts nothing.
type Place struct {
	table        *Table
	user, source *holder
	of           *Session
	reserved     bool
	// released is guarded by the mutex of the table. The other fields do not change, so Session.Admits reads them
	// without a lock for every datagram.
	released bool
}

// fits reports whether the process has a place for a client. The caller holds mu.
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

// take takes a place for a session. The caller holds mu.
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

// release releases a place. The caller holds mu.
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

// Hold takes a place for a port that is reserved for later use by the user of a session (EVEN-PORT, RFC 8656 §7.2). The
// error is ErrReserved, or an error of Reserve.
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

// Inherit moves the place of a reserved port to the session that will use it. It reports false if the port was reserved
// for another user ID, and then releases the place, or if the place is already released.
func (t *Table) Inherit(s *Session, p *Place) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.released || p.of.UserID != s.UserID {
		t.release(p)
		return false
	}
	s.place = t.take(s, false) // before the release, which may delete the holder of the user with its byte rates
	t.release(p)
	return true
}

// Release releases the place of a reserved port. Further calls do nothing.
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
