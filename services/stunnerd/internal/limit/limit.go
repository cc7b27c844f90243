// Package limit bounds the answers to unauthenticated clients, and the comparisons of passwords. All of its tables have
// a bounded size.
//
// # Files
//
//	guesses.go  limits on password guesses
//	answers.go  limits on answers to unauthenticated clients
//
// Limits on connections and handshakes are in package listener.
package limit

import (
	"net/netip"

	"github.com/pion/stun/v2"
)

// Request contains the properties of a STUN request on which limits depend.
type Request struct {
	// Client is the transport address of the client.
	Client netip.AddrPort
	// Connected reports whether the client uses a connection, whose source address cannot be forged.
	Connected bool
	// Transaction is the transaction ID.
	Transaction [stun.TransactionIDSize]byte
	// Username is the value of USERNAME. It may not be authenticated.
	Username []byte
	// Session reports whether the client has a session.
	Session bool
	// Guesses counts the wrong passwords of the session. It is nil unless Username is the user of the session.
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

// AllowFailure reports whether a request with a wrong credential may be answered. If so, it counts the answer.
func (p *Process) AllowFailure(r Request) bool {
	source := r.Client.Addr()
	return p.failures.allow(source, 1) && (PrivateOrLoopback(source) || p.names.allowName(r.Username))
}

// MayCompare reports whether the password of a request may be compared. It reports false after too many wrong passwords
// (see guesses).
func (p *Process) MayCompare(r Request) bool { return p.guesses.mayCompare(r) }

// WrongPassword counts a wrong password.
func (p *Process) WrongPassword(r Request) { p.guesses.wrong(r) }

// RightPassword records that a user has authenticated at an address.
func (p *Process) RightPassword(client netip.Addr, user string) { p.guesses.right(client, user) }

// Private reports whether an address may belong to a load balancer or a node that hides the addresses of many clients.
func Private(a netip.Addr) bool { return a.IsPrivate() || sharedAddressSpace.Contains(a) }

// PrivateOrLoopback reports whether an address is Private, or of this host.
func PrivateOrLoopback(a netip.Addr) bool { return Private(a) || a.IsLoopback() }

// sharedAddressSpace is the shared address space of RFC 6598, which clouds use for nodes.
var sharedAddressSpace = netip.MustParsePrefix("100.64.0.0/10")

// PrivateFactor is the factor between the limit of one public source and the limit of all private sources together.
const PrivateFactor = 100
