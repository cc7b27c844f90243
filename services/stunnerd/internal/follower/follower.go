// Package follower brings configs to the server: it follows a source, keeps out what is not good, keeps the last good one for a
// start without a source, and tells the source what became of each.
package follower

import (
	"cmp"
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
	// applyPause is the shortest rest after a config: of those that come meanwhile only the newest is put in force.
	applyPause = 100 * time.Millisecond
	// reportPause is how often the source hears of the number of allocations.
	reportPause = 5 * time.Second
	// applyShare is the share of a core that is spent on putting configs in force, however often they change.
	applyShare = 0.025
	// writePause is how long to wait before the file of the last good config is written again. A process that ends by itself writes what is missing.
	writePause = 5 * time.Second
	// keepPause is how often a config is written to disk again that its source stands by.
	keepPause = time.Hour
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
	problem string // what of wanted does not run
	failing bool
	// rejected says why the last config that arrived was kept out. That wanted is put in force again does not undo it.
	rejected string

	// current tells that wanted is what the source said last, and kept when it was written to disk then.
	current bool
	kept    time.Time
	// written is when the file was written last.
	written time.Time

	// connected tells whether the source can be heard; lost says why not.
	connected bool
	lost      string
	// heard is when the source was heard last. Before it is heard at all that is when the config was kept that was started with, or else when the
	// process began to listen.
	heard time.Time
	// met tells that the source was heard.
	met bool
}

// trouble is what is wrong with the config that arrived last, or else with the one that runs.
func (s state) trouble() string { return cmp.Or(s.rejected, s.problem) }

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
	f.mu.Lock()
	f.status.heard = time.Now()
	f.mu.Unlock()
	events := f.opt.Source.Watch(ctx)
	cold := time.NewTimer(coldStart)
	defer cold.Stop()
	retry := time.NewTicker(retryPause)
	defer retry.Stop()
	report := time.NewTicker(reportPause)
	defer report.Stop()
	defer f.keep(0)
	open, rested := events, (<-chan time.Time)(nil)
	for {
		select {
		case e, ok := <-open:
			if !ok {
				return nil
			}
			begun := time.Now()
			f.handle(e)
			took := time.Since(begun)
			if e.Err != nil && cold.Stop() { // there is nobody to wait for
				f.startCold()
			}
			if !e.Connected { // which announces a config
				open, rested = nil, time.After(max(applyPause, discovery.Cooldown(took, applyShare)))
			}
		case <-rested:
			open = events
		case <-cold.C:
			f.startCold()
		case <-retry.C:
			f.retry()
		case <-report.C:
			f.report()
			f.keep(0)
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
	f.take(configs[0])
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
		f.disown()
	case e.Connected:
		f.confirm()
	default:
		f.confirm()
		f.take(discovery.Loaded{Config: e.Config, Revision: e.Revision, Unknown: e.Unknown})
	}
	f.report()
}

// take puts in force what the source says, and keeps it.
func (f *Follower) take(c discovery.Loaded) {
	f.mu.Lock()
	f.status.rejected = ""
	f.mu.Unlock()
	if !f.apply(c, f.opt.Source.String()) {
		return
	}
	f.mu.Lock()
	f.status.current = true
	f.mu.Unlock()
	f.keep(writePause)
}

// disown notes that the source does not stand by the running config any more: it says another one, or none.
func (f *Follower) disown() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.current = false
}

