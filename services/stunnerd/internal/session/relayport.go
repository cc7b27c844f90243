package session

import "errors"

// MaxReserved is the maximum number of reserved ports of one user ID at a time.
const MaxReserved = 8

// RelayPort counts one relay port against the limits of its user, its source and the process. The port belongs to an
// allocation, or is reserved for a later allocation (RFC 8656 §7.2). The zero RelayPort counts nothing.
type RelayPort struct {
	of       *account
	reserved bool
	// memory is the memory that is charged with the relay port, including the memory of the connection.
	memory     int64
	connection *Connection
	// provisional reports whether the other pods of the Gateway do not count the relay port here. The mutex of the
	// table guards it.
	provisional bool
	// released is guarded by the mutex of the table.
	released bool
}

// take creates the relay port of a session, and charges its account. If the argument provisional is true, and a limit
// applies that counts sessions in other pods, the relay port is provisional. The caller must hold mu.
func (t *Table) take(s *Session, reserved, provisional bool) RelayPort {
	a := &s.account
	if a.held == (Amounts{}) {
		*a = account{
			table: t, userID: s.UserID, prefix: s.Source,
			user: entry(t.users, s.UserID), source: entry(t.sources, s.Source),
			network: entry(t.networks, network(s.Source)),
		}
	}
	a.source.shared = s.Shared
	p := RelayPort{of: a, reserved: reserved, memory: s.price(reserved)}
	if reserved {
		a.user.reserved++
	} else {
		a.open, a.allowance = true, t.allow(s)
		p.connection = s.Connection
	}
	if limit, _ := t.limit(s); limit > 0 {
		t.count(s.UserID, a.user)
	}
	if provisional && a.user.pods != nil {
		p.provisional = true
		a.user.pods.provisional++
	}
	t.pay(p.connection)
	t.charge(a, RelayPorts, 1)
	t.charge(a, Memory, p.memory)
	t.reclaim()
	return p
}

// release releases a relay port. The caller holds mu.
func (t *Table) release(p *RelayPort) {
	if p.of == nil || p.released {
		return
	}
	p.released = true
	if p.reserved {
		p.of.user.reserved--
	} else {
		p.of.open = false
		t.leave(p.of.allowance)
	}
	if p.provisional {
		p.provisional = false
		p.of.user.pods.provisional--
	}
	t.charge(p.of, Memory, -p.memory)
	t.charge(p.of, RelayPorts, -1)
	t.refund(p.connection)
}

// Hold creates a relay port for a port that is reserved for later use by the user of a session (EVEN-PORT, RFC 8656
// §7.2). The error is ErrReserved, or an error of Reserve.
func (t *Table) Hold(s *Session) (*RelayPort, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.users[s.UserID]; u != nil && u.reserved >= MaxReserved {
		return nil, ErrReserved
	}
	if err := t.admits(s, true); err != nil {
		return nil, err
	}
	p := t.take(s, true, false)
	return &p, nil
}

// ErrReleased is the error of Inherit for a relay port that is released, or of another user ID.
var ErrReleased = errors.New("the port is not reserved for the user")

// Inherit moves a reserved port to the session that will use it. The error is ErrReleased, or an error of the caveats
// of the session, which may have another credential than the session that has reserved the port. After an error, the
// relay port is released.
func (t *Table) Inherit(s *Session, p *RelayPort) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.released || p.of.userID != s.UserID {
		t.release(p)
		return ErrReleased
	}
	if err := t.caveatsAdmit(s, p.of.user.held[RelayPorts]-1); err != nil { // minus the port itself
		t.release(p)
		return err
	}
	s.port = t.take(s, false, false) // before the release, which may delete the holder of the user with its byte rates
	t.release(p)
	return nil
}

// Release releases a reserved port. Further calls do nothing.
func (p *RelayPort) Release() {
	t := p.of.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(p)
}
