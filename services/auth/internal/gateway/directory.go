package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// Directory holds the gateways that config discovery has reported. Run feeds it; everything else reads a snapshot and may be called
// at any time. A lost connection changes nothing but the age.
type Directory struct {
	log  *slog.Logger
	now  func() time.Time
	last atomic.Pointer[snapshot]
}

type snapshot struct {
	gateways []Gateway     // sorted by namespace and name
	heard    time.Time     // when the source was heard first
	ready    bool          // a config has arrived, ever
	lost     time.Time     // when the connection was lost; zero while the configs are current
	told     bool          // the loss stands in the log
	ahead    time.Duration // by how much our clock was ahead of the source's when it connected last
	agreed   bool          // the clocks were near enough, ever
	problem  string        // why it is not ready
}

// NewDirectory returns an empty directory.
func NewDirectory(now func() time.Time, log *slog.Logger) *Directory {
	d := &Directory{log: log, now: now}
	d.last.Store(&snapshot{lost: now(), problem: "no gateway config has arrived yet"})
	return d
}

// Run follows the source until ctx ends. Only a new connection tells the source's time: until the clocks agree there is one each minute.
func (d *Directory) Run(ctx context.Context, source discovery.Source) {
	d.follow(ctx, source)
	for ctx.Err() == nil {
		next := *d.last.Load()
		next.gateways, next.ready = nil, false // what ends between two connections, nobody tells of
		d.last.Store(&next)
		d.follow(ctx, source)
	}
}

// comparing is the time between two looks at the source's clock, while it does not agree with ours.
const comparing = time.Minute

func (d *Directory) follow(ctx context.Context, source discovery.Source) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	again := time.AfterFunc(comparing, cancel)
	again.Stop() // until clocks differ
	defer again.Stop()
	for e := range source.Watch(ctx) {
		d.Apply(e)
		if d.last.Load().clock() == nil {
			again.Stop()
		} else if e.Connected {
			again.Reset(comparing)
		}
	}
}

// Ready tells why requests cannot be answered yet.
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

// settle is how long a source that has been heard may take to say its first config. It has all of them at hand.
const settle = time.Second

// Heard tells why it is not known yet what there is. It is what a readiness probe asks for: in a cluster without a Gateway the service
// works, it only has nothing to give.
func (d *Directory) Heard() error {
	s := d.last.Load()
	if err := s.clock(); err != nil {
		return err
	}
	switch {
	case s.ready:
		return nil
	case s.heard.IsZero():
		return errors.New("config discovery has not answered yet")
	case d.now().Sub(s.heard) < settle:
		return errors.New("config discovery has not told of any gateway yet")
	}
	return nil
}

// Age is how long ago the configs were last known to be current: 0 while the source is connected.
func (d *Directory) Age() time.Duration {
	lost := d.last.Load().lost
	if lost.IsZero() {
		return 0
	}
	return max(0, d.now().Sub(lost))
}

// Ahead is by how much the clock of this process was ahead of the source's when it connected last; 0 when that is not known.
func (d *Directory) Ahead() time.Duration { return d.last.Load().ahead }

// Select returns the gateways that match, by namespace and name.
func (d *Directory) Select(f Filter) []Gateway {
	var out []Gateway
	for _, g := range d.last.Load().gateways {
		if picked, ok := f.pick(g); ok {
			out = append(out, picked)
		}
	}
	return out
}

// Apply takes one event in. It builds the next snapshot from the last one, so that one goroutine at a time may call it: Run's.
func (d *Directory) Apply(e discovery.Event) {
	next := *d.last.Load()
	switch {
	case e.Err != nil && !errors.Is(e.Err, discovery.ErrRejected):
		d.lose(&next, e.Err)
	case e.Err != nil:
		d.log.Warn("keep last good config of gateway", "gateway", e.ID, "error", e.Err)
	case e.Connected:
		next.hear(d.now())
		d.compare(&next, e.Ahead)
	case e.Deleted:
		d.log.Info("gateway is gone", "gateway", e.ID)
		next.remove(e.ID)
	default:
		d.take(&next, e)
	}
	d.last.Store(&next)
}

// maxSkew is by how much clocks may differ.
const maxSkew = 5 * time.Minute

// compare takes note of how the clocks differ; ahead is nil when the source does not say.
func (d *Directory) compare(next *snapshot, ahead *time.Duration) {
	switch {
	case ahead == nil:
	case ahead.Abs() > maxSkew:
		next.ahead = *ahead
		d.log.Warn("clocks differ, credentials end too early or too late: set the clocks of the nodes by NTP", "ahead of the operator", *ahead)
		return
	default:
		next.ahead = *ahead
	}
	next.agreed = next.agreed || next.ahead.Abs() <= maxSkew
}

// clock tells why a service must not begin: credentials end at a time of day, and those of a clock that is behind end early, those of one that is
// ahead late. One that has begun goes on: its clock was right, so that it may be the operator's that is wrong now.
func (s *snapshot) clock() error {
	if s.agreed || s.ahead.Abs() <= maxSkew {
		return nil
	}
	return fmt.Errorf("the clock of this service is ahead of the operator's by %s, credentials would end at a wrong time: set the clocks of the nodes by NTP",
		s.ahead)
}

// lose starts the age. A source that is away is tried again and again: the log tells of it once.
func (d *Directory) lose(next *snapshot, err error) {
	if !next.told {
		d.log.Warn("keep known gateways: config discovery is not available", "error", err)
	}
	next.told = true
	next.lost = cmp.Or(next.lost, d.now())
}

// take puts a gateway into the next snapshot, unless discovery took us for somebody who may not read secrets.
func (d *Directory) take(next *snapshot, e discovery.Event) {
	next.hear(d.now())
	g := newGateway(e.Config)
	if !g.STUNOnly && g.Authority.SharedSecret == "" && g.Authority.Username == "" {
		next.problem = "config discovery hides the secrets of gateways: give the service a token with --discovery-token-file"
		d.log.Error("keep what is known of gateway: its secrets are hidden, give the service a token with --discovery-token-file", "gateway", e.ID)
		return
	}
	d.log.Info("gateway has a config", "gateway", e.ID, "config", e.Config)
	next.put(g)
	next.ready = true
}

// remove and put leave the old slice alone: readers hold it.

// hear takes note that the source is there.
func (s *snapshot) hear(now time.Time) {
	if s.heard.IsZero() {
		s.heard = now
	}
	s.lost, s.told = time.Time{}, false
}

func (s *snapshot) remove(id string) {
	if i, ok := s.find(id); ok {
		s.gateways = slices.Delete(slices.Clone(s.gateways), i, i+1)
	}
}

func (s *snapshot) put(g Gateway) {
	i, ok := s.find(g.ID())
	s.gateways = slices.Clone(s.gateways)
	if ok {
		s.gateways[i] = g
		return
	}
	s.gateways = slices.Insert(s.gateways, i, g)
}

func (s *snapshot) find(id string) (int, bool) {
	namespace, name := splitID(id)
	return slices.BinarySearchFunc(s.gateways, Gateway{Namespace: namespace, Name: name}, func(a, b Gateway) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}
