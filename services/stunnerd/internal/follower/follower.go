// Package follower applies the configs of a source to the server. It rejects invalid configs, stores the last good one
// on disk for a start without the source, and reports the result of each config to the source.
//
// # Files
//
//	follower.go  the source of configs
//	lastgood.go  the last good config on disk
//	standby.go   the config in a Secret
//	peers.go     the list of the Gateway's pods on disk
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
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
)

const (
	// coldStart is how long the follower waits for the source at the start before it applies the last good config. If
	// the source reports an error earlier, it does not wait longer.
	coldStart = 2 * time.Second
	// retryInterval is how often the follower tries again to open listeners and endpoints that failed to open.
	retryInterval = 5 * time.Second
	// applyInterval is the minimum pause after a config is applied. Of the configs that arrive during the pause only
	// the newest is applied.
	applyInterval = 100 * time.Millisecond
	// reportInterval is how often the number of allocations is reported to the source.
	reportInterval = 5 * time.Second
	// applyShare is the maximum share of a core that is spent on applying configs.
	applyShare = 0.02
	// saveInterval is the minimum time between two writes of the last good config to disk. A config with other
	// listeners is written at once: a process that restores sessions with the previous config would drop the sessions
	// of a new listener. Within the interval, and if only endpoints have changed, Follower.Run writes the config at the
	// next report (see reportInterval), or when it returns.
	saveInterval = 5 * time.Second
	// confirmInterval is how often an unchanged config is written to disk again while its source is connected, to renew
	// the stored time of the last confirmation by the source.
	confirmInterval = time.Hour
	// loggedFields is the maximum number of unknown fields in a log line; Status lists them all.
	loggedFields = 10
)

// Options configures a Follower.
type Options struct {
	Source discovery.Source
	Server *server.Server
	Last   LastGood
	// Standby is the file with a config that is used if there is neither a source nor a last good config at the start.
	// If it is empty, there is no such config.
	Standby string
	// Restoring reports whether there are sessions of a previous process to restore. The follower then applies the last
	// good config at once, because their clients get no answer until their listeners are open.
	Restoring bool
	// Lookup returns the value of a placeholder of a config.
	Lookup func(name string) string
	// Applied applies the settings of a config that concern the process and not the server: logs, probes and metrics.
	// After an error, it is called again after retryInterval.
	Applied func(config.Config) error
	// Self returns Peer and Sender of reports; nil if the process does not take part in forwarding.
	Self func() (address, sender string)
	// Peers is called with each list of the pods to which this process forwards. If the source is unreachable at the
	// start, the first list is the saved one. If Peers is nil, lists are ignored.
	Peers func(discovery.Peers)
	// Pod is the name of this process in reports.
	Pod string
	// Program is the name of the program with its version.
	Program string
	Log     *slog.Logger
}

// Follower follows one source.
type Follower struct {
	opt Options
	due chan struct{} // has an element if Run must report at once
	// peers is the list of peers in force. Only Run uses it.
	peers discovery.Peers

	mu     sync.Mutex
	status state
}

// state is the state of the config and of the connection to its source.
type state struct {
	wanted  *discovery.Loaded // the last valid config, as published
	origin  string
	problem string // why parts of wanted do not run
	failing bool   // parts of wanted do not run
	patched bool   // of wanted, only the changes from the previous config were applied
	// rejected says why the last received config was rejected; "" if it was not. It stays when the running config is
	// applied again.
	rejected string

	// current is set if the running config is the latest config that the source has sent. It is not set for a config
	// that was read from disk.
	current bool
	// deleted is set if the config was deleted at its source.
	deleted bool
	// saved is the time at which the running config was written to disk; zero if it was not written.
	saved time.Time
	// written is when any config was last written to disk.
	written time.Time

	// connected is set while the source is connected.
	connected bool
	// lost is the error that ended the connection to the source, or "".
	lost string
	// lastContact is the time at which the connection to the source was last lost. Before the first loss it is the time
	// at which the source last confirmed the config that was loaded from disk, or else the start of Run.
	lastContact time.Time
	// contacted is set after the first contact with the source.
	contacted bool
}

