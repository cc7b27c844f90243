// Package usage counts what each session relays, so that an operator can bill by it.
//
// A session has one Account in each process that has had it. The counters of an account only grow, and are read for
// records: an interim record once a minute, and a last record. A consumer takes the highest values of each part of a
// session, so a record that is delivered twice, late or not at all changes no sum. A process that is killed leaves its
// accounts in a file, and the next process continues them or writes their last record.
//
// The usage of the last hour is kept too, by minute, for Recorder.Hour. It is read from the accounts at the end of a
// minute or of a session, and for a query.
//
// For each batch of packets, only the counters of a route are increased.
//
// # Files
//
//	usage.go    accounts
//	record.go   records
//	recorder.go the accounts of a process, and when their records are written
//	hour.go     the usage of the last hour
//	slots.go    the memory of the counters, and the file
package usage

import (
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// ID identifies a session, also after a restart of the process and at another pod.
type ID [16]byte

// String returns 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// maxRoutes is the number of routes that an account counts. The last route stands for all further routes.
const maxRoutes = 5

// Others is the name for all routes that an account does not count by name.
const Others = "others"

// Identity is the part of an account that identifies its session.
type Identity struct {
	ID ID
	// Gateway is NAMESPACE/NAME.
	Gateway, Listener, Protocol string
	// User is the user id, and Caveats the text of the caveats of the credential, or "".
	User, Caveats string
	Started       time.Time
	// Continued reports whether another process or pod has had the session before.
	Continued bool
}

// Account counts the traffic of one session in this process. Its methods are safe for concurrent use. A nil Account
// counts nothing.
type Account struct {
	recorder *Recorder
	at       ref
	slot     *slot
	id       ID
	// bucket is the second of the minute in which interim records are due.
	bucket int
	// due reports whether an interim record is due, and settled is when the last record is due. Recorder.mu guards
	// them.
	due     bool
	settled time.Time
	closed  atomic.Bool

	// The following fields contain what the last hour already includes of the account. Recorder.mu guards them.

	user    string
	counted [maxRoutes]counted
	// upUntil is the end of the counted time, in milliseconds since 1970.
	upUntil int64
	// begun reports whether the beginning of the session is counted. released reports whether the slot may be used for
	// another account.
	begun, released bool

	mu    sync.Mutex
	names [maxRoutes]string
}

// Route returns the counters of the traffic with a route. They are valid for settleTime after End.
func (a *Account) Route(name string) *meter.Traffic {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.names {
		if i == maxRoutes-1 {
			name = Others
		}
		if a.names[i] == "" {
			at := a.recorder.named(name)
			if at == 0 {
				return nil
			}
			a.names[i] = name
			a.slot.routes[i].name.Store(at)
		}
		if a.names[i] == name {
			return &a.slot.routes[i].Traffic
		}
	}
	return nil
}

// Because sets the reason of the end. Later calls are ignored.
func (a *Account) Because(reason string) {
	if a != nil {
		a.slot.reason.CompareAndSwap(0, a.recorder.named(reason))
	}
}

// End ends the account. Its last record is due after settleTime, because packets that are being relayed are counted
// until then. The reason is the reason that Because has set, or Unknown.
func (a *Account) End() {
	if a != nil && a.closed.CompareAndSwap(false, true) {
		a.Because(Unknown)
		a.recorder.end(a)
	}
}

// Leave ends the account in this process only: with Options.HandOver, the next process that uses the folder continues
// it. Otherwise the account ends, and a process that continues the session begins another account.
func (a *Account) Leave() {
	if a != nil && a.closed.CompareAndSwap(false, true) {
		a.recorder.leave(a)
	}
}

// Reasons of the end of a session that are not reasons of package meter.
const (
	// ByClient is the end that the client has requested.
	ByClient = "client"
	// Expired is the end of the lifetime.
	Expired = "expired"
	// Disconnected is the end of the connection of the client.
	Disconnected = "disconnected"
	// ByOperator is the end that the operator has requested.
	ByOperator = "operator"
	// ListenerRemoved is the end of the listener.
	ListenerRemoved = "listener_removed"
	// Shutdown is the end of the process.
	Shutdown = "shutdown"
	// Moved is the move to another pod, where the session continues.
	Moved = "moved"
	// Crashed is the end by a crash, if the next process has not continued the session.
	Crashed = "crashed"
	// Unknown is an end without a reason, for example because the session could not start. If it has relayed nothing,
	// it has no record.
	Unknown = "unknown"
)
