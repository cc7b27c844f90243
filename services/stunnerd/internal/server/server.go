// Package server runs a dataplane config: it plans what a new config changes, applies it, and keeps what works when something does
// not.
//
// Apply goes in one direction: new sockets are opened beside the old ones, but for those that a new one wants itself, then policies
// are swapped, then old sockets retire. A
// listener that cannot be opened keeps its last good form, or where its port is another one's now the sessions that have sockets of their own. It does
// not hold up the others, and the next Apply tries it again.
package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/resolve"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Options are the settings of the process that no config changes.
type Options struct {
	// Sockets is the number of sockets of a UDP listener; 0 means one for each core that the process may use.
	Sockets int
	// ICMP tells clients of datagrams that did not reach a peer, with Data indications that have ICMP instead of DATA (RFC 8656 §11.5).
	ICMP bool
	// HostAddresses are the addresses of this host, or pod, at most one a family: the relay addresses of listeners whose config gives none,
	// and the ones of the other family where the config gives one.
	HostAddresses []netip.Addr
	// LocalAddresses are all addresses of this host, until SetLocalAddresses says otherwise.
	LocalAddresses []netip.Addr
	// RelayPorts are the ports that relays may have; the zero range leaves the choice to the kernel.
	RelayPorts config.PortRange
	// Capacity is the number of clients that the process can bear; 0 means no bound. Allocations bounds those that have an allocation, and the ports
	// that are reserved for them; 0 means Capacity. There may be fewer relay ports.
	Capacity, Allocations int
	// NonceLifetime is for how long a client may use a nonce; 0 means nonce.MaxLifetime.
	NonceLifetime time.Duration
	Log           *slog.Logger
}

// Server is a running dataplane.
type Server struct {
	opt     Options
	engine  engine.Engine
	nonces  *nonce.Source
	held    *relay.Reservations
	limits  *limit.Process
	guests  *listener.Limits
	table   *session.Table
	meter   *meter.Meter
	names   *resolve.Resolver
	network relay.Kernel

	mu        sync.Mutex
	wanted    config.Config            // as applied last
	running   config.Config            // as much of wanted as could be opened
	clusters  []config.Cluster         // of wanted, with addresses for names
	book      cluster.Book             // of clusters
	allowed   map[string]*cluster.View // by listener of wanted, what its routes allow
	self      *cluster.Self
	local     atomic.Pointer[[]netip.Addr] // sorted
	listeners map[string]*running
	former    []gate.Former
	failures  map[string]string
	served    bool // all listeners of a config were open at the same time, and there was at least one
	retiring  sync.WaitGroup
	closed    chan struct{}
	// tasks are the goroutines that Live looks at.
	tasks atomic.Pointer[[]*watch.Task]
}

// running is an open listener.
type running struct {
	spec   config.Listener
	gate   *gate.Gate
	socket listener.Listener
	// before are the forms that this one has replaced and that still have sessions. These obey what this one obeys.
	before []*running
	// retired tells that the listener takes no new sessions, yielded that it has no port any more, ended that nothing of it is left. One that has
	// yielded and not found another port is retired without a successor.
	retired, yielded, ended bool
}

// obey puts a policy and routes in force for all sessions of a listener.
func (r *running) obey(p *gate.Policy, routes *cluster.View) {
	r.before = slices.DeleteFunc(r.before, func(old *running) bool { return old.ended })
	for _, old := range r.before {
		old.gate.Update(p, routes)
	}
	r.gate.Update(p, routes)
}

// former finds the form of a listener that has the socket which a config wants back.
func (r *running) former(l config.Listener) *running {
	for _, old := range r.before {
		if !old.ended && !old.yielded && old.spec.Protocol == l.Protocol && old.spec.Port == l.Port {
			return old
		}
	}
	return nil
}

