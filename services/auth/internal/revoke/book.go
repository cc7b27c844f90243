package revoke

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Bounds of the revocations that this service keeps in a namespace. The operator puts as many into a config.
const (
	maxNamespace = 1_000
	// maxCaller is the part that one caller may have, so that a caller that revokes without end leaves room for others.
	maxCaller = maxNamespace / 2
)

// refreshInterval is how often a Book reads its store: to see what other replicas have written, and to delete what has
// expired.
const refreshInterval = 30 * time.Second

// ErrFull is the error of Book.Put if a namespace, or the caller, has as many revocations as it may have.
var ErrFull = errors.New("the namespace or the caller has too many revocations")

// Book writes revocations to a Store. It remembers them, because the configs with them arrive later: a credential that is
// made in between must already have its time of issue.
type Book struct {
	store Store
	now   func() time.Time
	log   *slog.Logger

	// writing makes the check of the bounds and the write one step.
	writing sync.Mutex

	mu    sync.RWMutex
	known map[place]Revocation
	// ofUser are the places of the revocations of each user, because each credential needs a lookup.
	ofUser map[string][]place
}

type place struct{ namespace, id string }

func placeOf(r Revocation) place { return place{r.Namespace, r.ID} }

// NewBook returns a Book that has not read its store.
func NewBook(store Store, now func() time.Time, log *slog.Logger) *Book {
	return &Book{store: store, now: now, log: log, known: map[place]Revocation{}, ofUser: map[string][]place{}}
}

// Run reads the store at intervals until ctx ends, and deletes revocations that have expired.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	failing := false
	for {
		_, err := b.List(ctx)
		if err == nil {
			err = b.deleteExpired(ctx)
		}
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

func (b *Book) deleteExpired(ctx context.Context) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	now := b.now()
	var errs []error
	for _, r := range b.all() {
		if !r.InForce(now) {
			errs = append(errs, b.remove(ctx, r))
		}
	}
	return errors.Join(errs...)
}

func (b *Book) all() (all []Revocation) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, r := range b.known {
		all = append(all, r)
	}
	return all
}

// List returns the revocations in the store that are in force, in no particular order.
func (b *Book) List(ctx context.Context) ([]Revocation, error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	return b.read(ctx)
}

// read reads the store. The caller holds writing.
func (b *Book) read(ctx context.Context) ([]Revocation, error) {
	stored, err := b.store.List(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.known, b.ofUser = make(map[place]Revocation, len(stored)), map[string][]place{}
	for _, r := range stored {
		b.remember(r)
	}
	b.mu.Unlock()
	now := b.now()
	return slices.DeleteFunc(stored, func(r Revocation) bool { return !r.InForce(now) }), nil
}

// remember adds a revocation. The caller holds mu.
func (b *Book) remember(r Revocation) {
	at := placeOf(r)
	if _, known := b.known[at]; !known && r.User != "" {
		b.ofUser[r.User] = append(b.ofUser[r.User], at)
	}
	b.known[at] = r
}

// Put writes revocations, in place of those with the same IDs. After an error some of them may be written; a repetition
// with the same revocations completes it. The error is ErrFull if a bound is reached, and then none is written.
func (b *Book) Put(ctx context.Context, list []Revocation) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	stored, err := b.read(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		namespace, caller := 0, 0
		for _, other := range stored {
			if other.Namespace != r.Namespace || other.ID == r.ID {
				continue
			}
			if namespace++; other.By == r.By {
				caller++
			}
		}
		if namespace >= maxNamespace || caller >= maxCaller {
			return ErrFull
		}
	}
	for _, r := range list {
		// It counts from here on, also if the write fails: a credential with a time of issue is good in both cases.
		b.mu.Lock()
		b.remember(r)
		b.mu.Unlock()
		if err := b.store.Put(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// Delete removes revocations.
func (b *Book) Delete(ctx context.Context, list []Revocation) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	for _, r := range list {
		if err := b.remove(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// remove removes one revocation. The caller holds writing.
func (b *Book) remove(ctx context.Context, r Revocation) error {
	if err := b.store.Delete(ctx, r.Namespace, r.ID); err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.known, placeOf(r))
	b.mu.Unlock()
	return nil
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
