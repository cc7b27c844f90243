package session

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Kind is a kind of resource that clients use. The ledger of a Table counts each kind for the session, the user ID, the
// source and the network of a client, and for the process.
type Kind uint8

const (
	// RelayPorts are relay ports: one for each allocation, and one for each reserved port.
	RelayPorts Kind = iota
	// Memory is the memory of sessions in bytes, at the prices in price.go.
	Memory
	// Slots are the channels whose data the kernel forwards (package offload).
	Slots
	kindCount
)

// kinds has a row for each kind. The capacity of each is Bounds.Capacity.
var kinds = [kindCount]struct {
	// name is the name of the kind in errors and in docs/reference/memory.md.
	name string
	// perSession reports whether one session may use a large amount. If so, a session with less than an equal share is
	// not refused because others of its user use much. An equal share is the capacity of this kind divided by the
	// capacity for relay ports.
	perSession bool
	// full is the error if the capacity is used up, or if the rest is kept for clients that hold less.
	full error
}{
	RelayPorts: {"relay ports", false, ErrCapacity},
	Memory:     {"memory", true, fmt.Errorf("%w: memory of sessions", ErrCapacity)},
	Slots:      {"slots", true, fmt.Errorf("%w: channels forwarded in the kernel", ErrCapacity)},
}

// String returns the name of the kind.
func (k Kind) String() string { return kinds[k].name }

// Amounts is an amount of each kind.
type Amounts [kindCount]int64

// ErrCapacity is the error if the capacity of a kind is used up, or if the rest is kept for clients that hold less.
var ErrCapacity = errors.New("the process is full, or nearly, and the user or the source holds much of it")

// A tier is a part of the capacity of a kind that is kept for clients that hold little of it. The tiers are the same
// for each kind.
//
//   - While more than a fifth of the capacity is free, every client is admitted.
//   - In the last fifth, a client is refused if its user ID AND its network each hold a fifth of the capacity or more.
//     If one session may use much of the kind (kinds.perSession), its session must also hold more than an equal share.
//   - In the last tenth, a client is also refused if its network holds a fifth or more, independent of its user ID.
//   - In the last fiftieth, a client is also refused if its user ID OR its network holds a fiftieth or more.
//
// Example: with a capacity of 1,800 relay ports, one user ID at one address gets at most 1,440. Then 180 relay ports
// are left for clients that share at most one of the two with it, 144 for clients at addresses that hold less than 360,
// and 36 for clients whose user ID and address hold less than 36 each. Another user ID at another address may take all
// but the last 36.
//
// Each condition is needed. Applications that give all users one user ID are common, and so are addresses that all
// clients share, so the first condition spares a client that shares only one of them with a client that holds much. A
// private address may be a load balancer, so it has no quota, and one client may have many user IDs. The second
// condition therefore keeps a tenth for clients at other addresses: if all clients have one address, they get nine
// tenths. The third bounds a user ID with many addresses.
//
// The network of a client is its IPv4 address or its /48 of IPv6. A client that has many /64 in one /48 has many
// sources, but one network.
type tier struct {
	// part is a divisor of the capacity. The tier begins when at most capacity/part is free.
	part int64
	// much is a divisor of the capacity. A user ID or a network that holds at least capacity/much holds "much".
	much int64
	// refuses reports whether a client is refused if its user ID, its network, or its session holds much.
	refuses func(user, network, session bool) bool
}

var tiers = []tier{
	{5, 5, func(user, network, session bool) bool { return user && network && session }},
	{10, 5, func(_, network, _ bool) bool { return network }},
	{50, 50, func(user, network, _ bool) bool { return user || network }},
}

// networkBits is the length of the IPv6 prefix whose addresses count as one network: the longest prefix that a site
// usually gets (RFC 6177 §2).
const networkBits = 48

func network(source netip.Prefix) netip.Prefix {
	if !source.IsValid() || source.Addr().Is4() {
		return source
	}
	wide, _ := source.Addr().Prefix(networkBits) // cannot fail
	return wide
}