// error returns why the last received config was rejected. If it was not rejected, it returns which part of the running
// config failed.
func (s state) error() string { return cmp.Or(s.rejected, s.problem) }

func (s state) revision() string {
	if s.wanted == nil {
		return ""
	}
	return s.wanted.Revision
}

// New returns a follower without a config.
func New(o Options) *Follower { return &Follower{opt: o, due: make(chan struct{}, 1)} }

func (f *Follower) state() state {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) update(change func(*state)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}

// Run follows the source until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	f.update(func(s *state) { s.lastContact = time.Now() })
	if f.opt.Restoring {
		f.startCold()
	}
	events := f.opt.Source.Watch(ctx)
	cold := time.NewTimer(coldStart)
	defer cold.Stop()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	report := time.NewTicker(reportInterval)
	defer report.Stop()
	defer f.save(0)
	open, cooled := events, (<-chan time.Time)(nil) // open is nil during the pause after a config
	for {
		select {
		case e, ok := <-open:
			if !ok {
				return nil
			}
			begun := time.Now()
			f.handle(e)
			took := time.Since(begun)
			if e.Err != nil && cold.Stop() { // the source is unreachable: do not wait for it
				f.startCold()
			}
			if !e.Connected && e.Peers == nil { // a connection or a list causes no pause
				open, cooled = nil, time.After(max(applyInterval, discovery.Cooldown(took, applyShare)))
			}
		case <-cooled:
			open = events
		case <-cold.C:
			f.startCold()
		case <-retry.C:
			f.retry()
		case <-f.due:
			f.report()
		case <-report.C:
			f.report()
			f.save(0)
		}
	}
}

// Once reads the source once and applies its config. It is an error if the source does not have exactly one valid
// config, or if a listener cannot be opened.
func (f *Follower) Once(ctx context.Context) error {
	configs, err := f.opt.Source.Load(ctx)
	if err != nil {
		return err
	}
	if len(configs) != 1 {
		return fmt.Errorf("read %s: %d configs where one is wanted: name it with --id", f.opt.Source, len(configs))
	}
	f.take(configs[0])
	// Once fails if a listener cannot be opened. It only logs that probes or metrics cannot be opened.
	if st := f.Status(); st.Revision == "" || len(st.Failures) > 0 {
		return errors.New(st.Problem)
	}
	return nil
}

func (f *Follower) handle(e discovery.Event) {
	switch {
	case e.Peers != nil:
		f.takePeers(*e.Peers)
		return
	case e.Err != nil:
		f.reject(e)
	case e.Deleted:
		// The deletion of a Gateway deletes this pod too. Until then calls continue.
		f.opt.Log.Info("config deleted at its source, keep the last one", "config", e.ID)
		f.update(func(s *state) { s.current, s.deleted = false, true }) // so that the config is not saved again
	case e.Connected:
		f.setConnected()
	default:
		f.setConnected()
		f.take(discovery.Loaded{Config: e.Config, Revision: e.Revision, Unknown: e.Unknown})
	}
	f.report()
}

// take applies a config that the source has sent, and saves it.
func (f *Follower) take(c discovery.Loaded) {
	f.update(func(s *state) { s.rejected = "" })
	former := f.state().wanted
	if !f.apply(c, f.opt.Source.String()) {
		return
	}
	f.update(func(s *state) { s.current, s.deleted = true, false })
	switch {
	case former == nil || !sameListeners(former.Config, c.Config):
		f.save(0)
	case !f.state().patched: // Run saves changed endpoints at the next report
		f.save(saveInterval)
	}
}

// sameListeners reports whether two configs have listeners with the same names, protocols and ports.
func sameListeners(a, b config.Config) bool {
	return slices.EqualFunc(a.Listeners, b.Listeners, func(a, b config.Listener) bool {
		return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port
	})
}

// reject handles a config that was rejected, or the loss of the connection to the source. The running config stays in
// force.
func (f *Follower) reject(e discovery.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(e.Err, discovery.ErrRejected) {
		f.opt.Log.Error("config rejected", "reason", f.count(e.Err).String(), "config", e.ID, "error", e.Err)
		f.status.rejected, f.status.current = e.Err.Error(), false
		return
	}
	f.opt.Log.Warn("config source lost, keep the running config", "source", f.opt.Source.String(), "error", e.Err)
	if f.status.connected {
		f.status.lastContact = time.Now()
	}
	f.status.connected, f.status.lost = false, e.Err.Error()
}

