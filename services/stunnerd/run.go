package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/admin"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/follower"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/host"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
)

// daemon is the running process.
type daemon struct {
	options
	levels *telemetry.Levels
	log    *slog.Logger
	// journal is nil without a state folder.
	journal   *journal.Journal
	server    *server.Server
	follower  *follower.Follower
	endpoints *admin.Endpoints
	usage     records
	inspector *admin.Inspector
	// requests answers the requests of the operator.
	requests http.Handler
	registry *prometheus.Registry
	// moved is set when all sessions of a draining process have been handed over to other pods, so that it needs no
	// more datagrams.
	moved atomic.Bool
}

// run serves until ctx ends, and then drains. If replaced ends before, it returns errReplaced at once, and another
// process continues the sessions.
func run(ctx, replaced context.Context, o options) error {
	spec := cmp.Or(o.log, config.DefaultLogLevel)
	levels, err := telemetry.ParseLevels(spec)
	if err != nil { // like the former dataplane, ignore invalid parts
		o.warnings = append(o.warnings, "--log: a part is ignored: "+err.Error())
		levels = new(telemetry.Levels)
		levels.Set(spec)
	}
	log := telemetry.NewLog(os.Stderr, o.logFormat, levels)
	for _, warning := range o.warnings {
		log.Warn(warning)
	}
	o.keepsProbes = o.pod != ""
	if o.pod == "" {
		if o.pod, err = os.Hostname(); err != nil {
			return fmt.Errorf("name this pod in reports: %w: use --pod", err)
		}
	}
	var d *daemon
	requests := func(w http.ResponseWriter, r *http.Request) { d.requests.ServeHTTP(w, r) }
	source, err := open(o, log, http.HandlerFunc(requests))
	if err != nil {
		return err
	}
	if o.dryRun {
		return dryRun(ctx, source, o)
	}
	d, err = newDaemon(o, source, levels, log)
	if err != nil {
		return err
	}
	defer d.endpoints.Close()
	err = d.serve(ctx, replaced)
	if errors.Is(err, errReplaced) {
		return err // the sessions are not ended, because the next process restores them
	}
	return errors.Join(err, d.end())
}

// open opens the source of the config: the quick server if the command line has a TURN URI, or else the origin in
// --config. The handler answers the requests of a discovery server. It is called only after the source is watched.
func open(o options, log *slog.Logger, requests http.Handler) (discovery.Source, error) {
	if o.uri != nil {
		return quickServer(*o.uri)
	}
	return discovery.Open(o.config, discovery.Options{
		ID: o.id, Node: o.node, TokenFile: o.tokenFile, CAFile: o.caFile, Lookup: o.lookup,
		Log: telemetry.Scope(log, "discovery"), Handler: requests, Pod: o.pod, Kind: inspection.Dataplane,
		Deltas: true,
	})
}