// New returns a server that runs the zero config: it listens nowhere.
func New(o Options) (*Server, error) {
	cores := runtime.GOMAXPROCS(0)
	if o.Sockets <= 0 || o.Sockets > cores {
		o.Sockets = cores
	}
	allocations, err := pionturn.New(cores, o.Log)
	if err != nil {
		return nil, err
	}
	nonces, err := nonce.New()
	if err != nil {
		return nil, errors.Join(err, allocations.Close())
	}
	nonces.Lifetime = cmp.Or(o.NonceLifetime, nonce.MaxLifetime)
	s := &Server{
		opt: o, engine: allocations, nonces: nonces, held: relay.NewReservations(), limits: limit.NewProcess(), guests: listener.NewLimits(o.Capacity), table: session.NewTable(), meter: meter.New(),
		wanted: config.Zero(config.DefaultName), running: config.Zero(config.DefaultName), listeners: map[string]*running{}, failures: map[string]string{},
		closed: make(chan struct{}),
	}
	s.meter.LogFaults(o.Log)
	s.watchTasks()
	s.network = relay.Kernel{ICMP: o.ICMP, Local: s.isLocal}
	if o.RelayPorts.Len() > 0 {
		s.network.Ports = relay.NewPorts(o.RelayPorts)
	}
	s.local.Store(sorted(o.LocalAddresses))
	s.names = resolve.New(resolve.System(nil), s.refresh, o.Log)
	return s, nil
}

// Meter is what the server counts.
func (s *Server) Meter() *meter.Meter { return s.meter }

// Live returns an error when a goroutine that many clients depend on does not come back: then only a restart helps. Probes call it again and
// again.
func (s *Server) Live() error {
	now := time.Now()
	for _, t := range *s.tasks.Load() {
		if t.Stuck(now) {
			return fmt.Errorf("stunnerd not live: a reader of a listener, or a lane of pion/turn, has handled one message for more than %v", watch.Patience)
		}
	}
	return nil
}

// watchTasks sets the goroutines that Live looks at. The caller holds mu. Live does not: a change of the config that waits for a stuck reader holds it.
func (s *Server) watchTasks() {
	tasks := s.engine.Tasks()
	for _, r := range s.listeners {
		tasks = append(tasks, r.socket.Tasks()...)
		for _, old := range r.before {
			tasks = append(tasks, old.socket.Tasks()...)
		}
	}
	s.tasks.Store(&tasks)
}

// Sessions is who is connected.
func (s *Server) Sessions() *session.Table { return s.table }

// Running is the config that is in force. A listener that could not be opened is not in it, or stands there in its last good form.
func (s *Server) Running() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running.Clone()
}

// Apply puts a validated and expanded config in force. The error names the listeners that could not be opened; everything else is in
// force all the same.
func (s *Server) Apply(next config.Config) (Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = next.Clone()
	plan := PlanFor(s.running, next)
	s.remember(next.Auth)
	s.table.SetBounds(bounds(next.Admin, cmp.Or(s.opt.Allocations, s.opt.Capacity)))
	s.nonces.Share(next)

	views := s.views(next)
	for _, name := range plan.Yield {
		s.yield(name, next)
	}
	opened, failed := s.open(plan, next, views)
	for name := range failed {
		if r := s.listeners[name]; r != nil && r.yielded && !r.retired {
			s.retire(r) // its port is gone, and nothing has taken its place: its sessions need neither
		}
	}
	s.update(next, views, failed)
	for _, r := range opened {
		if old := s.listeners[r.spec.Name]; old != nil {
			r.before = slices.DeleteFunc(append(old.before, old), func(form *running) bool { return form == r })
			old.before = nil
			if !old.retired {
				s.retire(old)
			}
		}
		s.listeners[r.spec.Name] = r
	}
	for name := range s.listeners { // not those of the plan alone: a listener without a port does not run, and may have sessions
		if !has(next, name) {
			s.stop(name)
		}
	}
	s.wanted, s.running = next, withoutFailures(next, s.listeners)
	s.watchTasks()
	s.meter.Applied.Add(1)
	err := s.report(failed)
	s.served = s.served || len(next.Listeners) > 0 && s.ready() == nil
	return plan, err
}

// maxFormer bounds the number of former authorities: each request that is wrongly signed is held against all of them. Where credentials change more
// often than that within the overlap, the earliest are forgotten before it ends.
const maxFormer = 16

