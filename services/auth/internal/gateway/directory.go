package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// Directory contains the gateways whose configs a source (config discovery or a file) has sent. Run updates it with
// Apply. All other methods read a snapshot and may be called concurrently. If the connection to the source is lost, the
// gateways stay and Age grows.
type Directory struct {
	cluster string
	log     *slog.Logger
	now     func() time.Time
	last    atomic.Pointer[snapshot]
	// former are the earlier lifetimes of gateways by id, also of deleted ones: a gateway that is created again may have
	// the same shared secret. The entry "" applies to all gateways: it has the lifetimes before the start, which are
	// unknown and taken to be that of the flags, and those beyond maxFormer gateways. Only Apply uses it.
	former map[string]formerLifetimes
}

// maxFormer limits the gateways in Directory.former, because a tenant may create and delete any number of gateways.
const maxFormer = 10_000

type snapshot struct {
	gateways     []*Gateway             // sorted by namespace and name; neither the list nor its elements are changed
	names        map[[2]string]*Gateway // by namespace and name
	contacted    time.Time              // time of the first contact with the source
	ready        bool                   // a config has been received
	changed      time.Time              // time of the last received config
	lost         time.Time              // time of the disconnect from the source; zero while connected
	lossLogged   bool                   // the disconnect has been logged
	ahead        time.Duration          // this clock minus the source's clock, at the last connection
	clocksAgreed bool                   // the clocks differed by at most maxSkew at some connection
	problem      string                 // why the directory is not ready
	// list reports whether the source has sent all configs; nil if the source does not report it.
	list *discovery.List
	// unusable says by id why a config was not used: its secrets are hidden, or it was rejected. The map is replaced, and
	// never changed.
	unusable map[string]string
}

// NewDirectory returns an empty directory.
func NewDirectory(cluster string, now func() time.Time, log *slog.Logger) *Directory {
	d := &Directory{cluster: cluster, log: log, now: now, former: map[string]formerLifetimes{"": {flags: now()}}}
	d.last.Store(&snapshot{lost: now(), problem: "no gateway config has arrived yet"})
	return d
}

// Run applies the events of a source of configs until ctx ends. A source sends its time only when a connection starts.
// Until the clocks of the service and the source have agreed once, Run therefore drops the gateways and reconnects
// every compareInterval, to compare the clocks again.
func (d *Directory) Run(ctx context.Context, source discovery.Source) {
	d.follow(ctx, source)
	for ctx.Err() == nil {
		next := *d.last.Load()
		next.replace(nil)
		next.ready = false // the source does not report deletions between two connections
		d.last.Store(&next)
		d.follow(ctx, source)
	}
}

// compareInterval is how often Run reconnects to the source of configs if the clocks of the service and of the source
// have differed by more than maxSkew at every connection so far.
const compareInterval = time.Minute

func (d *Directory) follow(ctx context.Context, source discovery.Source) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reconnect := time.AfterFunc(compareInterval, cancel)
	reconnect.Stop() // started below if the clocks differ
	defer reconnect.Stop()
	for e := range source.Watch(ctx) {
		d.Apply(e)
		if d.last.Load().clock() == nil {
			reconnect.Stop()
		} else if e.Connected {
			reconnect.Reset(compareInterval)
		}
	}
}

// Ready returns nil after the first usable gateway config has arrived, also if all gateways were deleted later. Before
// that, and while the clocks differ too much (see clock), it returns the reason as an error.
func (d *Directory) Ready() error {
	s := d.last.Load()
	if err := s.clock(); err != nil {
		return err
	}
	if !s.ready {
		return errors.New(s.problem)
	}
	return nil
}

// firstConfigTimeout is how long Synced returns an error after the first contact with a source of configs that does not
// report whether it has sent all configs, such as an operator of an earlier release. Such a source sends its configs at
// once, so after this time Synced assumes that there is no Gateway.
const firstConfigTimeout = time.Second

// Synced returns nil once the source of configs has sent a gateway, or has reported that no gateway needs a config.
// Before that, and while the clocks differ too much (see clock), it returns an error. The readiness probe uses Synced
// instead of Ready, because a service in a cluster without Gateways is healthy although it cannot answer requests. If
// there are Gateways without configs, the service is not ready. Otherwise a rollout would replace pods that still have
// the configs of these Gateways.
func (d *Directory) Synced() error {
	s := d.last.Load()
	if err := s.clock(); err != nil {
		return err
	}
	switch {
	case s.ready:
		return nil
	case s.contacted.IsZero():
		return errors.New("config discovery has not answered yet")
	case len(s.unusable) > 0:
		return errors.New(s.unusable[slices.Min(slices.Collect(maps.Keys(s.unusable)))])
	case s.list != nil && !s.list.Complete:
		return errors.New("config discovery has not sent all gateways yet")
	case s.list != nil && s.list.Unpublished > 0:
		return fmt.Errorf("config discovery has no config of any gateway, and %d need one: "+
			"see the conditions of the Gateways", s.list.Unpublished)
	case s.list == nil && d.now().Sub(s.contacted) < firstConfigTimeout:
		return errors.New("config discovery has not sent any gateway yet")
	}
	return nil
}