// reject notes what was kept out. The running config stays.
func (f *Follower) reject(e discovery.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(e.Err, discovery.ErrRejected) {
		f.count(e.Err)
		f.opt.Log.Error("keep config out", "config", e.ID, "error", e.Err)
		f.status.rejected, f.status.current = e.Err.Error(), false
		return
	}
	f.opt.Log.Warn("config source is silent: go on with what runs", "source", f.opt.Source.String(), "error", e.Err)
	if f.status.connected {
		f.status.heard = time.Now()
	}
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
	f.status.connected, f.status.lost, f.status.met = true, "", true
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
		load   func() (config.Config, time.Time, error)
	}{
		{"last good config", func() (config.Config, time.Time, error) { return f.opt.Last.Load(time.Now()) }},
		{"standby config", func() (config.Config, time.Time, error) {
			c, err := readStandby(f.opt.Standby, f.opt.Last.ID)
			return c, time.Time{}, err
		}},
	} {
		c, saved, err := at.load()
		switch {
		case errors.Is(err, errNothingKept):
		case err != nil:
			f.opt.Log.Warn("start without the "+at.origin, "error", err)
		default:
			f.opt.Log.Info("start with the "+at.origin, "config", c.Admin.Name, "revision", c.Revision())
			f.age(saved)
			f.apply(discovery.Loaded{Config: c, Revision: c.Revision()}, at.origin)
			return
		}
	}
	f.opt.Log.Info("wait for the first config", "source", f.opt.Source.String())
}

// age notes since when nobody has stood by a config that is started with, if that is known: the zero time says that it is not.
func (f *Follower) age(saved time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.status.met && !saved.IsZero() {
		f.status.heard = saved
	}
}

// apply puts a valid config in force, and reports whether it was one.
func (f *Follower) apply(c discovery.Loaded, origin string) bool {
	expanded, err := c.Expand(f.opt.Lookup)
	if err != nil {
		f.reject(discovery.Event{ID: c.Admin.Name, Err: errors.Join(discovery.ErrRejected, err)})
		return false
	}
	plan, err := f.opt.Server.Apply(expanded)
	err = errors.Join(err, f.opt.Applied(expanded))
	if f.note(c, origin, err) {
		f.log(c, plan, err)
	}
	return true
}

// keep writes the running config to disk when the source has just said it, and again from time to time for as long as it stands by it: what is kept counts
// as old as the last word of the source. A config that was started with gets no younger by that. Nothing is written until some time after the last write.
func (f *Follower) keep(after time.Duration) {
	f.mu.Lock()
	st, now := f.status, time.Now()
	due := st.current && (st.kept.IsZero() || st.connected && now.Sub(st.kept) >= keepPause) && now.Sub(st.written) >= after
	if due {
		f.status.kept, f.status.written = now, now
	}
	f.mu.Unlock()
	if !due {
		return
	}
	if err := f.opt.Last.Save(st.wanted.Config, now); err != nil {
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
	if other {
		for _, warning := range server.Warnings(c.Config) {
			f.opt.Log.Warn("config asks for more than there is", "config", c.Admin.Name, "revision", c.Revision, "warning", warning)
		}
	}
	news = other || problem != f.status.problem
	if other {
		f.status.kept = time.Time{}
	}
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
		Accepted: st.trouble() == "", Error: st.trouble(),
		Allocations: f.opt.Server.Sessions().Len(), Draining: f.opt.Server.Sessions().Draining(),
	})
}

// Status is the server's status and the config's way here.
func (f *Follower) Status() server.Status {
	st := f.opt.Server.Status()
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Revision, st.Origin, st.Problem = f.status.revision(), f.status.origin, f.status.trouble()
	st.Lost = f.status.lost
	if f.status.wanted != nil {
		st.Unknown = slices.Clone(f.status.wanted.Unknown)
	}
	return st
}

// Ready returns nil once a config is in force and all its listeners are open, else what is missing. See server.Ready.
func (f *Follower) Ready() error {
	if err := f.opt.Server.Ready(); err != nil {
		return fmt.Errorf("stunnerd not ready: %w", err)
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
	return f.status.trouble()
}

// Age is the time since the source could be heard last, in seconds: the running config may be that old. In a process that has not heard its source it
// is that of the config that it started with, which earlier processes had kept; since the start where that is not known.
func (f *Follower) Age() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status.connected || f.status.heard.IsZero() {
		return 0
	}
	return max(0, time.Since(f.status.heard).Seconds()) // clocks may be set back
}
