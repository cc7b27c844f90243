package file

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/host"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// settle is how long reports of dataplanes are collected before they are shown.
const settle = 200 * time.Millisecond

// retry is when a folder that cannot be read, or an output that cannot be written, is tried again.
const retry = time.Second

// loop owns everything that the provider knows. All its methods run on one goroutine, except ready.
type loop struct {
	Provider
	server  *discovery.Server
	ledger  *ledger
	memory  memory
	ports   *ports
	out     output
	planes  *host.Dataplanes
	meters  *meters
	history history
	summary summary
	// published are the configs of this run.
	published map[types.NamespacedName]config.Config
	view      *resource.View  // of the last round
	seen      *contents       // in the last look
	told      map[string]bool // problems that the log has

	knock  chan struct{} // something about a process has changed
	said   chan struct{} // a dataplane has reported
	done   atomic.Bool   // the first round is over
	failed atomic.Pointer[string]
}

// newLoop picks up what the run before left. origin is where processes find config discovery.
func newLoop(p Provider, server *discovery.Server, origin string) (*loop, error) {
	m, err := loadMemory(p.stateDir())
	if err != nil {
		return nil, err
	}
	l := &loop{Provider: p, server: server, memory: m, ledger: newLedger(m.Inventory), ports: &ports{chosen: m.Ports, free: canBind, offset: offsetFor(p.Output)},
		out: output{dir: p.Output}, published: map[types.NamespacedName]config.Config{}, meters: newMeters(), knock: make(chan struct{}, 1), said: make(chan struct{}, 1)}
	settings := host.Settings{Program: p.Stunnerd, Origin: origin, Address: p.Address, LastGood: p.lastGood(), Logs: p.logs(), Bound: p.Bound,
		StopGrace: p.StopGrace, Changed: func() { touch(l.knock) }, Restarted: l.meters.restarts.Inc, Log: p.Log}
	if p.DiscoveryAuth == AuthToken {
		settings.TokenFile = p.TokenFile()
	}
	l.planes = host.New(settings)
	return l, nil
}

// run works until ctx ends, then stops or leaves the dataplanes.
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
	if err := l.planes.Adopt(); err != nil {
		return err
	}
	defer l.planes.Close(l.LeaveDataplanes)
	next, refresh := l.work(), (<-chan time.Time)(nil)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-l.said:
			if refresh == nil {
				refresh = time.After(settle)
			}
		case <-refresh:
			refresh = nil
			l.refresh()
		case <-changes:
			next = l.work()
		case <-l.knock:
			next = l.work()
		case <-timer.C:
			next = l.work()
		}
		timer.Stop()
	}
}

// work does a round and returns when the next one is due although nothing has happened.
func (l *loop) work() time.Time {
	if err := l.round(); err != nil {
		if text := err.Error(); l.failed.Swap(&text) == nil {
			l.Log.Error("round failed and is tried again", "error", err)
		}
		return time.Now().Add(retry)
	}
	l.failed.Store(nil)
	l.done.Store(true)
	if l.summary.next.IsZero() {
		return time.Now().Add(time.Hour)
	}
	return l.summary.next
}

// refresh writes the report of the last round anew, with what dataplanes have said since. What they say changes nothing else.
func (l *loop) refresh() {
	if l.view == nil {
		return
	}
	if err := l.report(l.view); err != nil {
		l.Log.Error("report cannot be written", "error", err)
	}
}

// ready tells whether the folder has been translated.
func (l *loop) ready() error {
	switch text := l.failed.Load(); {
	case text != nil:
		return errors.New(*text)
	case !l.done.Load():
		return errors.New("the input folder has not been read yet")
	}
	return nil
}

func (l *loop) folder() folder { return folder{path: l.Input, out: l.Output} }

// round looks at the folder and brings everything to where the YAML wants it. An error means that nothing was done, or not all of it, and
// that the next round has to try again.
func (l *loop) round() error {
	c, err := l.look()
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
	l.view = t.view
	// Trouble with files keeps no config from its dataplane: everything is tried, and the next round tries again.
	var errs []error
	for _, result := range t.gateways {
		errs = append(errs, l.apply(t.view, result))
	}
	l.retire(t.view)
	for _, o := range t.passed {
		errs = append(errs, l.writeObject(o))
	}
	errs = append(errs, l.writeStatuses(t))
	if errors.Join(errs...) == nil {
		errs = append(errs, l.sweep())
	}
	l.memory.Inventory, l.memory.Ports = l.ledger.inventory(), l.ports.chosen
	return errors.Join(append(errs, l.memory.save(l.stateDir()), l.report(t.view))...)
}

// look reads the folder; without Watch it does so once.
func (l *loop) look() (contents, error) {
	if l.seen != nil && !l.Watch {
		return *l.seen, nil
	}
	c, err := l.folder().read()
	if err == nil {
		l.seen = &c
	}
	return c, err
}