// Age returns the time since the connection to the source of configs was lost; 0 while it is connected. Before the
// first connection it is the time since NewDirectory.
func (d *Directory) Age() time.Duration {
	lost := d.last.Load().lost
	if lost.IsZero() {
		return 0
	}
	return max(0, d.now().Sub(lost))
}

// Ahead returns how far the clock of this process was ahead of the clock of the discovery server at the last
// connection; 0 if unknown.
func (d *Directory) Ahead() time.Duration { return d.last.Load().ahead }

// Revisions returns the revisions of the configs by gateway, and when the last config was received.
func (d *Directory) Revisions() (revisions map[string]string, changed time.Time) {
	s := d.last.Load()
	revisions = make(map[string]string, len(s.gateways))
	for _, g := range s.gateways {
		revisions[g.ID()] = g.Revision
	}
	return revisions, s.changed
}

// Select returns the gateways that match a filter, sorted by namespace and name. The result is shared: the caller must
// not change it.
func (d *Directory) Select(f Filter) []*Gateway {
	s := d.last.Load()
	if f == (Filter{}) {
		return s.gateways
	}
	candidates := s.gateways
	if f.Name != "" && f.Namespace != "" {
		named, ok := s.names[[2]string{f.Namespace, f.Name}]
		if !ok {
			return nil
		}
		candidates = []*Gateway{named}
	}
	var out []*Gateway
	for _, g := range candidates {
		if picked := f.pick(g); picked != nil {
			out = append(out, picked)
		}
	}
	return out
}

// Apply applies an event of config discovery to the Directory. Concurrent calls would lose events, because each derives
// the next snapshot from the current one. Outside of tests only Run calls it.
func (d *Directory) Apply(e discovery.Event) {
	next := *d.last.Load()
	switch {
	case e.Err != nil && !errors.Is(e.Err, discovery.ErrRejected):
		d.disconnect(&next, e.Err)
	case e.Err != nil:
		next.setUnusable(e.ID, fmt.Sprintf("the config of gateway %q is rejected: see the log", e.ID))
		d.log.Warn("keep last good config of gateway", "gateway", e.ID, "error", e.Err)
	case e.Connected:
		next.connect(d.now())
		next.list = e.List
		d.compareClocks(&next, e.Ahead)
	case e.List != nil:
		next.list = e.List
		next.markIdle()
	case e.Deleted:
		d.log.Info("gateway deleted", "gateway", e.ID)
		d.recordLifetime(&next, e.ID, nil)
		next.remove(e.ID)
		next.setUnusable(e.ID, "")
	default:
		d.update(&next, e)
	}
	d.last.Store(&next)
}

// maxSkew is the allowed difference between the clocks of the service and of the source of configs.
const maxSkew = 5 * time.Minute

// compareClocks stores in a snapshot how far the clock of the service is ahead of the source's clock. ahead is nil if
// the source does not send its time.
func (d *Directory) compareClocks(next *snapshot, ahead *time.Duration) {
	if ahead != nil {
		next.ahead = *ahead
	}
	if ahead != nil && ahead.Abs() > maxSkew {
		d.log.Warn("clocks differ, credentials end too early or too late: set the clocks of the nodes by NTP",
			"ahead of the operator", *ahead)
		return
	}
	next.clocksAgreed = next.clocksAgreed || next.ahead.Abs() <= maxSkew
}

// ErrClocks is the error of Ready and Synced while the clocks of the service and of the operator differ too much.
var ErrClocks = errors.New("the clocks differ: set the clocks of the nodes by NTP")

// clock returns an error if the clocks of the service and of the operator differ so much that the service must not
// become ready: with a wrong clock, credentials would expire early or late. Once the clocks have agreed it always
// returns nil, because a later difference may be an error of the operator's clock.
func (s *snapshot) clock() error {
	if s.clocksAgreed || s.ahead.Abs() <= maxSkew {
		return nil
	}
	return fmt.Errorf(
		"the clock of this service is ahead of the operator's by %s, credentials would end at a wrong time: %w",
		s.ahead, ErrClocks)
}