// holder contains the amounts that a user ID, a source or a network holds. It exists while one of them is not zero.
type holder struct {
	held Amounts
	// reserved counts reserved ports.
	reserved int
	// shared reports whether a source has no quota (see Session.Shared).
	shared bool
	rates  rates
	// pods is nil if other pods do not count the relay ports of the user.
	pods *counted
}

// account contains the amounts that a session holds, and the holders that are charged with them. Table.mu guards held
// and open. The other fields do not change once the session has its relay port, so Session.Admits reads them without a
// lock for each datagram.
type account struct {
	table                 *Table
	user, source, network *holder
	userID                string
	prefix                netip.Prefix
	// allowance is nil if no caveat limits the bytes of the session.
	allowance *allowance
	held      Amounts
	// open is set while the session has its relay port. A closed account can only shrink.
	open bool
}

// fits reports whether a client may hold n more of a kind. own is the amount that its session already holds. The caller
// must hold mu.
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
	ports := b.Capacity[RelayPorts]
	large := !kinds[k].perSession || ports <= 0 || (own+n)*ports > capacity
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

// charge adds an amount, which may be negative, to an account, its holders and the total of the process. The caller
// must hold mu.
func (t *Table) charge(a *account, k Kind, n int64) {
	t.total[k] += n
	a.held[k] += n
	a.user.held[k] += n
	a.source.held[k] += n
	a.network.held[k] += n
	if k == RelayPorts {
		t.tell(a.user)
	}
	forget(t.users, a.userID, a.user)
	forget(t.sources, a.prefix, a.source)
	forget(t.networks, network(a.prefix), a.network)
}

// forget removes a holder that holds nothing, unless another holder has replaced it.
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

// Claim is the amount of a kind that one part of a session holds, for example the memory of the buffer of its
// connection. It may outlive the session. The zero Claim holds nothing and cannot grow.
type Claim struct {
	of   *account
	kind Kind
	held int64
}

// Claim returns a claim of the session with the amount 0.
func (s *Session) Claim(k Kind) Claim { return Claim{of: &s.account, kind: k} }

// Set sets the amount of the claim to n. It can always be decreased. It can be increased only if the process has
// capacity for the client and the session has not ended. Otherwise Set changes nothing, and the error is ErrCapacity or
// ErrEnded.
func (c *Claim) Set(n int64) error { return c.change(func() int64 { return n }, false) }

// Add adds n, which may be negative, to the amount of the claim, like Set.
func (c *Claim) Add(n int64) error { return c.change(func() int64 { return c.held + n }, false) }

// Force is Set without a limit, for resources that are already in use.
func (c *Claim) Force(n int64) { _ = c.change(func() int64 { return n }, true) }

// Release sets the amount of the claim to 0. Further calls do nothing.
func (c *Claim) Release() {
	if c.held != 0 {
		_ = c.Set(0)
	}
}

// Held returns the amount of the claim. Only the goroutine that changes the claim may call it.
func (c *Claim) Held() int64 { return c.held }

// ErrEnded is the error of Claim.Set if the session has ended.
var ErrEnded = errors.New("the session has ended")

// change sets the amount of the claim to the result of next. It calls next with mu held.
func (c *Claim) change(next func() int64, force bool) error {
	if c.of == nil || c.of.table == nil {
		return nil // the session has no table, as in tests of other packages
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

// Capacity returns how many relay ports clients can have: those in use, and as many more as fit into the remaining
// memory. Each further relay port counts with the average memory of a port in use and of a session over a transport. 0
// means no maximum.
func (t *Table) Capacity(p config.Protocol) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	capacity := t.bounds.Load().Capacity
	if capacity[Memory] <= 0 {
		return capacity[RelayPorts]
	}
	each := (t.total[Memory] + PriceOf(p, 0, 0)) / (t.total[RelayPorts] + 1)
	fit := t.total[RelayPorts] + max(0, capacity[Memory]-t.total[Memory])/each
	if capacity[RelayPorts] > 0 {
		return min(fit, capacity[RelayPorts])
	}
	return fit
}

// Held returns the amounts that all sessions of the process hold.
func (t *Table) Held() Amounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}
