// Package resolve keeps the addresses of host names current.
//
// A Resolver looks up every watched name at intervals, separately for IPv4 and IPv6, so that an error of one family
// does not affect the other. A result with addresses replaces the previous one. A failed lookup changes nothing. If a
// name does not exist or has no address, its addresses are kept for one more minute, because a name server that has
// just started may answer so.
//
// The TTL of answers is not used: names are resolved as the system is configured, including hosts file and search list,
// by net.Resolver, which does not return the TTL. Every name is looked up about every five seconds.
//
// # Files
//
//	resolve.go  lookups and their intervals
//	answer.go   lifetime of answers
//	system.go   the resolver of the system
package resolve

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// Interval is the maximum pause between two lookups of a name. Jitter shortens it by up to a fifth, so that the
	// names of one config are not always looked up at once.
	Interval = 5 * time.Second
	// KeepMissing is how long the addresses of a name are kept when lookups find no addresses any more.
	KeepMissing = time.Minute
	// MaxAddresses is the maximum number of addresses of a name.
	MaxAddresses = 1_000
	// maxAnswers limits the addresses of all questions together, because the owner of a name decides how many addresses
	// it has. When the limit is reached, each question may still have an equal share of maxAnswers, at least one
	// address.
	maxAnswers = 32_768

	// lookupTimeout is the timeout of a lookup: two servers, two attempts each, five seconds each.
	lookupTimeout = 20 * time.Second
	// maxLookups is the maximum number of concurrent lookups.
	maxLookups = 64
	// batchDelay is the delay from a change of an address to the call of the function changed, so that names that
	// change together cause one call.
	batchDelay = 100 * time.Millisecond
)

// Lookup returns the addresses of a host name in a family, "ip4" or "ip6". If the name has none, it returns no address
// and no error.
type Lookup func(ctx context.Context, family, host string) ([]netip.Addr, error)

// Resolver resolves the names that it watches. New makes one.
type Resolver struct {
	lookup  Lookup
	changed func()
	log     *slog.Logger
	slots   chan struct{} // holds a token for each running lookup
	updated chan struct{} // holds a token if changed is to be called

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	watched map[question]*watch
	// held is the number of addresses in all answers.
	held int
}

// question is a host name and an address family.
type question struct{ host, family string }

// watch is a watched question.
type watch struct {
	question
	stop   context.CancelFunc
	answer answer
	failed bool
}

// New returns a resolver that watches no names. It calls changed, from one goroutine, after lookups have changed the
// result of Answers. If Watch removes a name from Answers, changed is not called.
func New(lookup Lookup, changed func(), log *slog.Logger) *Resolver {
	r := &Resolver{
		lookup: lookup, changed: changed, log: log,
		slots: make(chan struct{}, maxLookups), updated: make(chan struct{}, 1), watched: map[question]*watch{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(r.notify)
	return r
}

// Watch sets the watched names, which may contain duplicates. It removes the addresses of all other names.
func (r *Resolver) Watch(hosts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return
	}
	wanted := map[question]bool{}
	for _, host := range hosts {
		wanted[question{host, "ip4"}], wanted[question{host, "ip6"}] = true, true
	}
	for q, w := range r.watched {
		if !wanted[q] {
			w.stop()
			r.held -= len(w.answer.addrs)
			delete(r.watched, q)
		}
	}
	for q := range wanted {
		if r.watched[q] == nil {
			r.start(q)
		}
	}
}

func (r *Resolver) start(q question) {
	ctx, stop := context.WithCancel(r.ctx)
	w := &watch{question: q, stop: stop}
	r.watched[q] = w
	r.running.Go(func() { r.run(ctx, w) })
}

// Answers returns the addresses of the watched names, sorted, IPv4 first. Names without addresses are not in it. If a
// name has more than MaxAddresses, only the first in sort order are returned, so that the result does not depend on the
// order in an answer.
func (r *Resolver) Answers() map[string][]netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := map[string][]netip.Addr{}
	for q := range r.watched {
		if _, done := answers[q.host]; done {
			continue
		}
		all := slices.Concat(r.watched[question{q.host, "ip4"}].answer.addrs,
			r.watched[question{q.host, "ip6"}].answer.addrs)
		if len(all) > 0 {
			answers[q.host] = all[:min(len(all), MaxAddresses)]
		}
	}
	return answers
}

// Close ends all lookups, and waits for them and for a running call of changed.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.running.Wait()
}

// run looks up a name at intervals until ctx ends.
func (r *Resolver) run(ctx context.Context, w *watch) {
	for {
		r.resolve(ctx, w)
		if !pause(ctx, Interval-rand.N(Interval/5)) {
			return
		}
	}
}

// resolve looks up a name once, and records the result. It first waits until less than maxLookups lookups are running.
func (r *Resolver) resolve(ctx context.Context, w *watch) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return
	}
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := r.lookup(limited, w.family, w.host)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return // no longer watched
	}
	r.record(w, addrs, err)
}

// record updates a watch with the result of a lookup. It logs changes only. The caller holds mu.
func (r *Resolver) record(w *watch, addrs []netip.Addr, err error) {
	if err != nil {
		if !w.failed {
			r.log.Warn("cannot resolve host name, keep its addresses", "host", w.host, "family", w.family,
				"addresses", len(w.answer.addrs), "error", err)
		}
		w.failed = true
		return
	}
	if w.failed {
		r.log.Info("host name resolved again", "host", w.host, "family", w.family)
	}
	w.failed = false
	before := w.answer.addrs
	w.answer = w.answer.next(addrs, time.Now())
	found, most := len(w.answer.addrs), r.most(len(before))
	w.answer.addrs = slices.Clone(w.answer.addrs[:min(found, most)]) // frees the memory of the other addresses
	r.held += len(w.answer.addrs) - len(before)
	if slices.Equal(before, w.answer.addrs) {
		return
	}
	if found > most {
		r.log.Warn("host name has more addresses than are used: use fewer host names, or names with fewer addresses",
			"host", w.host, "family", w.family, "addresses", found, "used", most)
	}
	r.log.Info("addresses of host name changed", "host", w.host, "family", w.family, "addresses", len(w.answer.addrs),
		"before", len(before))
	select {
	case r.updated <- struct{}{}:
	default: // a call of changed is already due
	}
}

// most returns the maximum number of addresses in the answer to a question. before is their current number. The caller
// must hold mu.
func (r *Resolver) most(before int) int {
	share := max(1, maxAnswers/len(r.watched))
	return min(MaxAddresses, max(share, maxAnswers-(r.held-before)))
}

// notify calls the function changed after addresses have changed. It returns when the resolver is closed.
func (r *Resolver) notify() {
	for {
		select {
		case <-r.updated:
		case <-r.ctx.Done():
			return
		}
		if !pause(r.ctx, batchDelay) {
			return
		}
		select {
		case <-r.updated: // this call covers the updates during the delay
		default:
		}
		r.changed()
	}
}

// pause waits for d, and reports whether it passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
