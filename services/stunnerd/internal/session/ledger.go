package session

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Kind is a kind of thing that clients make the process hold. The ledger of a Table counts each kind for the session,
// the user ID, the source and the network of a client, and for the process.
type Kind uint8

const (
	// Places are relay ports: one for each allocation, and one for each reserved port.
	Places Kind = iota
	// Memory is the memory of sessions in bytes, at the prices of price.go.
	Memory
	// Slots are the channels whose data the kernel forwards (package offload).
	Slots
	kindCount
)

// kinds has a row for each kind. The capacity of each is Bounds.Capacity.
var kinds = [kindCount]struct {
	// name is the name of the kind in errors and in docs/reference/memory.md.
	name string
	// perSession reports whether one session may hold many. A session with less than an equal share of the capacity,
	// which is the capacity divided by that for places, is then not refused because others of its user hold much.
	perSession bool
	// full is the error if the capacity is used, or what is left is kept for clients that hold less.
	full error
}{
	Places: {"places", false, ErrCapacity},
	Memory: {"memory", true, fmt.Errorf("%w: memory of sessions", ErrCapacity)},
	Slots:  {"slots", true, fmt.Errorf("%w: channels forwarded in the kernel", ErrCapacity)},
}

// String returns the name of the kind.
func (k Kind) String() string { return kinds[k].name }

// Amounts is an amount of each kind.
type Amounts [kindCount]int64

// ErrCapacity is the error if the capacity of a kind is used, or if the rest of it is kept for clients that hold less.
var ErrCapacity = errors.New("the process is full, or nearly, and the user or the source holds much of it")

// A tier is a part of the capacity of a kind that is kept for clients that hold little of it. The tiers are the same
// for each kind.
//
//   - While more than a fifth of the capacity is free, every client is admitted.
//   - In the last fifth, a client is refused if its user ID AND its network each hold a fifth of the capacity or more,
//     and its session, if that may hold many, more than an equal share.
//   - In the last tenth, a client is also refused if its network holds a fifth or more, whatever its user ID.
//   - In the last fiftieth, a client is also refused if its user ID OR its network holds a fiftieth or more.
//
// Example: with a capacity of 1,800 places, one user ID at one address gets at most 1,440. Then 180 places are left for
// clients that share at most one of the two with it, 144 for clients at addresses that hold less than 360, and 36 for
// clients whose user ID and address hold less than 36 each. Another user ID at another address may take all but the
// last 36.
//
// Each condition is needed. Applications that give all users one user ID are common, and so are addresses that all
// clients share, so the first condition spares a client that shares only one of them with a client that holds much.
// A private address may be a load balancer, so it has no quota, and one client may have many user IDs. The second
// condition therefore keeps a tenth for clients elsewhere: if all clients have one address, they get nine tenths. The
// third bounds a user ID with many addresses.
//
// The network of a client is its IPv4 address or its /48 of IPv6. A client that has many /64 in one /48 has many
// sources, but one network.
type tier struct {
	// part is a divisor of the capacity. The tier begins when at most capacity/part is free.
	part int64
	// much is a divisor of the capacity. A user ID or a network that holds capacity/much holds much.
	much int64
	// refuses reports whether a client is refused if its user ID, its network, or its session holds much.
	refuses func(user, network, session bool) bool
}

var tiers = []tier{
	{5, 5, func(user, network, session bool) bool { return user && network && session }},
	{10, 5, func(_, network, _ bool) bool { return network }},
	{50, 50, func(user, network, _ bool) bool { return user || network }},
}

// networkBits is the length of the IPv6 prefix whose addresses are one network: the longest that a site usually gets
// (RFC 6177 §2).
const networkBits = 48

// network returns the network of a source.
func network(source netip.Prefix) netip.Prefix {
	if !source.IsValid() || source.Addr().Is4() {
		return source
	}
	wide, _ := source.Addr().Prefix(networkBits) // networkBits is in range
	return wide
}

// holder is what a user ID, a source or a network holds. The table has a holder while it holds something.
type holder struct {
	held Amounts
	// reserved counts reserved ports.
	reserved int
	// shared reports whether a source has no quota (see Session.Shared).
	shared bool
	rates  rates
}

// account is what a session holds, and the holders at which that is counted. Table.mu guards held and open. The other
// fields do not change after the session has got its place, so Session.Admits reads them without a lock for each
// datagram.
type account struct {
	table                 *Table
	user, source, network *holder
	userID                string
	prefix                netip.Prefix
	// allowance is nil if no caveat limits the bytes of the session.
	allowance *allowance
	held      Amounts
	// open reports whether the session has its place. A closed account only shrinks.
	open bool
}