func newDaemon(o options, source discovery.Source, levels *telemetry.Levels, log *slog.Logger) (*daemon, error) {
	memory := memoryLimit(cgroups)
	tuneGC(memory)
	clients, by := capacity(memory)
	if err := growFiles(clients); err != nil {
		log.Warn("new clients may delay the media of others", "error", err)
	}
	most := allocations(clients, o.relayPorts.Len()*len(o.addresses))
	local, _ := host.Addresses() // host.Follow logs an error and retries
	var forwards netip.Addr
	if _, ok := source.(discovery.Reporter); ok {
		forwards = o.addresses[0]
	}
	endpoints, err := openProbes(o, log)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	folder, err := o.journalFolder()
	if err != nil {
		telemetry.Scope(log, "journal").Warn("store sessions in --state-dir", "error", err)
		o.handOver = false // because the folder of the journal may be deleted with the pod
	}
	sessions, saved := journal.Open(journal.Options{
		Dir: folder, Log: telemetry.Scope(log, "journal"), Now: time.Now,
	})
	if n := len(saved.Sessions); n > 0 {
		telemetry.Scope(log, "stunnerd").Info("restore sessions of a previous process",
			"sessions", n, "read", time.Since(begun))
	}
	var srv *server.Server
	records, err := o.openUsage(folder, clients, sessionMemory(memory), saved, func() { srv.Meter().Refresh() },
		telemetry.Scope(log, "stunnerd"))
	if err != nil {
		endpoints.Close()
		return nil, errors.Join(err, sessions.Close())
	}
	srv, err = server.New(server.Options{
		Forward: forwards, Copies: o.move && !o.handOver,
		Sockets: o.sockets, ICMP: o.icmp, HostAddresses: o.addresses, LocalAddresses: local, RelayPorts: o.relayPorts,
		Capacity: clients, CapacityLimit: by, Allocations: most, Memory: sessionMemory(memory), NonceLifetime: o.nonceLifetime,
		Journal: sessions, Restored: saved, Usage: records.recorder, Log: telemetry.Scope(log, "turn"),
	})
	if err != nil {
		endpoints.Close()
		return nil, errors.Join(err, sessions.Close(), records.close())
	}
	endpoints.Count(srv.Meter())
	d := &daemon{
		options: o, levels: levels, log: telemetry.Scope(log, "stunnerd"), journal: sessions, server: srv,
		endpoints: endpoints, usage: records,
	}
	listeners := func() []config.Listener { return srv.Running().Listeners }
	access := admin.Access{Anywhere: o.from == fromAny, Users: o.showUsers}
	d.inspector = admin.NewInspector(admin.Process{
		Sessions: srv.Sessions(), Meter: srv.Meter(), Listeners: listeners, Reach: srv.Reach, End: srv.EndSessions,
		Usage:  records.recorder.Hour,
		Status: func() inspection.Status { return d.follower.Status() },
	}, access)
	d.requests = d.inspector.Requests()
	d.follower = follower.New(follower.Options{
		Source: source, Server: srv, Last: follower.LastGood{Dir: o.stateDir, ID: o.id}, Standby: o.standby,
		Restoring: len(saved.Sessions) > 0,
		Lookup:    o.lookup, Applied: d.applied, Pod: o.pod, Self: d.self, Peers: d.setPeers,
		Program: telemetry.Version("stunnerd"), Log: telemetry.Scope(log, "config"),
	})
	collector := &admin.Collector{Meter: srv.Meter(), Sessions: srv.Sessions(), Capacity: srv.Capacity, Offload: srv.Offload,
		Forwarding: srv.Forwarding, Journal: srv.Journal, Usage: records.recorder.Status, Config: d.config}
	d.registry = telemetry.NewRegistry(collector)
	return d, nil
}

// openProbes opens the endpoint of the probes of a process that follows its config. If another process has the port,
// openProbes returns an error: otherwise the other process would answer the probes of this one. It is called before the
// journal is opened, because a process that ends at once must not count as an attempt to restore the sessions.
func openProbes(o options, log *slog.Logger) (*admin.Endpoints, error) {
	endpoints := admin.NewEndpoints(telemetry.Scope(log, "admin"))
	if !o.watch {
		return endpoints, nil
	}
	starting := telemetry.Health{Ready: func() error { return errors.New("stunnerd not ready: it starts") }}
	err := endpoints.Set(healthEndpoint(o.probes, func(string) http.Handler { return starting }))
	if err != nil {
		return nil, fmt.Errorf("%w: free the port, or set --healthcheck-endpoint to another port or to none", err)
	}
	return endpoints, nil
}

// config returns the state of the running config for the metrics.
func (d *daemon) config() admin.Config {
	f := d.follower
	return admin.Config{Revision: f.Revision(), Age: f.Age(), Problem: f.Problem(),
		Listeners: d.server.Running().Listeners}
}

// serve runs the config until ctx ends, and then drains. With --watch it follows the config, also while it drains:
// routes may still be removed, and the operator gets reports about the remaining sessions. Without --watch it reads the
// config once, and returns an error if the config is missing or invalid.
func (d *daemon) serve(ctx, replaced context.Context) error {
	following, stop := context.WithCancel(context.Background())
	group := new(errgroup.Group)
	defer func() { _ = group.Wait() }()
	defer stop()
	group.Go(func() error {
		host.Follow(following, d.log, d.server.SetLocalAddresses)
		return nil
	})
	group.Go(func() error {
		d.countKernel(following)
		return nil
	})
	group.Go(func() error {
		d.usage.recorder.Run(following)
		return nil
	})
	if d.options.move && !d.options.handOver {
		group.Go(func() error {
			d.server.Adopt(following)
			return nil
		})
	}
	if d.watch {
		if err := d.endpoints.Set(d.health(d.options.probes)); err != nil {
			return err
		}
		group.Go(func() error { return d.follower.Run(following) })
	} else if err := d.follower.Once(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		d.drain()
		return nil
	case <-replaced.Done():
		d.log.Info("replaced", "sessions", d.server.Sessions().Len())
		return errReplaced
	}
}

