// Command auth is the authentication service. It serves ICE servers with TURN credentials for the gateways of config
// discovery.
//
// # Files
//
//	options.go      flags, environment variables and their defaults
//	clusters.go     the clusters of --config or --clusters
//	reload.go       the file of clusters is read again
//	former.go       settings of the existing auth service
//	check.go        requests of a health check
//	certificate.go  the certificate of the API
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/services/api/otlp"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/demo"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
	"github.com/stunner-gateway/stunner/services/auth/internal/revoke"
	"github.com/stunner-gateway/stunner/services/auth/internal/tracing"
)

// Exit codes: 1 if the service or the command check failed, 2 if the command line is wrong.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := command(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func command(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "version" {
		fmt.Fprintln(stdout, telemetry.Version("auth"))
		return 0
	}
	if len(args) == 2 && args[0] == "check" {
		return check(ctx, args[1], stdout, stderr)
	}
	o, err := parseOptions(args, getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage())
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "auth: %v\nSee auth --help.\n", err)
		return exitUsage
	case o.version:
		fmt.Fprintln(stdout, telemetry.Version("auth"))
		return 0
	}
	log := telemetry.NewLog(stderr, o.logFormat, o.levels)
	for _, warning := range o.warnings {
		log.Warn(warning)
	}
	if err := run(ctx, o, log); err != nil {
		log.Error("service failed", "error", err)
		return exitFailure
	}
	return 0
}

// run serves until a server fails, or until the shutdown delay after SIGINT or SIGTERM has passed. Either signal ends
// the context terminated.
func run(terminated context.Context, o options, log *slog.Logger) error {
	serving, end := context.WithCancel(context.WithoutCancel(terminated))
	defer end()
	group, ctx := errgroup.WithContext(serving)
	clusters, err := o.openClusters(ctx, log)
	if err != nil {
		return err
	}
	policy, err := o.openPolicy(ctx, telemetry.Scope(log, "access"))
	if err != nil {
		return err
	}
	public, err := o.listen(telemetry.Scope(log, "rest"))
	if err != nil {
		return err
	}
	health, err := net.Listen("tcp", o.healthAddress)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on --health-address: %w", err), public.Close())
	}
	revocations, err := o.openRevocations(os.Getenv, telemetry.Scope(log, "rest"))
	if err != nil {
		return errors.Join(err, public.Close(), health.Close())
	}
	traces := openTraces(os.Getenv, log)
	registry := telemetry.NewRegistry()
	metrics := rest.NewMetrics(registry, clusters.fleet, policy)
	settings := o.rest(log)
	settings.Fleet = clusters.fleet
	settings.Policy, settings.Metrics, settings.Revocations = policy, metrics, revocations
	if traces != nil {
		settings.Tracer = traces
		defer closeTraces(traces, log)
	}
	handler := rest.New(settings)
	if o.policy == "" && policy.Open() {
		log.Warn(
			"the service gives credentials to every caller: set --policy, or --jwt-issuer, --jwt-audience and a key, or keep it inside the cluster")
	}
	log.Info("serve", "address", public.Addr().String(), "health", health.Addr().String(),
		"config", cmp.Or(o.clusters, o.config), "version", telemetry.Version("auth"))
	clusters.status = func(d *gateway.Directory) http.HandlerFunc {
		return rest.Status(settings, d, telemetry.Version("auth"))
	}
	group.Go(func() error { clusters.run(ctx); return nil })
	if revocations != nil {
		group.Go(func() error { revocations.Run(ctx); return nil })
	}
	group.Go(func() error { return telemetry.Serve(ctx, public, closeAfterAnswer(terminated, handler)) })
	group.Go(func() error {
		ready := func() error { return errors.Join(terminating(terminated), clusters.fleet.Clusters().All.Synced()) }
		return telemetry.Serve(ctx, health, telemetry.Probes(registry, ready))
	})
	group.Go(func() error {
		defer end()
		select {
		case <-ctx.Done():
			return nil
		case <-terminated.Done():
		}
		log.Info("terminating, serve until the shutdown delay is over", "delay", o.shutdownDelay)
		select {
		case <-ctx.Done():
		case <-time.After(o.shutdownDelay):
		}
		return nil
	})
	return group.Wait()
}

