// Package follower brings configs to the server: it follows a source, keeps out what is not good, keeps the last good one for a
// start without a source, and tells the source what became of each.
package follower

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
)

const (
	// coldStart is how long the source may be silent before the last good config is put in force.
	coldStart = 2 * time.Second
	// retryPause is how long to wait before listeners and endpoints that could not be opened are tried again.
	retryPause = 5 * time.Second
	// applyPause is the rest after a config: of those that come meanwhile only the newest is put in force.
	applyPause = 100 * time.Millisecond
	// reportPause is how often the source hears of the number of allocations.
	reportPause = 5 * time.Second
	// loggedFields is how many unknown fields of a config are logged; Status names them all.
	loggedFields = 10
)

// Options say what to follow and whom to tell.
type Options struct {
	Source discovery.Source
	Server *server.Server
	Last   LastGood
	// Standby is the file of a config to start with where none is kept. Empty means that there is none.
	Standby string
	// Lookup answers for the placeholders of a config.
	Lookup func(name string) string
	// Applied puts in force what a config says about the process: logs, probes and metrics are not the server's. What fails is tried
	// again, like a listener that cannot be opened.
	Applied func(config.Config) error
	// Pod names this process in reports.
	Pod string
	Log *slog.Logger
}

// Follower follows one source.
type Follower struct {
	opt Options

	mu     sync.Mutex
	status state
}

// state is the config's way here, as told by Status.
type state struct {
	wanted  *discovery.Loaded // as published: last one that validated
	origin  string
	problem string
	failing bool

	// connected tells whether the source can be heard; lost says why not, and confirmed when it was heard last.
	connected bool
	lost      string
	confirmed time.Time
}

func (s state) revision() string {
	if s.wanted == nil {
		return ""
	}
	return s.wanted.Revision
}

// New returns a follower that has heard of nothing yet.
func New(o Options) *Follower { return &Follower{opt: o} }

// Run follows the source until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	events := f.opt.Source.Watch(ctx)
	cold := time.NewTimer(coldStart)
	defer cold.Stop()
	retry := time.NewTicker(retryPause)
	defer retry.Stop()
	report := time.NewTicker(reportPause)
	defer report.Stop()
	open, rested := events, (<-chan time.Time)(nil)
	for {
		select {
		case e, ok := <-open:
			if !ok {
				return nil
			}
			f.handle(e)
			if e.Err != nil && cold.Stop() { // there is nobody to wait for
				f.startCold()
			}
			if !e.Connected { // which announces a config
				open, rested = nil, time.After(applyPause)
			}
		case <-rested:
			open = events
		case <-cold.C:
			f.startCold()
		case <-retry.C:
			f.retry()
		case <-report.C:
			f.report()
		}
	}
}

// Once reads the source a single time. What it holds must be one valid config.
func (f *Follower) Once(ctx context.Context) error {
	configs, err := f.opt.Source.Load(ctx)
	if err != nil {
		return err
	}
	if len(configs) != 1 {
		return fmt.Errorf("read %s: %d configs where one is wanted: name it with --id", f.opt.Source, len(configs))
	}
	f.apply(configs[0], f.opt.Source.String())
	// A listener that cannot be opened is worth no start; probes or metrics that cannot are told, and missed by those who want them.
	if st := f.Status(); st.Revision == "" || len(st.Failures) > 0 {
		return errors.New(st.Problem)
	}
	return nil
}

func (f *Follower) handle(e discovery.Event) {
	switch {
	case e.Err != nil:
		f.reject(e)
	case e.Deleted:
		// A dataplane outlives its config: whoever removes the Gateway removes this process too, and calls may go on until then.
		f.opt.Log.Info("config deleted at its source: go on with the last one", "config", e.ID)
	case e.Connected:
		f.confirm()
	default:
		f.confirm()
		f.apply(discovery.Loaded{Config: e.Config, Revision: e.Revision, Unknown: e.Unknown}, f.opt.Source.String())
	}
	f.report()
}

// reject notes what was kept out. The running config stays.
func (f *Follower) reject(e discovery.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(e.Err, discovery.ErrRejected) {
		f.count(e.Err)
		f.opt.Log.Error("keep config out", "config", e.ID, "error", e.Err)
		f.status.problem = e.Err.Error()
		return
	}
	f.opt.Log.Warn("config source is silent: go on with what runs", "source", f.opt.Source.String(), "error", e.Err)
	f.status.connected, f.status.lost = false, e.Err.Error()
}

// count counts a config that is kept out.
func (f *Follower) count(rejected error) {
	m := f.opt.Server.Meter()
	if wrong := (*config.FieldError)(nil); errors.As(rejected, &wrong) {
		m.Invalid.Add(1)
		return
	}
	m.Unreadable.Add(1)
}

func (f *Follower) confirm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.status.connected {
		f.opt.Log.Info("hear config source", "source", f.opt.Source.String())
	}
	f.status.connected, f.status.lost, f.status.confirmed = true, "", time.Now()
}

