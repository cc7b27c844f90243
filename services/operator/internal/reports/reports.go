// Package reports holds the latest report of every dataplane pod, whichever replica of the operator the pod is
// connected to.
//
// A dataplane reports to the one replica that it is connected to, but the leader writes statuses and any replica may
// be asked for the load of a Gateway. Three designs are possible:
//
//   - Dataplanes report to all replicas. Each dataplane would need one connection per replica, to pod addresses that
//     change. Released dataplanes support a single server.
//   - The operator polls the pods. It would need the right to list pods, a network path into every namespace, and a
//     credential that the pods accept. The answers would be as old as the polling interval.
//   - Replicas read the reports of each other. There are few replicas, they find each other in the EndpointSlices of
//     their own Service, and they authenticate with the certificates and tokens of config discovery.
//
// This package implements the third. A replica forwards only the reports that it received from dataplanes itself, so
// reports do not loop. The reports of an unreachable replica are kept for 30 s: its dataplanes need that long to
// connect to another replica.
//
// The protocol between replicas is services/api/discovery/reports.go.
package reports

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// retention is how long the reports from another replica are kept after the connection to that replica was lost.
const retention = 30 * time.Second

// The maximum delay between attempts to connect to another replica begins with firstPause and doubles up to lastPause.
// The delay is random, and at least half of the maximum.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Store holds the reports of dataplanes that this replica and the other replicas received.
type Store struct {
	log *slog.Logger
	// Changed receives a value when Changes would return at least one ID.
	Changed chan struct{}

	mu sync.Mutex
	// latest are the reports by config ID, by pod, and by the replica of the operator that received the report from the
	// pod.
	latest map[string]map[discovery.ReportKey]map[*replica]entry
	// changes are the IDs that the next call of Changes returns.
	changes map[string]bool
}

// entry is a report with the time when it arrived here, and the number of the connection to the replica on which it
// arrived.
type entry struct {
	discovery.Report
	at         time.Time
	connection int
}

// replica is a replica whose reports are followed.
type replica struct {
	// connection counts the connections to the replica.
	connection int
}

// New returns an empty store.
func New(log *slog.Logger) *Store {
	return &Store{
		log: log, Changed: make(chan struct{}, 1), changes: map[string]bool{},
		latest: map[string]map[discovery.ReportKey]map[*replica]entry{},
	}
}

// Of returns the latest report of every pod of a Gateway, sorted by pod name. id is the config ID of the Gateway.
func (c *Store) Of(id string) (all []discovery.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(id)
}

func (c *Store) of(id string) (all []discovery.Report) {
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

// All returns the latest report of every pod, sorted by config ID and pod name.
func (c *Store) All() (all []discovery.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.latest {
		all = append(all, c.of(id)...)
	}
	slices.SortFunc(all,
		func(a, b discovery.Report) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Pod, b.Pod)) })
	return all
}

// Changes returns the IDs of the configs whose reports have changed since the previous call.
func (c *Store) Changes() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids = slices.Collect(maps.Keys(c.changes))
	clear(c.changes)
	return ids
}

// Source streams the reports of one replica. It is either the discovery server of this replica, or a client of the
// discovery server of another replica.
type Source interface {
	FollowReports(ctx context.Context, each func(discovery.ReportChange) error) error
}

// Follow stores the reports that a replica streams until ctx ends. It reconnects to the replica with backoff. The
// stored reports are dropped when the replica has been unreachable for 30 s, and 30 s after ctx has ended.
func (c *Store) Follow(ctx context.Context, name string, from Source) {
	s, pause, lost := &replica{}, firstPause, time.Time{}
	for ctx.Err() == nil {
		c.startConnection(s)
		begun := time.Now()
		err := from.FollowReports(ctx, func(change discovery.ReportChange) error {
			lost = time.Time{}
			c.apply(s, change)
			return nil
		})
		if ctx.Err() != nil {
			break
		}
		if lost.IsZero() {
			lost = time.Now()
			c.log.Info("cannot follow the reports of another replica, will retry", "replica", name, "error", err)
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

// startConnection counts a new connection to a replica. On each connection, the replica first sends all its reports and
// then the message Current. When Current arrives, the reports of earlier connections that were not sent again are
// dropped.
func (c *Store) startConnection(s *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.connection++
}

func (c *Store) apply(s *replica, change discovery.ReportChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case change.Report != nil:
		r := *change.Report
		c.put(s, discovery.ReportKey{ID: r.ID, Pod: r.Pod}, entry{r, time.Now(), s.connection})
	case change.Removed != nil:
		c.drop(s, *change.Removed)
	case change.Current:
		c.dropBefore(s, s.connection)
	}
}

func (c *Store) dropReplica(s *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropBefore(s, s.connection+1)
}

// dropBefore drops the reports that a replica sent before the given connection, and has not sent again on this
// connection. The caller must hold c.mu, as for put, drop and changed.
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
	// On a new connection, a replica first sends all its reports again. A repeated report keeps the time of its first
	// arrival, because the pod may have sent a newer report to another replica in the meantime.
	if old, ok := c.latest[key.ID][key][s]; ok && old.connection < e.connection && old.Report == e.Report {
		e.at = old.at
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

// Peers is the set of the other replicas of the operator whose reports are stored.
type Peers struct {
	store   *Store
	follow  func(address string) Source
	ctx     context.Context
	cancels map[string]context.CancelCauseFunc
}

// NewPeers returns an empty set of replicas. The reports of the replicas in the set are followed until ctx ends. follow
// returns the source of reports for the address of a replica.
func NewPeers(ctx context.Context, c *Store, follow func(address string) Source) *Peers {
	return &Peers{store: c, follow: follow, ctx: ctx, cancels: map[string]context.CancelCauseFunc{}}
}

var errRemoved = errors.New("the replica was removed")

// Set replaces the addresses of the replicas in the set. It must not be called concurrently.
func (p *Peers) Set(addresses []string) {
	for address, cancel := range p.cancels {
		if !slices.Contains(addresses, address) {
			cancel(errRemoved)
			delete(p.cancels, address)
		}
	}
	for _, address := range addresses {
		if _, known := p.cancels[address]; !known {
			ctx, cancel := context.WithCancelCause(p.ctx)
			p.cancels[address] = cancel
			go p.store.Follow(ctx, address, p.follow(address))
		}
	}
}
