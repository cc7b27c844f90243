package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/host"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// reportDelay is how long reports of dataplanes are collected before status.txt is written, so that many reports cause
// only one write.
const reportDelay = 200 * time.Millisecond

// retryDelay is the delay before the next attempt if the input folder cannot be read or the output folder cannot be
// written.
const retryDelay = time.Second

// lookInterval is how often status.txt is written again, because the host changes without an event.
const lookInterval = 10 * time.Second

// loop holds the state of the file provider. Its methods run in one goroutine, except ready, faults, state and
// inspectedDataplanes, which read only atomic and constant fields.
//
// A round reads the input folder, translates the objects and applies the results.
type loop struct {
	Provider
	server     *discovery.Server
	ledger     *ledger
	saved      savedState
	ports      *ports
	out        output
	dataplanes *host.Dataplanes
	meters     *meters
	history    history
	summary    summary
	// published are the configs that this process has published. restored are the Gateways whose config in published
	// comes from the previous run.
	published map[types.NamespacedName]config.Config
	restored  map[types.NamespacedName]bool
	last      translation     // of the last round; zero before the first
	lastInput *contents       // contents at the last read
	logged    map[string]bool // problems that earlier rounds have logged
	// sockets is translate.Sockets, and translateObject is ObjectRef.Translate. Tests replace them.
	sockets         func(*resource.View, types.NamespacedName, translate.Options) ([]translate.Socket, translate.Decision)
	translateObject func(translate.ObjectRef, *resource.View, translate.Options) translate.Outcome

	processes chan struct{}           // receives a value when the state of a process has changed
	reports   chan struct{}           // receives a value when a dataplane has reported
	done      atomic.Bool             // a round has succeeded
	failed    atomic.Pointer[failure] // of the last round; nil if it succeeded
	problems  atomic.Pointer[[]inspection.Problem]
	host      atomic.Pointer[hostState] // nil before the first round
	auths     *authServices
}

// failure is the error of a round, and when it began.
type failure struct {
	err   error
	since time.Time
}

// newLoop returns a loop with the saved state of the previous run. origin is the URL at which dataplanes reach config
// discovery.
func newLoop(p Provider, server *discovery.Server, origin string) (*loop, error) {
	server.SetComplete(false)
	m, err := loadState(p.stateDir())
	if err != nil {
		return nil, err
	}
	l := &loop{Provider: p, server: server, saved: m, ledger: newLedger(m.Inventory),
		ports: &ports{chosen: m.Ports, free: canBind, offset: offsetFor(p.Output)}, out: output{dir: p.Output},
		published: map[types.NamespacedName]config.Config{}, restored: map[types.NamespacedName]bool{},
		meters:  newMeters(),
		sockets: translate.Sockets, translateObject: translate.ObjectRef.Translate,
		auths:     &authServices{},
		processes: make(chan struct{}, 1), reports: make(chan struct{}, 1)}
	l.auths.restore(m.Auth, time.Now())
	settings := host.Settings{Program: p.Stunnerd, Origin: origin, Addresses: p.Addresses, LastGood: p.lastGood(),
		Logs: p.logs(), Bound: p.Bound, StopGrace: p.StopGrace, Changed: func() { notify(l.processes) },
		Restarted: l.meters.restarts.Inc, Log: p.Log}
	if p.DiscoveryAuth == AuthToken {
		settings.TokenFile = p.TokenFile()
	}
	l.dataplanes = host.New(settings)
	return l, nil
}

// run executes rounds until ctx ends. It then stops the dataplanes, unless l.LeaveDataplanes is set.
func (l *loop) run(ctx context.Context) error {
	changes := make(chan struct{}, 1)
	if l.Watch {
		w, err := newWatcher(l.folder(), l.Log)
		if err != nil {
			return err
		}
		finished := make(chan struct{})
		go func() { defer close(finished); w.run(ctx, changes) }()
		defer func() { <-finished }()
	}
	bound, err := l.dataplanes.Adopt()
	if err != nil {
		return err
	}
	l.ports.adopted = bound
	defer l.end()
	next, refresh := l.work(), (<-chan time.Time)(nil)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-l.reports:
			if refresh == nil {
				refresh = time.After(reportDelay)
			}
		case <-refresh:
			refresh = nil
			l.refresh()
		case <-look.C:
			l.refresh()
		case <-changes:
			next = l.work()
		case <-l.processes:
			next = l.work()
		case <-timer.C:
			next = l.work()
		}
		timer.Stop()
	}
}