// startCold runs the best config at hand when nobody has said anything yet: the one that ran here last, or else the one laid ready.
func (f *Follower) startCold() {
	f.mu.Lock()
	running := f.status.wanted != nil
	f.mu.Unlock()
	if running {
		return
	}
	for _, at := range []struct {
		origin string
		load   func() (config.Config, error)
	}{
		{"last good config", func() (config.Config, error) { return f.opt.Last.Load(time.Now()) }},
		{"standby config", func() (config.Config, error) { return readStandby(f.opt.Standby, f.opt.Last.ID) }},
	} {
		c, err := at.load()
		switch {
		case errors.Is(err, errNothingKept):
		case err != nil:
			f.opt.Log.Warn("start without the "+at.origin, "error", err)
		default:
			f.opt.Log.Info("start with the "+at.origin, "config", c.Admin.Name, "revision", c.Revision())
			f.apply(discovery.Loaded{Config: c, Revision: c.Revision()}, at.origin)
			return
		}
	}
	f.opt.Log.Info("wait for the first config", "source", f.opt.Source.String())
}

// apply puts a valid config in force and keeps it.
func (f *Follower) apply(c discovery.Loaded, origin string) {
	expanded := c.Expand(f.opt.Lookup)
	if err := expanded.Validate(); err != nil {
		f.reject(discovery.Event{ID: c.Admin.Name, Err: errors.Join(discovery.ErrRejected, err)})
		return
	}
	plan, err := f.opt.Server.Apply(expanded)
	err = errors.Join(err, f.opt.Applied(expanded))
	if !f.note(c, origin, err) {
		return
	}
	f.log(c, plan, err)
	if err := f.opt.Last.Save(c.Config, time.Now()); err != nil {
		f.opt.Log.Warn("go on without a last good config on disk", "error", err)
	}
}

// note remembers what became of a config, and reports whether that is news.
func (f *Follower) note(c discovery.Loaded, origin string, failed error) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problem := ""
	if failed != nil {
		problem = failed.Error()
	}
	other := f.status.wanted == nil || c.Revision != f.status.wanted.Revision || !slices.Equal(c.Unknown, f.status.wanted.Unknown)
	if other && len(c.Unknown) > 0 {
		f.opt.Server.Meter().UnknownFields.Add(uint64(len(c.Unknown)))
		f.opt.Log.Warn("ignore fields that this release does not know: a newer one may", "config", c.Admin.Name, "revision", c.Revision,
			"number", len(c.Unknown), "fields", c.Unknown[:min(len(c.Unknown), loggedFields)])
	}
	news = other || problem != f.status.problem
	f.status.wanted, f.status.origin = &c, origin
	f.status.failing, f.status.problem = failed != nil, problem
	return news
}

func (f *Follower) log(c discovery.Loaded, plan server.Plan, failed error) {
	f.opt.Log.Info("config in force", "config", c.Admin.Name, "revision", c.Revision, "plan", plan.String())
	for _, change := range plan.Changes {
		f.opt.Log.Debug("config changed", "change", change.String())
	}
	if failed != nil {
		f.opt.Log.Error("put config in force", "error", failed)
	}
}

// retry applies the wanted config again while some part of it does not run.
func (f *Follower) retry() {
	f.mu.Lock()
	st := f.status
	f.mu.Unlock()
	if st.failing {
		f.apply(*st.wanted, st.origin)
	}
}

// report tells the source how its config fares, if it listens.
func (f *Follower) report() {
	to, ok := f.opt.Source.(discovery.Reporter)
	if !ok {
		return
	}
	f.mu.Lock()
	st := f.status
	f.mu.Unlock()
	to.Report(discovery.Report{
		ID: f.opt.Last.ID, Pod: f.opt.Pod, Revision: st.revision(),
		Accepted: st.problem == "", Error: st.problem,
		Allocations: f.opt.Server.Sessions().Len(), Draining: f.opt.Server.Sessions().Draining(),
	})
}

// Status is the server's status and the config's way here.
func (f *Follower) Status() server.Status {
	st := f.opt.Server.Status()
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Revision, st.Origin, st.Problem = f.status.revision(), f.status.origin, f.status.problem
	st.Lost = f.status.lost
	if f.status.wanted != nil {
		st.Unknown = slices.Clone(f.status.wanted.Unknown)
	}
	return st
}

// Ready returns nil once a config is in force.
func (f *Follower) Ready() error {
	if f.opt.Server.Status().Status == server.NotReady {
		return errors.New("stunnerd not ready")
	}
	return nil
}

// Revision identifies the running config.
func (f *Follower) Revision() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.revision()
}

// Problem says why the last config that arrived was kept out, or what of the running one does not run. It is empty when all is well.
func (f *Follower) Problem() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.problem
}

// Age is the time since the source could be heard last, in seconds: the running config may be that old.
func (f *Follower) Age() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status.connected || f.status.confirmed.IsZero() {
		return 0
	}
	return time.Since(f.status.confirmed).Seconds()
}
