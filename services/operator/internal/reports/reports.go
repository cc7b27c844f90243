// Package census knows what all dataplane pods have reported last, whichever replica of the operator they are connected to.
//
// A dataplane reports to the one replica that it is connected to, while the leader writes statuses and any replica may be asked how much there is
// to do. There are three ways to one view:
//
//   - Dataplanes report to all replicas. Each would need as many connections as there are replicas, to addresses of pods, which change: the
//     one thing that its config does without. And dataplanes that exist know one server.
//   - The operator asks the pods. It would have to list and watch pods, to reach into every namespace, through policies that are made to keep
//     others out, and to be let in by pods that trust nobody; the answers would be as old as the round is long.
//   - Replicas follow each other. Replicas are few, find each other among the endpoints of their own Service, which they watch anyway, and
//     have the means to know each other: the certificate and the tokens of config discovery.
//
// The last is what happens here. A replica passes on what is reported to itself only, so that nothing goes round in circles. What a replica
// has said stays for half a minute when it cannot be reached: its dataplanes need that long to come back to another.
package reports

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// keep is how long the word of a replica that cannot be reached counts.
const retention = 30 * time.Second

// The pauses between attempts to reach a replica.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Store is the view of all replicas' reports.
type Store struct {
	log *slog.Logger
	// Changed has a token when Changes has something.
	Changed chan struct{}

	mu sync.Mutex
	// said is what each source has said of a pod, by config.
	latest  map[string]map[discovery.ReportKey]map[*replica]entry
	changes map[string]bool
}

// entry is a report, when it came, and in which connection to its source.
type entry struct {
	discovery.Report
	at         time.Time
	connection int
}

// source is a replica.
type replica struct {
	connection int
}

// New returns a census that knows nothing.
func New(log *slog.Logger) *Store {
	return &Store{log: log, Changed: make(chan struct{}, 1), latest: map[string]map[discovery.ReportKey]map[*replica]entry{}, changes: map[string]bool{}}
}

// Reports returns the newest report of every pod that serves a config, by name of the pod.
func (c *Store) Of(id string) (all []discovery.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reports(id)
}

func (c *Store) reports(id string) (all []discovery.Report) {
	for _, by := range c.latest[id] {
		var newest entry
		for _, e := range by {
			if e.at.After(newest.at) {
				newest = e
			}
		}
		all = append(all, newest.Report)
	}
	slices.SortFunc(all, func(a, b discovery.Report) int { return cmp.Compare(a.Pod, b.Pod) })
	return all
}

// All returns the newest report of every pod, by config and pod.
func (c *Store) All() (all []discovery.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.latest {
		all = append(all, c.reports(id)...)
	}
	slices.SortFunc(all, func(a, b discovery.Report) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Pod, b.Pod)) })
	return all
}

// Changes returns the configs of which somebody has reported since it was called last, or has ceased to.
func (c *Store) Changes() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.changes {
		ids = append(ids, id)
	}
	clear(c.changes)
	return ids
}

// Source is whoever can tell of reports: the server of this replica, or that of another.
type Source interface {
	FollowReports(ctx context.Context, each func(discovery.ReportNews) error) error
}

// Follow takes in what a replica says until ctx ends, and forgets it some time after that.
func (c *Store) Follow(ctx context.Context, name string, from Source) {
	s, pause, lost := &replica{}, firstPause, time.Time{}
	for ctx.Err() == nil {
		c.startConnection(s)
		begun := time.Now()
		err := from.FollowReports(ctx, func(news discovery.ReportNews) error {
			lost = time.Time{}
			c.apply(s, news)
			return nil
		})
		if ctx.Err() != nil {
			break
		}
		if lost.IsZero() {
			lost = time.Now()
			c.log.Info("reports of another replica cannot be followed", "replica", name, "error", err)
		}
		if time.Since(begun) > lastPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, lastPause)
		if time.Since(lost) >= retention {
			c.dropReplica(s)
		}
	}
	time.AfterFunc(retention, func() { c.dropReplica(s) })
}

// begin starts a connection: what it has not repeated when it is current is gone.
func (c *Store) startConnection(s *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.connection++
}

func (c *Store) apply(s *replica, news discovery.ReportNews) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case news.Report != nil:
		r := *news.Report
		c.put(s, discovery.ReportKey{ID: r.ID, Pod: r.Pod}, entry{r, time.Now(), s.connection})
	case news.Gone != nil:
		c.drop(s, *news.Gone)
	case news.Current:
		c.dropBefore(s, s.connection)
	}
}

func (c *Store) dropReplica(s *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropBefore(s, s.connection+1)
}

// dropBefore drops what a source has said before a connection. It needs the lock, as the rest does.
func (c *Store) dropBefore(s *replica, connection int) {
	for _, pods := range c.latest {
		for key, by := range pods {
			if e, ok := by[s]; ok && e.connection < connection {
				c.drop(s, key)
			}
		}
	}
}

func (c *Store) put(s *replica, key discovery.ReportKey, e entry) {
	if c.latest[key.ID] == nil {
		c.latest[key.ID] = map[discovery.ReportKey]map[*replica]entry{}
	}
	if c.latest[key.ID][key] == nil {
		c.latest[key.ID][key] = map[*replica]entry{}
	}
	if old, ok := c.latest[key.ID][key][s]; ok && old.connection < e.connection && old.Report == e.Report {
		e.at = old.at // a new connection begins with what is known: that is no news of the pod, which may have moved since
	}
	c.latest[key.ID][key][s] = e
	c.changed(key.ID)
}

func (c *Store) drop(s *replica, key discovery.ReportKey) {
	by := c.latest[key.ID][key]
	if _, ok := by[s]; !ok {
		return
	}
	if delete(by, s); len(by) == 0 {
		delete(c.latest[key.ID], key)
	}
	if len(c.latest[key.ID]) == 0 {
		delete(c.latest, key.ID)
	}
	c.changed(key.ID)
}

func (c *Store) changed(id string) {
	c.changes[id] = true
	select {
	case c.Changed <- struct{}{}:
	default:
	}
}

// Peers follows a set of replicas that changes.
type Peers struct {
	store  *Store
	follow func(address string) Source
	ctx    context.Context
	ends   map[string]context.CancelCauseFunc
}

// NewPeers returns an empty set. Who is in it is followed until ctx ends, as the Source that follow makes of an address.
func NewPeers(ctx context.Context, c *Store, follow func(address string) Source) *Peers {
	return &Peers{store: c, follow: follow, ctx: ctx, ends: map[string]context.CancelCauseFunc{}}
}

var errLeft = errors.New("no replica any more")

// Set says who is in the set from now on. It belongs to one goroutine.
func (p *Peers) Set(addresses []string) {
	for address, end := range p.ends {
		if !slices.Contains(addresses, address) {
			end(errLeft)
			delete(p.ends, address)
		}
	}
	for _, address := range addresses {
		if _, known := p.ends[address]; !known {
			ctx, end := context.WithCancelCause(p.ctx)
			p.ends[address] = end
			go p.store.Follow(ctx, address, p.follow(address))
		}
	}
}
