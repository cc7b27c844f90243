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

// Bounds of the revocations that this service keeps in a namespace. The operator puts the same number into a config.
const (
	maxNamespace = 1_000
	// maxCaller is the maximum number of revocations of one caller, so that one caller cannot use up the revocations of
	// all callers.
	maxCaller = maxNamespace / 2
)

// refreshInterval is how often a Registry reads its store, to find revocations of other replicas and to delete expired
// ones.
const refreshInterval = 30 * time.Second

// ErrFull is the error of Registry.Put if a namespace, or the caller, has as many revocations as it may have.
var ErrFull = errors.New("the namespace or the caller has too many revocations")

// FullError is an ErrFull. It has the namespaces that have no room, or in which the caller has no room.
type FullError struct{ Namespaces []string }

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("write revocations: %v: %s", ErrFull, strings.Join(e.Namespaces, ", "))
}

// Is implements the interface of package errors.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Registry writes revocations to a Store. It remembers them, because the configs with them arrive later: a credential
// that is made in between must already have its time of issue.
//
// No lock is held while the store works, so that a caller does not wait for the writes of another. The bounds apply to
// the remembered revocations. Revocations of other replicas count after the next read of the store.
type Registry struct {
	store Store
	now   func() time.Time
	log   *slog.Logger

	mu    sync.RWMutex
	known map[place]entry
	// byUser are the indexes of the revocations of each user, because each credential needs a lookup.
	byUser map[string][]place
	// counts are the numbers of revocations by namespace and caller, and by namespace and anyCaller.
	counts map[holder]int
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

// entry is a revocation. written is the value of Registry.writes when its write ended; 0 if it was read from the store.
type entry struct {
	Revocation
	written uint64
}

// beingWritten is the value of entry.written until the write has ended.
const beingWritten = math.MaxUint64

func placeOf(r Revocation) place { return place{r.Namespace, r.ID} }

// NewRegistry returns a Registry that has not read its store.
func NewRegistry(store Store, now func() time.Time, log *slog.Logger) *Registry {
	g := &Registry{store: store, now: now, log: log}
	g.clear()
	return g
}

// clear forgets all revocations. The caller holds mu.
func (g *Registry) clear() {
	g.known, g.byUser, g.counts = map[place]entry{}, map[string][]place{}, map[holder]int{}
}

// Run reads the store at intervals until ctx ends, and deletes revocations that have expired.
func (g *Registry) Run(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	failing := false
	for {
		err := g.refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			g.log.Warn("cannot refresh revocations, will retry", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *Registry) refresh(ctx context.Context) error {
	stored, err := g.read(ctx)
	if err != nil {
		return err
	}
	now := g.now()
	expired := slices.DeleteFunc(stored, func(r Revocation) bool { return r.InForce(now) })
	// If a revocation was written again since the read, it has another version and is not deleted.
	return each(expired, func(r Revocation) error { return g.store.Delete(ctx, r.Namespace, r.ID, r.Version) })
}

// List returns the revocations in the store that are in force, in no particular order.
func (g *Registry) List(ctx context.Context) ([]Revocation, error) {
	stored, err := g.read(ctx)
	now := g.now()
	return slices.DeleteFunc(stored, func(r Revocation) bool { return !r.InForce(now) }), err
}

// read reads the store, and replaces the remembered revocations by the result. It keeps a revocation whose write had
// not ended when the read began, because the result may not contain it.
func (g *Registry) read(ctx context.Context) ([]Revocation, error) {
	g.mu.RLock()
	start := g.writes
	g.mu.RUnlock()
	stored, err := g.store.List(ctx)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.known
	g.clear()
	for _, r := range stored {
		g.remember(entry{r, 0})
	}
	for _, e := range before {
		if e.written > start {
			g.remember(e)
		}
	}
	return stored, nil
}

// remember adds a revocation. It replaces the revocation with the same namespace and ID. The caller holds mu.
func (g *Registry) remember(e entry) {
	at := placeOf(e.Revocation)
	g.forget(at)
	g.known[at] = e
	for _, h := range holdersOf(e.Revocation) {
		g.counts[h]++
	}
	if e.User != "" {
		g.byUser[e.User] = append(g.byUser[e.User], at)
	}
}

// forget removes a revocation. The caller holds mu.
func (g *Registry) forget(at place) {
	e, known := g.known[at]
	if !known {
		return
	}
	delete(g.known, at)
	for _, h := range holdersOf(e.Revocation) {
		if g.counts[h]--; g.counts[h] <= 0 {
			delete(g.counts, h)
		}
	}
	if e.User == "" {
		return
	}
	places := slices.DeleteFunc(g.byUser[e.User], func(p place) bool { return p == at })
	if g.byUser[e.User] = places; len(places) == 0 {
		delete(g.byUser, e.User)
	}
}

// Put writes revocations, in place of those with the same IDs, at most one for each namespace. If a namespace has no
// room, or the API server refuses its objects, the revocations of other namespaces are written nevertheless, because a
// tenant may have filled the namespace. The error names the namespaces without a written revocation; it is ErrFull if a
// bound is reached. A repetition with the same revocations completes the write.
func (g *Registry) Put(ctx context.Context, list []Revocation) error {
	list, full := g.reserve(list)
	defer g.written(list)
	err := each(list, func(r Revocation) error { return g.store.Put(ctx, r) })
	if len(full) > 0 {
		err = errors.Join(err, &FullError{Namespaces: full})
	}
	return err
}

// each calls do with each revocation. It continues after an error of one of them, but ends if the store does not
// answer.
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
func (g *Registry) written(list []Revocation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes++
	for _, r := range list {
		if e, known := g.known[placeOf(r)]; known {
			g.remember(entry{e.Revocation, g.writes})
		}
	}
}

// reserve remembers the revocations that fit into their namespaces and will be written, and returns the namespaces of
// the others. The remembered revocations count until the next read of the store, even if the write fails. That is
// harmless, because they only add a time of issue to new credentials.
func (g *Registry) reserve(list []Revocation) (fit []Revocation, full []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range list {
		holders := holdersOf(r)
		namespace, caller := g.counts[holders[0]], g.counts[holders[1]]
		if old, known := g.known[placeOf(r)]; known {
			namespace--
			if old.By == r.By {
				caller--
			}
		}
		if namespace >= maxNamespace || caller >= maxCaller {
			full = append(full, r.Namespace)
			continue
		}
		g.remember(entry{r, beingWritten})
		fit = append(fit, r)
	}
	return fit, full
}

// Delete removes revocations. If the API server refuses to delete an object, the others are deleted nevertheless.
func (g *Registry) Delete(ctx context.Context, list []Revocation) error {
	return each(list, func(r Revocation) error {
		err := g.store.Delete(ctx, r.Namespace, r.ID, "")
		if err == nil {
			g.mu.Lock()
			g.forget(placeOf(r))
			g.mu.Unlock()
		}
		return err
	})
}

// Until returns when the revocation with a namespace and ID ends, in seconds since 1970; 0 if none is known.
func (g *Registry) Until(namespace, id string) int64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.known[place{namespace, id}].Revocation.Until
}

// IssuedBefore is credential.Revocations.IssuedBefore for a user at a Gateway. A nil Registry has no revocations.
func (g *Registry) IssuedBefore(namespace, gateway, userID string, now time.Time) (issuedBefore int64) {
	if g == nil {
		return 0
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, at := range g.byUser[userID] {
		r := g.known[at]
		if r.Namespace == namespace && r.User == userID && r.InForce(now) &&
			(len(r.Gateways) == 0 || slices.Contains(r.Gateways, gateway)) {
			issuedBefore = max(issuedBefore, r.IssuedBefore)
		}
	}
	return issuedBefore
}