// remember keeps the authority that next replaces for the sessions that it admitted, for the overlap of next, once: a config that goes back and forth
// does not make a longer list of what each request is held against. A change of the realm alone keeps none: a session knows its realm. A shorter
// overlap holds for authorities that were replaced earlier too; a longer one does not bring back what is forgotten.
func (s *Server) remember(next config.Auth) {
	now, old, authority := time.Now(), s.running.Auth.Authority(), next.Authority()
	until := now.Add(next.Overlap())
	for i, f := range s.former {
		if f.Until.After(until) {
			s.former[i].Until = until
		}
	}
	leaving, _ := s.running.Auth.FormerAuthority() // a secret on its way out has admitted sessions as well
	if stays, _ := next.FormerAuthority(); leaving.In(stays.Realm) == stays {
		leaving = credential.Authority{}
	}
	s.former = slices.DeleteFunc(s.former, func(f gate.Former) bool {
		return !now.Before(f.Until) || f.Authority == old || f.Authority == leaving
	})
	if !now.Before(until) || len(s.listeners) == 0 {
		return
	}
	for _, a := range []credential.Authority{leaving, old} {
		if a != (credential.Authority{}) && a.In(authority.Realm) != authority {
			s.former = append(s.former, gate.Former{Authority: a, Until: until})
		}
	}
	s.former = s.former[max(0, len(s.former)-maxFormer):]
}

// views computes what each listener of a config may reach, and has the names in it resolved from now on.
func (s *Server) views(next config.Config) map[string]*cluster.View {
	s.names.Watch(append(cluster.Names(next.Clusters), publicNames(next.Listeners)...))
	s.clusters = cluster.Resolve(next.Clusters, s.names.Answers())
	s.book.Take(s.clusters)
	s.self = s.selfOf(next)
	s.allowed = make(map[string]*cluster.View, len(next.Listeners))
	views := make(map[string]*cluster.View, len(next.Listeners))
	for _, l := range next.Listeners {
		views[l.Name] = s.view(l)
	}
	return views
}

// open opens the sockets that the plan asks for, with their policy already in place.
func (s *Server) open(plan Plan, next config.Config, views map[string]*cluster.View) (opened []*running, failed map[string]error) {
	failed = map[string]error{}
	for _, l := range slices.Concat(plan.Start, plan.Replace) {
		r, err := s.openOne(l, s.policy(next, l), views[l.Name])
		if err != nil {
			failed[l.Name] = err
			continue
		}
		opened = append(opened, r)
	}
	return opened, failed
}

// openOne opens a listener, or takes the former one back that has its port.
func (s *Server) openOne(l config.Listener, p *gate.Policy, routes *cluster.View) (*running, error) {
	if now := s.listeners[l.Name]; now != nil {
		if r := now.former(l); r != nil {
			if err := r.socket.Update(l); err != nil {
				return nil, fmt.Errorf("update listener %s: %w", l.Name, err)
			}
			r.gate.Update(p, routes)
			r.gate.Resume()
			r.spec, r.retired = l, false
			return r, nil
		}
	}
	g := gate.New(l.Name, l.Protocol, gate.Shared{
		Engine: s.engine, Nonces: s.nonces, Network: s.network, Held: s.held, Limits: s.limits, Table: s.table, Meter: s.meter, Log: s.opt.Log,
	})
	g.Update(p, routes)
	socket, err := listener.Open(l, g, listener.Options{Sockets: s.opt.Sockets, Limits: s.guests, Meter: s.meter, Log: s.opt.Log})
	if err != nil {
		return nil, s.blame(l, err)
	}
	return &running{spec: l, gate: g, socket: socket}, nil
}

// blame says whose sessions hold the port that a listener cannot have, if they are of this process: of a listener over UDP or DTLS that had it before.
// Nothing in it changes from one try to the next.
func (s *Server) blame(l config.Listener, err error) error {
	for name, now := range s.listeners {
		for _, old := range now.before {
			if !old.ended && !old.yielded && socketOf(old.spec) == socketOf(l) {
				return fmt.Errorf("%w: calls that listener %s had there go on, and hold it until the last one has ended", err, name)
			}
		}
	}
	return err
}

// update swaps policies, routes and certificates of the listeners that stay.
func (s *Server) update(next config.Config, views map[string]*cluster.View, failed map[string]error) {
	for _, l := range next.Listeners {
		r := s.listeners[l.Name]
		if r == nil {
			continue
		}
		r.obey(s.policy(next, l), views[l.Name])
		if l.Protocol != r.spec.Protocol {
			continue // it is on its way out
		}
		if err := r.socket.Update(l); err != nil {
			failed[l.Name] = fmt.Errorf("update listener %s: %w", l.Name, err)
		}
	}
}

