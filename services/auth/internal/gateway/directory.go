package gateway

import (
	"cmp"
	"context"
	"errors"
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
	gateways []Gateway // sorted by namespace and name
	heard    bool      // the source has been heard, ever
	ready    bool      // a config has arrived, ever
	lost     time.Time // when the connection was lost; zero while the configs are current
	told     bool      // the loss stands in the log
	problem  string    // why it is not ready
}

// NewDirectory returns an empty directory.
func NewDirectory(now func() time.Time, log *slog.Logger) *Directory {
	d := &Directory{log: log, now: now}
	d.last.Store(&snapshot{lost: now(), problem: "no gateway config has arrived yet"})
	return d
}

// Run follows the source until ctx ends.
func (d *Directory) Run(ctx context.Context, source discovery.Source) {
	for e := range source.Watch(ctx) {
		d.Apply(e)
	}
}

// Ready tells why requests cannot be answered yet.
func (d *Directory) Ready() error {
	if s := d.last.Load(); !s.ready {
		return errors.New(s.problem)
	}
	return nil
}

// Heard tells why the source has said nothing yet. It is what a readiness probe asks for: in a cluster without a Gateway the service
// works, it only has nothing to give.
func (d *Directory) Heard() error {
	if s := d.last.Load(); !s.heard {
		return errors.New("config discovery has not answered yet")
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
		next.heard, next.lost, next.told = true, time.Time{}, false
	case e.Deleted:
		d.log.Info("gateway is gone", "gateway", e.ID)
		next.remove(e.ID)
	default:
		d.take(&next, e)
	}
	d.last.Store(&next)
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
	next.heard, next.lost, next.told = true, time.Time{}, false
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
