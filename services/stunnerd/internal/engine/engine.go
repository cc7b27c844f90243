// Package engine is the interface between admission and an allocation engine, which holds the allocations and
// permissions of clients (RFC 8656). Package relay holds the channel bindings and the permissions that they install.
//
// The gate authenticates clients, admits requests and answers them. An engine gets only admitted requests, and sends
// nothing to a client by itself. The gate also owns the lifetimes of allocations: an engine keeps an allocation until
// End. The engine owns the lifetime of permissions (300 s, RFC 8656 §9).
//
// Package server selects the engine. Package pionturn is the only implementation.
package engine

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Engine holds the allocations of a process. Its methods may be called from several goroutines at a time.
type Engine interface {
	// New returns an Allocation that uses a relay. The allocation exists for the engine only after Allocation.Start.
	New(r *relay.Relay) Allocation
	// Allocations returns the number of allocations that were started and have not ended.
	Allocations() int
	// Tasks returns a Task for each goroutine that handles the requests of many allocations, for the liveness probe.
	Tasks() []*watch.Task
	// Close ends all allocations.
	Close() error
}

// Allocation is one allocation of an Engine. Its methods may be called from several goroutines at a time.
//
// The error of Start and Permit is ErrNoAllocation, a Refusal, or a failure of the engine itself.
type Allocation interface {
	// Start creates the allocation. The engine closes the relay when the allocation ends.
	Start() error
	// Permit installs or refreshes the permissions of peers. Only their IP addresses count (RFC 8656 §9).
	Permit(peers []netip.AddrPort) error
	// Permitted reports whether the IP address of a peer has a permission.
	Permitted(peer netip.AddrPort) bool
	// Send passes the data of a Send indication to relay.Relay.Send if the peer has a permission. Otherwise it reports
	// false. It does not retain the slice.
	Send(data []byte, peer netip.AddrPort) (permitted bool)
	// End ends the allocation. The relay is closed when End returns without an error.
	End() error
	// RelayClosed ends the allocation, without waiting, if the relay was not closed by the engine. It is called when
	// the relay is closed.
	RelayClosed()
}

// ErrNoAllocation is the error for an allocation that has ended.
var ErrNoAllocation = errors.New("the allocation has ended")

// Refusal is the error for a request that the engine refuses although the gate has admitted it.
type Refusal struct{ Code stun.ErrorCode }

// Error implements error.
func (r Refusal) Error() string {
	return fmt.Sprintf("the allocation engine refused the request with %d", r.Code)
}