// fits reports whether the process has n more of a kind for a client. own is what its session holds already.
// The caller holds mu.
func (t *Table) fits(k Kind, n, own int64, user, network *holder) bool {
	b := t.bounds.Load()
	capacity := b.Capacity[k]
	if capacity <= 0 {
		return true
	}
	free := capacity - t.total[k]
	if free < n {
		return false
	}
	places := b.Capacity[Places]
	large := !kinds[k].perSession || places <= 0 || (own+n)*places > capacity
	for _, tier := range tiers {
		if free*tier.part > capacity {
			return true
		}
		if tier.refuses(user.held[k]*tier.much >= capacity, network.held[k]*tier.much >= capacity, large) {
			return false
		}
	}
	return true
}

// charge adds an amount, which may be negative, to an account and to everything that the account is a part of. The
// caller holds mu.
func (t *Table) charge(a *account, k Kind, n int64) {
	t.total[k] += n
	a.held[k] += n
	a.user.held[k] += n
	a.source.held[k] += n
	a.network.held[k] += n
	forget(t.users, a.userID, a.user)
	forget(t.sources, a.prefix, a.source)
	forget(t.networks, network(a.prefix), a.network)
}

// forget removes a holder that holds nothing, unless another one has replaced it.
func forget[K comparable](m map[K]*holder, key K, h *holder) {
	if h.held == (Amounts{}) && m[key] == h {
		delete(m, key)
	}
}

func entry[K comparable](m map[K]*holder, key K) *holder {
	h := m[key]
	if h == nil {
		h = new(holder)
		m[key] = h
	}
	return h
}

// Claim is what one part of a session holds of a kind, for example the buffer of its connection. It may outlive the
// session. The zero Claim holds nothing and cannot grow.
type Claim struct {
	of   *account
	kind Kind
	held int64
}

// Claim returns a claim of a session that holds nothing.
func (s *Session) Claim(k Kind) Claim { return Claim{of: &s.account, kind: k} }

// Set makes the claim hold n. To hold more it needs what the process has left for the client, and that the session has
// not ended: otherwise Set changes nothing, and the error is ErrCapacity or ErrEnded. To hold less it never fails.
func (c *Claim) Set(n int64) error { return c.change(func() int64 { return n }, false) }

// Add makes the claim hold n more, or less if n is negative, like Set.
func (c *Claim) Add(n int64) error { return c.change(func() int64 { return c.held + n }, false) }

// Force is Set without a limit, for things that exist already.
func (c *Claim) Force(n int64) { _ = c.change(func() int64 { return n }, true) }

// Release makes the claim hold nothing. Further calls do nothing.
func (c *Claim) Release() {
	if c.held != 0 {
		_ = c.Set(0)
	}
}

// Held returns what the claim holds. Only the goroutine that changes the claim may call it.
func (c *Claim) Held() int64 { return c.held }

// ErrEnded is the error of Claim.Set if the session has ended.
var ErrEnded = errors.New("the session has ended")

// change makes the claim hold what next returns. It calls next with mu held.
func (c *Claim) change(next func() int64, force bool) error {
	if c.of == nil || c.of.table == nil {
		return nil // of a session without a table, as in tests of other packages
	}
	t := c.of.table
	t.mu.Lock()
	defer t.mu.Unlock()
	n := next()
	more := n - c.held
	switch {
	case more > 0 && !c.of.open:
		return ErrEnded
	case more > 0 && !force && !t.fits(c.kind, more, c.of.held[c.kind], c.of.user, c.of.network):
		return kinds[c.kind].full
	}
	if more != 0 {
		t.charge(c.of, c.kind, more)
		c.held = n
		t.reclaim()
	}
	return nil
}

// Capacity returns how many places fit into the process: those that are held, and as many more as fit into the rest of
// the memory if each has as much as the held ones and a session over a transport have on average. 0 means no maximum.
func (t *Table) Capacity(p config.Protocol) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	capacity := t.bounds.Load().Capacity
	if capacity[Memory] <= 0 {
		return capacity[Places]
	}
	each := (t.total[Memory] + PriceOf(p, 0, 0)) / (t.total[Places] + 1)
	fit := t.total[Places] + max(0, capacity[Memory]-t.total[Memory])/each
	if capacity[Places] > 0 {
		return min(fit, capacity[Places])
	}
	return fit
}

// Held returns what the process holds for sessions.
func (t *Table) Held() Amounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}
