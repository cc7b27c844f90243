// Package resolve keeps the addresses of host names current.
//
// A Resolver asks for every name that it was told to watch, again and again, for IPv4 and for IPv6 apart, so that trouble with
// one family costs nothing of the other. A good answer replaces the one before. A lookup that fails says nothing and changes nothing.
// That a name does not exist, or has no address, is an answer too; because it is also what a name server says that has just been
// started, it must hold for a minute before the addresses are given up.
//
// Nothing here depends on the TTL of an answer: names are resolved the way the system is set up, hosts file and search list included, by
// net.Resolver, which does not tell it. So every name is asked for about every five seconds, and a minute without an address is what
// three times the TTL would be otherwise.
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
	// Interval is the longest pause between two lookups of a name; jitter makes it shorter by up to a fifth, so that names that
	// came with one config are not asked for in one burst for ever.
	Interval = 5 * time.Second
	// Absence is how long a name must have no address before those that it had are given up.
	Absence = time.Minute
	// MaxAddresses is how many addresses of a name are kept.
	MaxAddresses = 1_000

	// patience bounds a lookup: two servers, two tries each, five seconds a try.
	patience = 20 * time.Second
	// maxLookups bounds the lookups that are under way at a time.
	maxLookups = 64
	// gather is how long changes are collected before they are told: names that change together are told of together.
	gather = 100 * time.Millisecond
)

// Lookup asks once for the addresses that a host name has in a family, which is "ip4" or "ip6". No address and no error mean
// that there is none: the name server has said so.
type Lookup func(ctx context.Context, family, host string) ([]netip.Addr, error)

// Resolver knows the addresses of the names that it watches. It is made with New.
type Resolver struct {
	lookup  Lookup
	changed func()
	log     *slog.Logger
	turns   chan struct{}
	news    chan struct{}

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	watched map[question]*watch
}

// question is what a name server is asked.
type question struct{ host, family string }

// watch is a question that is asked again and again.
type watch struct {
	question
	stop   context.CancelFunc
	known  answer
	failed bool
}

// New returns a resolver that watches no name. It calls changed, never twice at a time, after Answers has begun to give something else
// than before by itself; names that Watch adds or takes away are no such change.
func New(lookup Lookup, changed func(), log *slog.Logger) *Resolver {
	r := &Resolver{
		lookup: lookup, changed: changed, log: log,
		turns: make(chan struct{}, maxLookups), news: make(chan struct{}, 1), watched: map[question]*watch{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(r.tell)
	return r
}

// Watch says which names to keep current; all others are forgotten. A name may stand there more than once.
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
	r.running.Go(func() { r.keep(ctx, w) })
}

// Answers returns the addresses of the watched names, in order, IPv4 first. A name that has none is left out. Of too many the first in order
// are kept, so that calls do not flap when a name server shuffles its answers.
func (r *Resolver) Answers() map[string][]netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := map[string][]netip.Addr{}
	for q := range r.watched {
		if _, done := answers[q.host]; done {
			continue
		}
		all := slices.Concat(r.watched[question{q.host, "ip4"}].known.addrs, r.watched[question{q.host, "ip6"}].known.addrs)
		if len(all) > 0 {
			answers[q.host] = all[:min(len(all), MaxAddresses)]
		}
	}
	return answers
}

// Close ends all lookups and returns when nothing is under way any more, a call of changed included.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.running.Wait()
}

// keep asks until the name is not wanted any more.
func (r *Resolver) keep(ctx context.Context, w *watch) {
	for {
		r.ask(ctx, w)
		if !pause(ctx, Interval-rand.N(Interval/5)) {
			return
		}
	}
}

// ask waits for its turn, asks once and notes what comes of it.
func (r *Resolver) ask(ctx context.Context, w *watch) {
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
	case <-ctx.Done():
		return
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addrs, err := r.lookup(limited, w.family, w.host)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return // Watch has forgotten the name meanwhile
	}
	r.note(w, addrs, err)
}

// note takes the outcome of a lookup in. It logs what is news, not what repeats.
func (r *Resolver) note(w *watch, addrs []netip.Addr, err error) {
	if err != nil {
		if !w.failed {
			r.log.Warn("resolve host name: keep its addresses", "host", w.host, "family", w.family, "addresses", len(w.known.addrs), "error", err)
		}
		w.failed = true
		return
	}
	if w.failed {
		r.log.Info("resolve host name: it is answered again", "host", w.host, "family", w.family)
	}
	w.failed = false
	before := w.known.addrs
	w.known = w.known.next(addrs, time.Now())
	if slices.Equal(before, w.known.addrs) {
		return
	}
	r.log.Info("host name has other addresses", "host", w.host, "family", w.family, "addresses", len(w.known.addrs), "before", len(before))
	select {
	case r.news <- struct{}{}:
	default: // there is news already that nobody has been told of
	}
}

// tell calls changed until the resolver is closed.
func (r *Resolver) tell() {
	for {
		select {
		case <-r.news:
		case <-r.ctx.Done():
			return
		}
		if !pause(r.ctx, gather) {
			return
		}
		select {
		case <-r.news: // what came in meanwhile is told of now
		default:
		}
		r.changed()
	}
}

// pause reports whether the time went by before ctx ended.
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
