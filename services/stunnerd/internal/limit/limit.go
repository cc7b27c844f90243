// Package limit bounds the answers to unauthenticated clients, and the comparisons of passwords. All of its tables have
// a bounded size.
package limit

import (
	"net/netip"

	"github.com/pion/stun/v2"
)

// Request is the part of a STUN request that the limits depend on.
type Request struct {
	// Client is the transport address of the client. Connected reports whether the client uses a connection, whose
	// source address cannot be forged.
	Client    netip.AddrPort
	Connected bool
	// Transaction is the transaction ID, and Username the value of USERNAME.
	Transaction [stun.TransactionIDSize]byte
	Username    []byte
	// Session reports whether the client has a session. Guesses is that of the session if Username is the session's
	// user, otherwise nil.
	Session bool
	Guesses *Guesses
}

// Process holds the limits that all listeners of a process share, because a source that guesses passwords is the same
// source on every listener.
type Process struct {
	failures *limiter
	names    *limiter
	guesses  *guesses
	silenced *silenced
}

// NewProcess returns unused limits.
func NewProcess() *Process {
	return &Process{
		failures: newLimiter(failureRate, perMinute, FailureBurst, PrivateOrLoopback),
		names:    newLimiter(nameRate, perMinute, NameBurst, nil),
		guesses:  newGuesses(),
		silenced: newSilenced(),
	}
}

// AllowFailure reports whether a request with a wrong credential may be answered, and counts the answer.
func (p *Process) AllowFailure(r Request) bool {
	source := r.Client.Addr()
	return p.failures.allow(source, 1) && (PrivateOrLoopback(source) || p.names.allowName(r.Username))
}

// MayCompare reports whether the password of a request may be compared.
func (p *Process) MayCompare(r Request) bool { return p.guesses.mayCompare(r) }

// WrongPassword counts a wrong password.
func (p *Process) WrongPassword(r Request) { p.guesses.wrong(r) }

// RightPassword records that a user has authenticated at an address.
func (p *Process) RightPassword(client netip.Addr, user string) { p.guesses.right(client, user) }

// Private reports whether an address may be that of a load balancer or a node that hides the addresses of many clients.
func Private(a netip.Addr) bool { return a.IsPrivate() || sharedAddressSpace.Contains(a) }

// PrivateOrLoopback reports whether an address is Private, or of this host.
func PrivateOrLoopback(a netip.Addr) bool { return Private(a) || a.IsLoopback() }

// sharedAddressSpace is that of RFC 6598, which clouds use for nodes.
var sharedAddressSpace = netip.MustParsePrefix("100.64.0.0/10")

// PrivateFactor is how many times the limit of one public source all private sources together have.
const PrivateFactor = 100