// end ends the dataplanes, unless l.LeaveDataplanes is set, and states in status.txt that the file is no longer
// updated.
func (l *loop) end() {
	l.dataplanes.Close(l.LeaveDataplanes)
	path := l.out.path("status.txt")
	last, err := os.ReadFile(path)
	if err != nil {
		return // no round has written status.txt
	}
	notice := "THE OPERATOR ENDED at " + time.Now().Format(time.DateTime)
	switch {
	case l.LeaveDataplanes:
		notice += " and left its dataplanes running"
	case l.Stunnerd != "":
		notice += " with its dataplanes"
	}
	if err := replaceFile(path, fmt.Appendf(nil, "%s. Its last report:\n\n%s", notice, last), 0o644); err != nil {
		l.Log.Error("report cannot be written", "error", err)
	}
}

// work executes a round: it reads the input folder, translates the objects and applies the results. It returns the time
// of the next round if nothing changes before.
func (l *loop) work() time.Time {
	if err := l.round(); err != nil {
		now := &failure{err, time.Now()}
		if before := l.failed.Load(); before != nil {
			now.since = before.since
		} else {
			l.Log.Error("round failed and is tried again", "error", err)
		}
		l.failed.Store(now)
		l.refresh() // writes the failure of the round into the report
		return time.Now().Add(retryDelay)
	}
	if l.failed.Swap(nil) != nil {
		l.refresh() // removes the earlier failure from the report
	}
	l.done.Store(true)
	if l.summary.next.IsZero() {
		return time.Now().Add(time.Hour)
	}
	return l.summary.next
}

// refresh writes status.txt of the last round again with the latest reports of dataplanes. It does not execute a round,
// because reports affect nothing else.
func (l *loop) refresh() {
	if l.last.view == nil {
		return
	}
	l.saved.Auth = l.auths.current(time.Now())
	err := errors.Join(l.report(l.last), l.saved.save(l.stateDir()))
	if err != nil && l.failed.Load() == nil {
		l.Log.Error("report cannot be written", "error", err)
	}
}

// ready returns an error until the input folder was read and applied for the first time, and while doing so fails.
func (l *loop) ready() error {
	switch failed := l.failed.Load(); {
	case failed != nil:
		return failed.err
	case !l.done.Load():
		return errors.New("the input folder has not been read yet")
	}
	return nil
}

func (l *loop) folder() folder { return folder{path: l.Input, out: l.Output} }

// round reads the input folder, translates the objects and applies the results. After an error, the round must be
// repeated.
func (l *loop) round() error {
	c, err := l.readInput()
	if err != nil {
		return err
	}
	now := time.Now()
	r := l.ledger.update(c, now)
	l.out.begin()
	l.summary = newSummary(r)
	t, err := l.translate(r, now)
	if err != nil {
		return err
	}
	l.last = t
	if l.serves() {
		l.summary.findClassless(t)
	} else if len(t.failed) == 0 { // a panic would also occur in package lint, which translates the same objects
		l.summary.check(c, t)
	}
	// If an output file cannot be written, dataplanes must get their configs nevertheless, so the round continues.
	var errs []error
	for _, result := range t.gateways {
		errs = append(errs, l.apply(t, result))
	}
	l.ensureUnread()
	l.server.SetUnpublished(l.unpublished(t))
	l.server.SetComplete(true)
	l.dataplanes.RemoveEnded()
	for _, o := range t.others {
		errs = append(errs, l.writeObject(o))
	}
	errs = append(errs, l.writeStatuses(t))
	if errors.Join(errs...) == nil {
		errs = append(errs, l.removeStale())
	}
	l.updateAddresses()
	l.saved.Inventory, l.saved.Ports, l.saved.Auth = l.ledger.inventory(), l.ports.chosen, l.auths.current(now)
	return errors.Join(append(errs, l.saved.save(l.stateDir()), l.report(t))...)
}

// readInput returns the contents of the input folder. Without l.Watch, it reads the folder once and
// then returns the same contents again.
func (l *loop) readInput() (contents, error) {
	if l.lastInput != nil && !l.Watch {
		return *l.lastInput, nil
	}
	c, err := l.folder().read()
	if err == nil {
		l.lastInput = &c
	}
	return c, err
}
