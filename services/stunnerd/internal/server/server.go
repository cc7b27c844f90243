// Package server runs a dataplane config. It plans the changes from the running config to a new one, and applies the
// plan. If a step fails, the rest of the config is applied.
//
// Apply first frees the ports that move from one listener to another. Then it opens new sockets, updates the policies
// of the listeners that were open before, retires the replaced sockets, and stops the removed listeners. A listener
// that cannot be opened stays on its previous port and protocol. If that port now belongs to another listener, only the
// sessions that have sockets of their own (TCP, TLS) continue. A failed listener does not delay the others, and the
// next Apply tries to open it again.
//
// # Files
//
//	plan.go apply.go  the plan and its steps
//	generation.go     states of a listener
//	policy.go         settings of a listener from the config, default quotas
//	names.go          addresses of host names
//	status.go         readiness and status
//	inspect.go        reachable peers, end of sessions, certificates
//	forward.go        forwarding between the pods of a Gateway
//	handover.go       sessions that go to other pods, or come from them
//	offload.go        in-kernel forwarding
//	self.go           addresses of the gateway itself
//	restore.go        sessions of a crashed process
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
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/resolve"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// Options are the settings of the process. A config does not change them.
type Options struct {
	// Sockets is the number of receiving sockets of a UDP or DTLS listener. 0, or a number above the cores that
	// the process may use, means one for each of these cores.
	Sockets int
	// ICMP enables reports to clients about datagrams that did not reach a peer: Data indications with an ICMP
	// attribute instead of DATA (RFC 8656 §11.5).
	ICMP bool
	// HostAddresses are addresses of this host or pod, at most one of each family. A listener without a configured
	// address uses them as relay addresses. A listener with a configured address uses the one of the other family too.
	HostAddresses []netip.Addr
	// LocalAddresses are all addresses of this host. SetLocalAddresses replaces them.
	LocalAddresses []netip.Addr
	// RelayPorts is the range of ports for relays. If it is the zero range, the kernel selects the ports.
	RelayPorts config.PortRange
	// Capacity is the maximum number of clients of the process; 0 means no maximum.
	Capacity int
	// CapacityLimit names the resource that determines Capacity, for the status.
	CapacityLimit string
	// Allocations is the maximum number of allocations and reserved ports; 0 means Capacity. It is lower than Capacity
	// if there are few relay ports.
	Allocations int
	// Memory is the maximum memory of sessions and connections in bytes, as package session counts it; 0 means no
	// maximum.
	Memory int64
	// NonceLifetime is how long a client may use a nonce; 0 means nonce.MaxLifetime.
	NonceLifetime time.Duration
	// Journal stores the sessions of clients over UDP. It may be nil. The server does not close it.
	Journal *journal.Journal
	// Usage has the accounts of sessions. It may be nil. The server does not close it.
	Usage *usage.Recorder
	// Restored is the content of the journal of a previous process.
	Restored journal.Restored
	// Forward is the address of this pod at which it receives the datagrams of clients that other pods forward. If it
	// is invalid, nothing is forwarded.
	Forward netip.Addr
	// Copies gives other pods copies of the sessions over UDP, and continues sessions of pods that are lost.
	Copies bool
	Log    *slog.Logger
}

// Server is a running dataplane.
type Server struct {
	opt          Options
	started      time.Time
	engine       engine.Engine
	nonces       *nonce.Source
	reservations *relay.Reservations
	limits       *limit.Process
	connLimits   *listener.Limits
	table        *session.Table
	meter        *meter.Meter
	names        *resolve.Resolver
	network      relay.Kernel
	pollers      *relay.Pollers
	// offload is nil if the engine is None. mu guards changes.
	offload atomic.Pointer[offload.Offload]
	// forwarder is nil if nothing is forwarded between pods.
	forwarder    *forward.Forwarder
	forwardPorts atomic.Pointer[forwardPorts]
	handedOver   handedOver
	// clientAddresses is ClientAddresses of the config.
	clientAddresses atomic.Bool

	mu          sync.Mutex
	wanted      config.Config            // the config of the last Apply
	running     config.Config            // the part of wanted that is in force
	clusters    []config.Cluster         // the clusters of wanted, with addresses instead of host names
	viewBuilder cluster.ViewBuilder      // holds clusters
	allowed     map[string]*cluster.View // by listener name: the peers that the routes of wanted allow
	self        *cluster.Self
	local       atomic.Pointer[[]netip.Addr] // sorted
	departed    []netip.Addr                 // addresses that local contained, at most maxDeparted
	listeners   map[string]*generation       // the current generation of each listener, by name
	former      []gate.Former
	revoked     *credential.Revocations // of wanted
	failures    map[string]string
	restoring   restoring
	served      bool           // all listeners of a config with at least one listener have been open
	pods        []forward.Peer // of the last SetPeers with pods
	// peersProblem is Peers.Problem of the last SetPeers.
	peersProblem string
	retiring     sync.WaitGroup
	closed       chan struct{}
	// tasks are the goroutines that Live checks.
	tasks atomic.Pointer[[]*watch.Task]
}