// listen listens on the address of the API, with TLS if the flags name a certificate.
func (o options) listen(log *slog.Logger) (net.Listener, error) {
	var secure *tls.Config
	if o.tlsCert != "" {
		c, err := openCertificate(o.tlsCert, o.tlsKey, log)
		if err != nil {
			return nil, err
		}
		secure = c.config()
	}
	public, err := net.Listen("tcp", o.publicEndpoint())
	switch {
	case err != nil:
		return nil, fmt.Errorf("listen on --address and --port: %w", err)
	case secure != nil:
		return tls.NewListener(public, secure), nil
	}
	return public, nil
}

// openPolicy returns the policy of the file or of the flags.
func (o options) openPolicy(ctx context.Context, log *slog.Logger) (*access.Policy, error) {
	if o.policy != "" {
		return access.OpenPolicy(ctx, o.policy, log)
	}
	return access.NewPolicy(ctx, o.access, log)
}

// tracesTimeout is how long the end of the process waits until the collector has the last spans.
const tracesTimeout = 5 * time.Second

// openTraces returns the traces that the variables of OpenTelemetry request, or nil. An invalid variable does not end
// the service, because it does not need traces.
func openTraces(getenv func(string) string, log *slog.Logger) *tracing.Traces {
	host, err := os.Hostname()
	if err != nil {
		log.Warn("traces have no name of the host", "error", err)
	}
	from := otlp.Process{Service: "auth", Version: telemetry.Version("auth"), Instance: host}
	traces, err := tracing.Open(getenv, from, telemetry.Scope(log, "traces"))
	if err != nil {
		log.Error("serve without traces", "error", err)
	}
	return traces
}

func closeTraces(traces *tracing.Traces, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), tracesTimeout)
	defer cancel()
	if err := traces.Close(ctx); err != nil {
		log.Warn("traces are not complete", "error", err)
	}
}

// openRevocations returns the store of --revocations, or nil without the flag.
func (o options) openRevocations(getenv func(string) string, log *slog.Logger) (*revoke.Registry, error) {
	origin := o.revocations
	if origin == "" {
		return nil, nil
	}
	if origin == "kubernetes" {
		host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("open --revocations kubernetes: the process is not in a pod: use a folder, or https://HOST:PORT")
		}
		origin = "https://" + net.JoinHostPort(host, port)
	}
	var store revoke.Store
	var err error
	if strings.Contains(origin, "://") {
		store, err = revoke.OpenCluster(origin, o.revocationsToken, o.revocationsCA)
	} else {
		store, err = revoke.OpenFolder(origin)
	}
	if err != nil {
		return nil, fmt.Errorf("open --revocations: %w", err)
	}
	return revoke.NewRegistry(store, time.Now, log), nil
}

// terminating returns an error after SIGINT or SIGTERM. It makes the readiness probe fail, so that load balancers stop
// sending requests while the service still answers them.
func terminating(terminated context.Context) error {
	if terminated.Err() != nil {
		return errors.New("the service ends")
	}
	return nil
}

// closeAfterAnswer wraps the handler of the API. After SIGINT or SIGTERM it closes each connection after its next
// answer, so that clients reconnect to another replica and no request is lost.
func closeAfterAnswer(terminated context.Context, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if terminated.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

func (o options) rest(log *slog.Logger) rest.Options {
	out := rest.Options{
		Gateways:   o.gateways,
		DefaultTTL: o.defaultTTL,
		MaxTTL:     o.maxTTL,
		PublicAddr: o.publicAddr,
		MaxURLs:    int(o.maxURLs),
		Origins:    o.origins,
		Rates:      o.rates,
		CapToToken: o.capToToken,
		Log:        telemetry.Scope(log, "rest"),
		Audit:      telemetry.Scope(log, "audit"),
		Now:        time.Now,
	}
	if o.demo {
		out.Demo = demo.Page()
	}
	if o.demoEcho != nil {
		out.Echo = demo.NewEcho(o.demoEcho, telemetry.Scope(log, "demo"))
	}
	return out
}
