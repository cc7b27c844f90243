package revoke

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of the revocations that this service keeps in a namespace. The operator puts as many into a config.
const (
	maxNamespace = 1_000
	// maxCaller is the maximum number of revocations of one caller, so that a caller that revokes without end does not
	// exclude others.
	maxCaller = maxNamespace / 2
)

// refreshInterval is how often a Book reads its store: to see what other replicas have written, and to delete what has
// expired.
const refreshInterval = 30 * time.Second

// ErrFull is the error of Book.Put if a namespace, or the caller, has as many revocations as it may have.
var ErrFull = errors.New("the namespace or the caller has too many revocations")

// FullError is an ErrFull with the namespaces that have no room, or in which the caller has none.
type FullError struct{ Namespaces []string }

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("write revocations: %v: %s", ErrFull, strings.Join(e.Namespaces, ", "))
}

// Is implements the interface of package errors.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Book writes revocations to a Store. It remembers them, because the configs with them arrive later: a credential that is
// made in between must already have its time of issue.
//
// No lock is held while the store works, so that a caller does not wait for the writes of another. The bounds count what
// the Book remembers; what other replicas have written counts after the next read of the store.
type Book struct {
	store Store
	now   func() time.Time
	log   *slog.Logger

	mu    sync.RWMutex
	known map[place]entry
	// ofUser are the places of the revocations of each user, because each credential needs a lookup.
	ofUser map[string][]place
	// held are the numbers of revocations by namespace and caller, and by namespace and anyCaller.
	held map[holder]int
	// writes counts the writes to the store that have ended.
	writes uint64
}

type place struct{ namespace, id string }

type holder struct{ namespace, caller string }

// anyCaller stands for all callers in the keys of held. No caller has this value, because callers are hashes.
const anyCaller = "*"

func holdersOf(r Revocation) [2]holder {
	return [2]holder{{r.Namespace, anyCaller}, {r.Namespace, r.By}}
}

// entry is a revocation. written is the value of Book.writes when its write ended; 0 if it was read from the store.
type entry struct {
	Revocation
	written uint64
}

// beingWritten is the value of entry.written until the write has ended.
const beingWritten = math.MaxUint64

func placeOf(r Revocation) place { return place{r.Namespace, r.ID} }

// NewBook returns a Book that has not read its store.
func NewBook(store Store, now func() time.Time, log *slog.Logger) *Book {
	b := &Book{store: store, now: now, log: log}
	b.clear()
	return b
}

// clear forgets all revocations. The caller holds mu.
func (b *Book) clear() {
	b.known, b.ofUser, b.held = map[place]entry{}, map[string][]place{}, map[holder]int{}
}