// count counts a rejected config in the metrics, as invalid or as unreadable. The caller logs it.
func (f *Follower) count(rejected error) meter.Reason {
	why := meter.ConfigUnreadable
	if wrong := (*config.FieldError)(nil); errors.As(rejected, &wrong) {
		why = meter.ConfigInvalid
	}
	f.opt.Server.Meter().Drop(why)
	return why
}

func (f *Follower) setConnected() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.status.connected {
		f.opt.Log.Info("config source connected", "source", f.opt.Source.String())
	}
	f.status.connected, f.status.lost, f.status.contacted = true, "", true
}

// startCold starts the process without its source: if no config has arrived yet, it applies the last good config from
// disk, or else the standby config.
func (f *Follower) startCold() {
	if f.state().wanted != nil {
		return
	}
	f.loadPeers()
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
		case errors.Is(err, errNothingSaved):
		case err != nil:
			f.opt.Log.Warn("cannot start with the "+at.origin, "error", err)
		default:
			f.opt.Log.Info("start with the "+at.origin, "config", c.Admin.Name, "revision", c.Revision())
			f.setAge(saved)
			f.apply(discovery.Loaded{Config: c, Revision: c.Revision()}, at.origin)
			return
		}
	}
	f.opt.Log.Info("wait for the first config", "source", f.opt.Source.String())
}

// setAge sets lastContact to the time at which the source last confirmed the config that was loaded from disk. If this
// time is zero, which means unknown, lastContact does not change.
func (f *Follower) setAge(saved time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.status.contacted && !saved.IsZero() {
		f.status.lastContact = saved
	}
}

// apply puts a config in force. It reports whether the config was valid.
func (f *Follower) apply(c discovery.Loaded, origin string) bool {
	plan, patched := f.patch(c)
	f.update(func(s *state) { s.patched = patched })
	if patched {
		if f.record(c, origin, nil) {
			f.log(c, plan, nil)
		}
		return true
	}
	return f.applyWhole(c, origin)
}

// patch puts a valid config in force that differs from the running one only in endpoints. Its cost depends only on the
// number of differences. For any other config it returns false and does nothing.
func (f *Follower) patch(c discovery.Loaded) (server.Plan, bool) {
	st := f.state()
	if st.wanted == nil || st.failing || st.rejected != "" {
		return server.Plan{}, false
	}
	changes, ok := config.EndpointChanges(st.wanted.Config, c.Config)
	if !ok || len(changes) == 0 {
		return server.Plan{}, false
	}
	return f.opt.Server.ApplyEndpoints(changes)
}

// applyWhole expands the placeholders of a config and puts it in force. It reports whether the config was valid.
func (f *Follower) applyWhole(c discovery.Loaded, origin string) bool {
	expanded, err := c.Expand(f.opt.Lookup)
	if err != nil {
		f.reject(discovery.Event{ID: c.Admin.Name, Err: errors.Join(discovery.ErrRejected, err)})
		return false
	}
	plan, err := f.opt.Server.Apply(expanded)
	err = errors.Join(err, f.opt.Applied(expanded))
	if f.record(c, origin, err) {
		f.log(c, plan, err)
	}
	return true
}

// save writes the running config to disk if the source has sent it. While the source is connected, it writes the config
// again every confirmInterval, because the age of the saved config counts from its last confirmation by the source. It
// writes nothing if less than the duration after has passed since the last write. It does not write a config that was
// loaded from disk, because the config would then look newer than it is.
func (f *Follower) save(after time.Duration) {
	f.mu.Lock()
	st, now := f.status, time.Now()
	due := st.current && (st.saved.IsZero() || st.connected && now.Sub(st.saved) >= confirmInterval) &&
		now.Sub(st.written) >= after
	if due {
		f.status.saved, f.status.written = now, now
	}
	f.mu.Unlock()
	if !due {
		return
	}
	if err := f.opt.Last.Save(st.wanted.Config, now); err != nil {
		f.opt.Log.Warn("cannot save the last good config", "error", err)
	}
}