// disconnect records that the connection to the source of configs was lost. It logs only the first of several errors in
// a row.
func (d *Directory) disconnect(next *snapshot, err error) {
	if !next.lossLogged {
		d.log.Warn("config discovery is not available, keep known gateways", "error", err)
	}
	next.lossLogged = true
	next.lost = cmp.Or(next.lost, d.now())
}

// update puts the gateway of an event into the next snapshot. It keeps the last config of the gateway if the source has
// left out the secrets, as a discovery server may do if the token of the service is missing or not accepted.
func (d *Directory) update(next *snapshot, e discovery.Event) {
	next.connect(d.now())
	g := newGateway(e.Config)
	g.Cluster, g.Revision = d.cluster, e.Revision
	if !g.STUNOnly && g.Authority.SharedSecret == "" && g.Authority.Username == "" {
		next.problem = "config discovery hides the secrets of gateways: give the service a token with --discovery-token-file"
		next.setUnusable(e.ID, next.problem)
		d.log.Error("keep last config of gateway: "+next.problem, "gateway", e.ID)
		return
	}
	d.log.Info("gateway config received", "gateway", e.ID, "config", e.Config)
	g.Idle = next.list != nil && slices.Contains(next.list.Idle, g.ID())
	d.recordLifetime(next, g.ID(), g)
	g.former = d.former[g.ID()].or(d.former[""])
	next.put(g)
	next.setUnusable(e.ID, "")
	next.ready, next.changed = true, d.now()
}

// recordLifetime records the lifetime that a gateway has had, before a config with another one replaces its config. now
// is nil for a gateway that is deleted.
func (d *Directory) recordLifetime(s *snapshot, id string, now *Gateway) {
	i, known := s.find(id)
	if !known || now != nil && now.Lifetime == s.gateways[i].Lifetime {
		return
	}
	at := d.now()
	maps.DeleteFunc(d.former, func(_ string, f formerLifetimes) bool {
		return !f.expiry.After(at) && at.Sub(f.flags) > credential.MaxTTL
	})
	if _, ok := d.former[id]; !ok && len(d.former) >= maxFormer {
		id = ""
	}
	before := formerLifetimes{flags: at}
	if lifetime := s.gateways[i].Lifetime; lifetime != 0 {
		before = formerLifetimes{expiry: at.Add(lifetime)}
	}
	d.former[id] = d.former[id].or(before)
}

// connect records a contact with the source.
func (s *snapshot) connect(now time.Time) {
	if s.contacted.IsZero() {
		s.contacted = now
	}
	s.lost, s.lossLogged = time.Time{}, false
}

// remove removes a gateway from a snapshot. It changes a copy of the slice, because readers of the previous snapshot
// use the slice.
func (s *snapshot) remove(id string) {
	if i, ok := s.find(id); ok {
		s.replace(slices.Delete(slices.Clone(s.gateways), i, i+1))
	}
}

// setUnusable sets why the config of a gateway is not used; "" if it is used, or deleted. It changes a copy, because
// readers of the previous snapshot use the map.
func (s *snapshot) setUnusable(id, why string) {
	s.unusable = maps.Clone(s.unusable)
	if why == "" {
		delete(s.unusable, id)
		return
	}
	if s.unusable == nil {
		s.unusable = map[string]string{}
	}
	s.unusable[id] = why
}

func (s *snapshot) put(g *Gateway) {
	i, ok := s.find(g.ID())
	next := slices.Clone(s.gateways)
	if ok {
		next[i] = g
	} else {
		next = slices.Insert(next, i, g)
	}
	s.replace(next)
}

// markIdle sets Gateway.Idle according to the report of the source. It changes copies, because readers of the previous
// snapshot use the gateways.
func (s *snapshot) markIdle() {
	gateways := slices.Clone(s.gateways)
	for i, g := range gateways {
		if idle := slices.Contains(s.list.Idle, g.ID()); idle != g.Idle {
			marked := *g
			marked.Idle = idle
			gateways[i] = &marked
		}
	}
	s.replace(gateways)
}

// replace replaces the list of gateways.
func (s *snapshot) replace(gateways []*Gateway) {
	s.gateways, s.names = gateways, make(map[[2]string]*Gateway, len(gateways))
	for _, g := range gateways {
		s.names[[2]string{g.Namespace, g.Name}] = g
	}
}

func (s *snapshot) find(id string) (int, bool) {
	namespace, name := splitID(id)
	return slices.BinarySearchFunc(s.gateways, &Gateway{Namespace: namespace, Name: name}, func(a, b *Gateway) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}
