package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/admin"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/follower"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/host"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
)

// daemon is the running process.
type daemon struct {
	options
	levels    *telemetry.Levels
	log       *slog.Logger
	server    *server.Server
	follower  *follower.Follower
	endpoints *admin.Endpoints
	inspector *admin.Inspector
	registry  *prometheus.Registry
}

// run serves until ctx ends, and then drains.
func run(ctx context.Context, o options) error {
	spec := cmp.Or(o.log, config.DefaultLogLevel)
	levels, err := telemetry.ParseLevels(spec)
	if err != nil { // the former dataplane ignores invalid parts
		o.warnings = append(o.warnings, "--log: a part is ignored: "+err.Error())
		levels = new(telemetry.Levels)
		levels.Set(spec)
	}
	log := telemetry.NewLog(os.Stderr, o.logFormat, levels)
	for _, warning := range o.warnings {
		log.Warn(warning)
	}
	source, err := open(o, log)
	if err != nil {
		return err
	}
	if o.dryRun {
		return dryRun(ctx, source, o)
	}
	d, err := newDaemon(o, source, levels, log)
	if err != nil {
		return err
	}
	defer d.endpoints.Close()
	err = d.serve(ctx)
	return errors.Join(err, d.server.Close())
}

// open opens the source of the config: the quick server if the command line has a TURN URI, or else the origin in
// --config.
func open(o options, log *slog.Logger) (discovery.Source, error) {
	if o.uri != nil {
		return quickServer(*o.uri)
	}
	return discovery.Open(o.config, discovery.Options{
		ID: o.id, Node: o.node, TokenFile: o.tokenFile, CAFile: o.caFile, Lookup: o.lookup,
		Log: telemetry.Scope(log, "discovery"),
	})
}

func newDaemon(o options, source discovery.Source, levels *telemetry.Levels, log *slog.Logger) (*daemon, error) {
	memory := memoryLimit(cgroups)
	setMemoryLimit(memory)
	clients := capacity(memory)
	most := allocations(clients, o.relayPorts.Len()*len(o.addresses))
	local, _ := host.Addresses() // host.Follow logs an error and retries
	srv, err := server.New(server.Options{
		Sockets: o.sockets, ICMP: o.icmp, HostAddresses: o.addresses, LocalAddresses: local, RelayPorts: o.relayPorts,
		Capacity: clients, Allocations: most, NonceLifetime: o.nonceLifetime, Log: telemetry.Scope(log, "turn"),
	})
	if err != nil {
		return nil, err
	}
	if o.pod == "" {
		if o.pod, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("name this pod in reports: %w: use --pod", err)
		}
	}
	d := &daemon{
		options: o, levels: levels, log: telemetry.Scope(log, "stunnerd"), server: srv,
		endpoints: admin.NewEndpoints(telemetry.Scope(log, "admin")),
	}
	listeners := func() []config.Listener { return srv.Running().Listeners }
	access := admin.Access{Anywhere: o.from == fromAny, Users: o.showUsers}
	d.inspector = admin.NewInspector(srv.Sessions(), srv.Meter(), listeners, access)
	d.follower = follower.New(follower.Options{
		Source: source, Server: srv, Last: follower.LastGood{Dir: o.stateDir, ID: o.id}, Standby: o.standby,
		Lookup: o.lookup, Applied: d.applied, Pod: o.pod, Log: telemetry.Scope(log, "config"),
	})
	collector := &admin.Collector{Meter: srv.Meter(), Sessions: srv.Sessions(), Capacity: most, Offload: srv.Offload, Config: d.config}
	d.registry = telemetry.NewRegistry(collector)
	return d, nil
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
func (d *daemon) serve(ctx context.Context) error {
	following, stop := context.WithCancel(context.Background())
	group := new(errgroup.Group)
	defer func() { _ = group.Wait() }()
	defer stop()
	group.Go(func() error {
		host.Follow(following, d.log, d.server.SetLocalAddresses)
		return nil
	})
	if d.watch {
		if err := d.endpoints.Set(d.health(d.options.probes)); err != nil {
			d.log.Warn("cannot serve probes until a config sets their URL", "error", err)
		}
		group.Go(func() error { return d.follower.Run(following) })
	} else if err := d.follower.Once(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	d.drain()
	return nil
}

// applied applies the settings of a config that concern the process: log levels, probes and metrics.
func (d *daemon) applied(c config.Config) error {
	if d.options.log == "" {
		d.levels.Set(c.Admin.LogLevel)
	}
	return d.endpoints.Set(d.health(*c.Admin.HealthcheckEndpoint),
		admin.Endpoint{Name: "metrics", URL: c.Admin.MetricsEndpoint, Port: admin.MetricsPort, Handler: d.metrics})
}

func (d *daemon) health(url string) admin.Endpoint {
	return admin.Endpoint{Name: "healthcheck", URL: url, Port: admin.HealthPort, Handler: d.probes}
}

func (d *daemon) probes(string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", telemetry.Health{Live: d.server.Live, Ready: d.ready})
	mux.Handle("/status", d.inspector.Status(d.follower.Status))
	mux.Handle("/sessions", d.inspector.Sessions())
	mux.Handle("/refusals", d.inspector.Refusals())
	return mux
}

func (d *daemon) ready() error {
	if d.options.unready && d.server.Sessions().Draining() {
		return errors.New("stunnerd not ready: it drains")
	}
	return d.follower.Ready()
}

func (d *daemon) metrics(path string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(cmp.Or(path, "/"), promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{}))
	return mux
}

// drain refuses new sessions and waits until the live sessions end, at most --drain-timeout or until a second signal.
// Without --unready-on-drain the process stays ready meanwhile, because kube-proxy drops the UDP flows of an endpoint
// that is not ready, which would end every call.
func (d *daemon) drain() {
	second, stop := secondSignal()
	defer stop()
	sessions := d.server.Sessions()
	sessions.Drain()
	d.log.Info("drain", "sessions", sessions.Len(), "timeout", d.options.drain)
	timeout := time.NewTimer(d.options.drain)
	defer timeout.Stop()
	for {
		changed := sessions.Changed()
		if sessions.Len() == 0 {
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