// Run reads the store at intervals until ctx ends, and deletes revocations that have expired.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	failing := false
	for {
		err := b.refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			b.log.Warn("cannot refresh revocations, will retry", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (b *Book) refresh(ctx context.Context) error {
	stored, err := b.read(ctx)
	if err != nil {
		return err
	}
	now := b.now()
	expired := slices.DeleteFunc(stored, func(r Revocation) bool { return r.InForce(now) })
	// If a revocation was written again since the read, it has another version and is not deleted.
	return each(expired, func(r Revocation) error { return b.store.Delete(ctx, r.Namespace, r.ID, r.Version) })
}

// List returns the revocations in the store that are in force, in no particular order.
func (b *Book) List(ctx context.Context) ([]Revocation, error) {
	stored, err := b.read(ctx)
	now := b.now()
	return slices.DeleteFunc(stored, func(r Revocation) bool { return !r.InForce(now) }), err
}

// read reads the store, and replaces the remembered revocations by the result. It keeps a revocation whose write had
// not ended when the read began, because the result may not contain it.
func (b *Book) read(ctx context.Context) ([]Revocation, error) {
	b.mu.RLock()
	start := b.writes
	b.mu.RUnlock()
	stored, err := b.store.List(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.known
	b.clear()
	for _, r := range stored {
		b.remember(entry{r, 0})
	}
	for _, e := range before {
		if e.written > start {
			b.remember(e)
		}
	}
	return stored, nil
}

// remember adds a revocation, in place of the one at its place. The caller holds mu.
func (b *Book) remember(e entry) {
	at := placeOf(e.Revocation)
	b.forget(at)
	b.known[at] = e
	for _, h := range holdersOf(e.Revocation) {
		b.held[h]++
	}
	if e.User != "" {
		b.ofUser[e.User] = append(b.ofUser[e.User], at)
	}
}

// forget removes a revocation. The caller holds mu.
func (b *Book) forget(at place) {
	e, known := b.known[at]
	if !known {
		return
	}
	delete(b.known, at)
	for _, h := range holdersOf(e.Revocation) {
		if b.held[h]--; b.held[h] <= 0 {
			delete(b.held, h)
		}
	}
	if e.User == "" {
		return
	}
	places := slices.DeleteFunc(b.ofUser[e.User], func(p place) bool { return p == at })
	if b.ofUser[e.User] = places; len(places) == 0 {
		delete(b.ofUser, e.User)
	}
}

// Put writes revocations, in place of those with the same IDs, at most one for each namespace. A namespace that has no
// room, or whose objects the API server refuses, does not keep those of other namespaces from being written: a tenant may
// have filled it. The error names these namespaces; it is ErrFull if a bound is reached. A repetition with the same
// revocations completes it.
func (b *Book) Put(ctx context.Context, list []Revocation) error {
	list, full := b.reserve(list)
	defer b.written(list)
	err := each(list, func(r Revocation) error { return b.store.Put(ctx, r) })
	if len(full) > 0 {
		err = errors.Join(err, &FullError{Namespaces: full})
	}
	return err
}

// each calls do with revocations until the store does not answer. It continues after an error of one of them.
func each(list []Revocation, do func(Revocation) error) error {
	var errs []error
	for _, r := range list {
		if err := do(r); err != nil {
			errs = append(errs, err)
			if !isStatus(err) {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// written records that the write of revocations has ended. A read of the store that begins later shows whether the
// store has them.
func (b *Book) written(list []Revocation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	for _, r := range list {
		if e, known := b.known[placeOf(r)]; known {
			b.remember(entry{e.Revocation, b.writes})
		}
	}
}

// reserve remembers the revocations that fit into their namespaces and will be written, and returns the namespaces of the
// others. They count also if the write fails, until the store is read: a credential with a time of issue is good in both
// cases.
func (b *Book) reserve(list []Revocation) (fit []Revocation, full []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range list {
		holders := holdersOf(r)
		namespace, caller := b.held[holders[0]], b.held[holders[1]]
		if old, known := b.known[placeOf(r)]; known {
			namespace--
			if old.By == r.By {
				caller--
			}
		}
		if namespace >= maxNamespace || caller >= maxCaller {
			full = append(full, r.Namespace)
			continue
		}
		b.remember(entry{r, beingWritten})
		fit = append(fit, r)
	}
	return fit, full
}

// Delete removes revocations. An object that the API server refuses to delete does not keep others from being deleted.
func (b *Book) Delete(ctx context.Context, list []Revocation) error {
	return each(list, func(r Revocation) error {
		err := b.store.Delete(ctx, r.Namespace, r.ID, "")
		if err == nil {
			b.mu.Lock()
			b.forget(placeOf(r))
			b.mu.Unlock()
		}
		return err
	})
}

// IssuedBefore is credential.Revocations.IssuedBefore for a user at a Gateway. A nil Book has no revocations.
func (b *Book) IssuedBefore(namespace, gateway, userID string, now time.Time) (issuedBefore int64) {
	if b == nil {
		return 0
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, at := range b.ofUser[userID] {
		r := b.known[at]
		if r.Namespace == namespace && r.User == userID && r.InForce(now) &&
			(len(r.Gateways) == 0 || slices.Contains(r.Gateways, gateway)) {
			issuedBefore = max(issuedBefore, r.IssuedBefore)
		}
	}
	return issuedBefore
}