// record stores an applied config and the error of its application. It reports whether the config or the error differs
// from the previous one.
func (f *Follower) record(c discovery.Loaded, origin string, failed error) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problem := ""
	if failed != nil {
		problem = failed.Error()
	}
	wanted := f.status.wanted
	other := wanted == nil || c.Revision != wanted.Revision || !slices.Equal(c.Unknown, wanted.Unknown)
	if other && len(c.Unknown) > 0 {
		f.opt.Server.Meter().UnknownFields.Add(uint64(len(c.Unknown)))
		f.opt.Log.Warn("ignore fields that this release does not define",
			"config", c.Admin.Name, "revision", c.Revision, "number", len(c.Unknown),
			"fields", c.Unknown[:min(len(c.Unknown), loggedFields)])
	}
	if other {
		f.status.saved = time.Time{}
	}
	changed = other || problem != f.status.problem
	f.status.wanted, f.status.origin = &c, origin
	f.status.failing, f.status.problem = failed != nil, problem
	return changed
}

func (f *Follower) log(c discovery.Loaded, plan server.Plan, failed error) {
	f.opt.Log.Info("config in force", "config", c.Admin.Name, "revision", c.Revision, "plan", plan.String())
	for _, change := range plan.Changes {
		f.opt.Log.Debug("config changed", "change", change.String())
	}
	if failed != nil {
		f.opt.Log.Error("config is only partly in force", "error", failed)
	}
}

// retry applies the running config again if a listener or an endpoint of it could not be opened.
func (f *Follower) retry() {
	if st := f.state(); st.failing {
		f.apply(*st.wanted, st.origin)
	}
}

// ReportNow makes Run send a report without waiting for reportInterval.
func (f *Follower) ReportNow() {
	select {
	case f.due <- struct{}{}:
	default:
	}
}

// report sends the state of the config and the number of allocations to the source, if the source accepts reports.
func (f *Follower) report() {
	to, ok := f.opt.Source.(discovery.Reporter)
	if !ok {
		return
	}
	st := f.state()
	peer, sender := f.self()
	to.Report(discovery.Report{
		ID: f.opt.Last.ID, Pod: f.opt.Pod, Revision: st.revision(),
		Accepted: st.error() == "", Error: st.error(),
		Allocations: f.opt.Server.Sessions().Len(), Draining: f.opt.Server.Sessions().Draining(),
		Offload: f.opt.Server.Offload().Reason, Peer: peer, Sender: sender,
	})
}

// Status returns the status of the server, the config and its source.
func (f *Follower) Status() inspection.Status {
	st, own := f.opt.Server.Status(), f.state()
	st.Revision, st.Origin, st.Problem, st.Lost = own.revision(), own.origin, own.error(), own.lost
	st.Pod, st.Program = f.opt.Pod, f.opt.Program
	st.Config = inspection.ConfigStatus{
		Revision: st.Revision, Origin: st.Origin, Age: own.age(), Rejected: own.rejected, Lost: st.Lost,
	}
	if own.wanted != nil {
		st.Unknown = slices.Clone(own.wanted.Unknown)
	}
	return st
}

// Ready returns nil once a config is in force and all its listeners are open. See server.Server.Ready.
func (f *Follower) Ready() error {
	if err := f.opt.Server.Ready(); err != nil {
		return fmt.Errorf("stunnerd not ready: %w", err)
	}
	return nil
}

// Deleted reports whether the source has deleted the running config, as it does when the Gateway is deleted.
func (f *Follower) Deleted() bool { return f.state().deleted }

// Revision returns the revision of the running config.
func (f *Follower) Revision() string { return f.state().revision() }

// Problem returns why the last received config was rejected, or which parts of the running config failed, or "".
func (f *Follower) Problem() string { return f.state().error() }

// Age returns the seconds since the last contact with the source; 0 while the source is connected. Before the first
// contact it is the age of the config that was loaded from disk, or the time since the start if that age is unknown.
func (f *Follower) Age() float64 { return f.state().age() }

func (st state) age() float64 {
	if st.connected || st.lastContact.IsZero() {
		return 0
	}
	return max(0, time.Since(st.lastContact).Seconds()) // clocks may be set back
}