// kernelInterval is the time between two readings of the counters of the kernel.
const kernelInterval = 2 * time.Second

// countKernel reads the counters of packets that the kernel has forwarded until ctx ends. The time of the reading is
// the time of the last packets of each peer.
func (d *daemon) countKernel(ctx context.Context) {
	tick := time.NewTicker(kernelInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.server.Meter().Refresh()
		case <-ctx.Done():
			return
		}
	}
}

// applied applies the settings of a config that concern the process: log levels, probes and metrics.
func (d *daemon) applied(c config.Config) error {
	if d.options.log == "" {
		d.levels.Set(c.Admin.LogLevel)
	}
	metrics := admin.Endpoint{Name: "metrics", URL: c.Admin.MetricsEndpoint, Port: admin.MetricsPort, Handler: d.metrics}
	return d.endpoints.Set(append(d.probesFor(*c.Admin.HealthcheckEndpoint), metrics)...)
}

// probesFor returns the endpoints of the probes when a config sets the endpoint configured. In a pod the endpoint from
// the start stays open too: the kubelet sends the probes to the port in the pod template, and a config with another
// port is for the pods that replace this one. Without answers, the kubelet would end the pod with its calls.
func (d *daemon) probesFor(configured string) []admin.Endpoint {
	if start := d.options.probes; d.watch && d.options.keepsProbes && start != "" && probesPort(start) != probesPort(configured) {
		of := d.health(configured)
		of.Name += " of the config"
		return []admin.Endpoint{d.health(start), of}
	}
	return []admin.Endpoint{d.health(configured)}
}

// probesPort returns the port of an endpoint of the probes, or "" if it has none.
func probesPort(endpoint string) string {
	u, err := url.Parse(config.EndpointURL(endpoint))
	if err != nil || endpoint == "" {
		return ""
	}
	return cmp.Or(u.Port(), admin.HealthPort)
}

func (d *daemon) health(url string) admin.Endpoint { return healthEndpoint(url, d.probes) }

func healthEndpoint(url string, handler func(path string) http.Handler) admin.Endpoint {
	return admin.Endpoint{Name: "healthcheck", URL: url, Port: admin.HealthPort, Handler: handler}
}

func (d *daemon) probes(string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", telemetry.Health{Live: d.server.Live, Ready: d.ready})
	mux.Handle("/status", d.inspector.Status())
	mux.Handle("/sessions", d.inspector.Sessions())
	mux.Handle("/refusals", d.inspector.Refusals())
	mux.Handle("/reach", d.inspector.Reach())
	return mux
}

func (d *daemon) ready() error {
	if d.options.unready && d.server.Sessions().Draining() {
		return errors.New("stunnerd not ready: it drains")
	}
	if d.moved.Load() {
		return errors.New("stunnerd not ready: its sessions are at other pods")
	}
	return d.follower.Ready()
}

func (d *daemon) metrics(path string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(cmp.Or(path, "/"), promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{}))
	return mux
}

// end closes everything. The live sessions over UDP stay in the journal, so that another process can continue them. If
// the config was deleted at its source, no process will: the sessions end, and the journal is removed.
func (d *daemon) end() error {
	if d.follower.Deleted() {
		return errors.Join(d.server.Close(), d.usage.close(), d.journal.Remove())
	}
	return errors.Join(d.server.Leave(), d.usage.close(), d.journal.Close())
}

// remaining returns the number of sessions for which drain waits: all, including sessions at other pods that use a
// relay socket of this pod, or, with --hand-over, sessions that no other process can continue.
func (d *daemon) remaining() int {
	if d.options.handOver && !d.follower.Deleted() {
		return d.server.Unstored()
	}
	return d.server.Sessions().Len() + d.server.HandedSockets()
}

// lateInterval is how often drain checks whether there are other pods.
const lateInterval = 100 * time.Millisecond