func (s *Server) policy(c config.Config, l config.Listener) *gate.Policy {
	former := slices.Clone(s.former)
	if authority, until := c.Auth.FormerAuthority(); authority != (credential.Authority{}) {
		former = append(former, gate.Former{Authority: authority, Until: until, New: true})
	}
	return &gate.Policy{
		Authority:  c.Auth.Authority(),
		Former:     former,
		RelayAddrs: s.relayAddrs(l.Address),

		SessionGrace: time.Duration(c.Auth.SessionGrace) * time.Second,
	}
}

// DefaultSourceQuota is how many allocations one source may have where the config does not say.
const DefaultSourceQuota = 100

func bounds(a config.Admin, capacity int) session.Bounds {
	return session.Bounds{
		UserSessions: a.UserQuota, SourceSessions: cmp.Or(a.SourceQuota, DefaultSourceQuota),
		SessionRate: a.SessionByteRate, UserRate: a.UserByteRate, Capacity: capacity,
	}
}

// relayAddrs are the configured address first, and the host's of another family.
func (s *Server) relayAddrs(address string) []netip.Addr {
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.IsUnspecified() {
		return s.opt.HostAddresses
	}
	addrs := []netip.Addr{addr.Unmap()}
	for _, a := range s.opt.HostAddresses {
		if a.Is4() != addrs[0].Is4() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// retire lets the sessions of a replaced listener end by themselves, then closes its socket. A port that no session needs is given up at once:
// another listener may want it while the last call goes on for hours.
func (s *Server) retire(r *running) {
	r.retired = true
	r.gate.Retire()
	r.yielded = r.yielded || r.socket.Yield()
	s.retiring.Go(func() {
		for {
			changed := s.table.Changed()
			if s.settled(r) {
				return
			}
			select {
			case <-changed:
			case <-s.closed:
				r.gate.Close()
			}
		}
	})
}

// settled ends a retired listener that has no sessions any more, and reports whether there is nothing to wait for: it has ended, or was
// taken back.
func (s *Server) settled(r *running) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.retired && !r.ended && r.gate.Sessions() == 0 {
		s.end(r)
	}
	return !r.retired || r.ended
}

// has tells whether a config has a listener of a name.
func has(c config.Config, name string) bool {
	return slices.ContainsFunc(c.Listeners, func(l config.Listener) bool { return l.Name == name })
}

// yield frees the port of a listener. The sessions of one that gets another port, or another protocol, go on where they have sockets of
// their own.
func (s *Server) yield(name string, next config.Config) {
	if r := s.listeners[name]; r != nil && has(next, name) && r.socket.Yield() {
		r.yielded = true
		return
	}
	s.stop(name)
}

// stop ends a listener and its sessions.
func (s *Server) stop(name string) {
	if r := s.listeners[name]; r != nil {
		delete(s.listeners, name)
		s.end(r)
		for _, old := range r.before {
			s.end(old)
		}
	}
}

// end closes the sockets first: nothing that is under way in a reader can make a session after the gate has ended them all.
func (s *Server) end(r *running) {
	if r.ended {
		return
	}
	r.ended = true
	r.gate.Retire()
	if err := r.socket.Close(); err != nil {
		s.opt.Log.Warn("close listener", "listener", r.spec.Name, "error", err)
	}
	r.gate.Close()
}

// report notes which listeners do not run as configured, and why.
func (s *Server) report(failed map[string]error) error {
	s.failures = make(map[string]string, len(failed))
	var errs []error
	for name, err := range failed {
		s.failures[name] = err.Error()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withoutFailures is the config as it runs: what could not be opened, and takes no new sessions, is left out, or stands in the form that is still
// open.
func withoutFailures(next config.Config, open map[string]*running) config.Config {
	next.Listeners = slices.DeleteFunc(slices.Clone(next.Listeners), func(l config.Listener) bool { return open[l.Name] == nil || open[l.Name].retired })
	for i, l := range next.Listeners {
		next.Listeners[i].Port, next.Listeners[i].Protocol = open[l.Name].spec.Port, open[l.Name].spec.Protocol
	}
	return next
}

// Close ends all sessions and closes all sockets.
func (s *Server) Close() error {
	s.names.Close() // before the lock, which a refresh that is under way may wait for
	s.mu.Lock()
	close(s.closed)
	for name := range s.listeners {
		s.stop(name)
	}
	s.mu.Unlock()
	s.retiring.Wait()
	return errors.Join(s.held.Close(), s.engine.Close())
}