// New returns a server that runs the zero config and has no listener.
func New(o Options) (*Server, error) {
	cores := runtime.GOMAXPROCS(0)
	if o.Sockets <= 0 || o.Sockets > cores {
		o.Sockets = cores
	}
	allocations, err := pionturn.New(cores, o.Log)
	if err != nil {
		return nil, err
	}
	nonces, err := nonce.New(o.Restored.NonceRoot)
	if err != nil {
		return nil, errors.Join(err, allocations.Close())
	}
	pollers, err := relay.NewPollers(o.Sockets)
	if err != nil {
		return nil, errors.Join(err, allocations.Close())
	}
	o.Journal.Nonces(nonces.Root())
	nonces.Lifetime = cmp.Or(o.NonceLifetime, nonce.MaxLifetime)
	s := &Server{
		opt: o, started: time.Now(), engine: allocations, pollers: pollers, nonces: nonces, reservations: relay.NewReservations(),
		limits: limit.NewProcess(), connLimits: listener.NewLimits(o.Capacity), table: session.NewTable(), meter: meter.New(),
		wanted: config.Zero(config.DefaultName), running: config.Zero(config.DefaultName),
		former:    o.Restored.Former,
		listeners: map[string]*generation{}, failures: map[string]string{}, closed: make(chan struct{}),
	}
	s.table.SetBounds(bounds(s.running.Admin, s.capacity()))
	s.meter.LogFaults(o.Log)
	s.meter.LogRefusals(o.Log)
	s.meter.CountElsewhere(func() { s.offload.Load().Fold() })
	s.handedOver.sockets = map[forward.Client]handedSocket{}
	s.network = relay.Kernel{ICMP: o.ICMP, Local: s.isLocal, Pollers: s.pollers}
	if o.RelayPorts.Len() > 0 {
		s.network.Ports = relay.NewPorts(o.RelayPorts)
	}
	s.local.Store(sorted(o.LocalAddresses))
	s.openSaved(o.Restored.Sessions)
	s.opt.Restored = journal.Restored{} // so that the garbage collector can free the sessions of the journal
	s.forwardPorts.Store(new(forwardPorts))
	if o.Forward.IsValid() {
		f, err := forward.Open(forward.Options{
			Local: o.Forward, Sessions: forwarding{s}, Meter: s.meter, Descriptors: relay.Descriptors() / listener.OwnShare,
			Clients: forwardedClients(o.Memory), Copies: copiesMemory(o.Memory), Ambiguous: s.ambiguous,
		})
		if err != nil {
			o.Log.Warn("datagrams are not forwarded between pods", "error", err)
		}
		s.forwarder = f
	}
	if s.forwarder != nil {
		s.table.Report(s.report)
	}
	s.watchTasks()
	s.names = resolve.New(resolve.System(nil), s.refresh, o.Log)
	return s, nil
}

// Meter returns the counters of the server.
func (s *Server) Meter() *meter.Meter { return s.meter }

// Sessions returns the table of the connected clients.
func (s *Server) Sessions() *session.Table { return s.table }

// Live returns an error if a goroutine on which many clients depend is stuck. The kubelet must then restart the
// process.
func (s *Server) Live() error {
	now := time.Now()
	for _, t := range *s.tasks.Load() {
		if t.Stuck(now) {
			return fmt.Errorf(
				"stunnerd not live: a reader of datagrams, or a worker of pion/turn, has handled one message for more than %v",
				watch.StuckAfter)
		}
	}
	return nil
}

// watchTasks sets the goroutines that Live checks. The caller holds mu. Live reads them without mu, because mu is held
// by an Apply that waits for a stuck reader.
func (s *Server) watchTasks() {
	tasks := slices.Concat(s.engine.Tasks(), s.pollers.Tasks(), s.forwarder.Tasks())
	for g := range s.generations {
		tasks = append(tasks, g.socket.Tasks()...)
	}
	s.tasks.Store(&tasks)
	s.watchForwarding()
}

// Running returns the config that is in force. A listener that could not be opened is not in it, or has its previous
// port and protocol.
func (s *Server) Running() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running.Clone()
}

// Close ends all sessions and closes all sockets.
func (s *Server) Close() error { return s.close(func(*gate.Gate) {}) }

// Leave closes all sockets. The sessions that are in the journal stay there, so that another process can continue them.
func (s *Server) Leave() error { return s.close((*gate.Gate).Leave) }

// close calls the function before for the gate of each generation. Then it closes everything.
func (s *Server) close(before func(*gate.Gate)) error {
	s.closeAllHanded()
	err := s.forwarder.Close()
	s.names.Close() // before mu is locked, because Close waits for a refresh, which locks mu
	s.mu.Lock()
	for g := range s.generations {
		g.gate.Stop()
		before(g.gate)
	}
	close(s.closed)
	for name := range s.listeners {
		s.stop(name)
	}
	for at := range s.restoring.saved {
		s.closeSaved(at)
	}
	s.mu.Unlock()
	s.retiring.Wait()
	return errors.Join(err, s.offload.Load().Close(), s.reservations.Close(), s.engine.Close(), s.pollers.Close())
}