// drain refuses new sessions and waits until remaining is 0, at most --drain-timeout or until a second signal.
// Without --unready-on-drain the process stays ready meanwhile, because kube-proxy drops the UDP flows of an endpoint
// that is not ready, which would end every call. Nodes and load balancers send new clients for some time after SIGTERM.
// For lateTime, the process passes them to other pods or admits them, if there are other pods.
func (d *daemon) drain() {
	second, stop := secondSignal()
	defer stop()
	begun, sessions := time.Now(), d.server.Sessions()
	late := d.server.Drain(d.lateTime() > 0)
	d.follower.ReportNow()
	d.log.Info("drain", "sessions", sessions.Len(), "timeout", d.options.drain)
	timeout := time.NewTimer(d.options.drain)
	defer timeout.Stop()
	if d.options.move && !d.options.handOver {
		moving, stop := context.WithCancel(context.Background())
		var handing sync.WaitGroup
		defer handing.Wait()
		defer stop()
		handing.Go(func() { d.server.HandOver(moving) })
	}
	check := time.NewTicker(lateInterval)
	defer check.Stop()
	// A process with sessions continues to run, so it may receive a list with another pod later.
	for second.Err() == nil && time.Since(begun) < d.lateTime() && (late || d.remaining() > 0) {
		select {
		case <-check.C:
			late = d.server.Drain(true)
		case <-second.Done():
		}
	}
	d.server.Drain(false)
	for {
		changed := sessions.Changed()
		if d.remaining() == 0 {
			d.log.Info("drained", "left in journal", sessions.Len())
			d.sendAway(second)
			return
		}
		select {
		case <-changed:
		case <-second.Done():
			d.log.Info("second signal, stop draining", "sessions", sessions.Len())
			return
		case <-timeout.C:
			d.log.Info("drain timeout", "sessions", sessions.Len())
			return
		}
	}
}

const (
	// frontTime is how long a process without sessions forwards datagrams of clients whose sessions were handed over.
	frontTime = 10 * time.Second
	// quietTime is the time without a forwarded datagram after which all clients are assumed to use other pods. An ICE
	// agent in a call sends more often.
	quietTime = 3 * time.Second
)

// sendAway makes clients whose datagrams this process forwards use other pods: the process becomes unready, so that
// kube-proxy and load balancers send their datagrams to other pods. Until then it forwards the datagrams.
func (d *daemon) sendAway(second context.Context) {
	forwards, passed, quiet := d.server.Meter().SessionsHanded.Load() > 0, uint64(0), time.Now()
	d.moved.Store(true)
	tick := time.NewTicker(quietTime / 10)
	defer tick.Stop()
	end := time.Now().Add(frontTime)
	for {
		now := time.Now()
		if n := d.server.PassedOn(); n != passed {
			forwards, passed, quiet = true, n, now
		}
		if !forwards || now.Sub(quiet) >= quietTime || now.After(end) {
			return
		}
		select {
		case <-tick.C:
		case <-second.Done():
			return
		}
	}
}

// lateTime returns for how long new clients are admitted or passed to other pods after SIGTERM. With --hand-over,
// another process takes the place of this one when its connections have ended, and if the Gateway is deleted, no pod
// accepts clients.
func (d *daemon) lateTime() time.Duration {
	if d.options.handOver || d.follower.Deleted() {
		return 0
	}
	return min(d.options.drainLeast, d.options.drain)
}

// lookup returns the value of a placeholder in a config, or "" for a variable that is not set. If STUNNER_PORT is not a
// number, the value is STUNNER_PUBLIC_PORT or the default port, because Kubernetes sets STUNNER_PORT to a URL if the
// namespace has a Service with the name stunner.
func (o options) lookup(name string) string {
	switch name {
	case "STUNNER_ADDR":
		return o.addresses[0].String()
	case "STUNNER_PORT":
		for _, port := range []string{o.env("STUNNER_PORT"), o.env("STUNNER_PUBLIC_PORT")} {
			if _, err := strconv.Atoi(port); err == nil {
				return port
			}
		}
		return strconv.Itoa(config.DefaultPort)
	}
	return o.env(name)
}

func dryRun(ctx context.Context, source discovery.Source, o options) error {
	configs, err := source.Load(ctx)
	if err != nil {
		return err
	}
	for _, c := range configs {
		next, err := c.Expand(o.lookup)
		if err != nil {
			return fmt.Errorf("config %s: %w", c.Admin.Name, err)
		}
		fmt.Println(server.PlanFor(config.Zero(c.Admin.Name), next))
	}
	return nil
}
