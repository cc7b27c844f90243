// Package kube runs the translation in a cluster: watches in, configs over discovery and objects and statuses out.
//
//	watches ─▶ inbox ─▶ loop ─▶ discovery.Server          every replica
//	                     └────▶ writer ─▶ API server      the leader
//
// The loop is one goroutine that owns all that is known. It never waits for the API server: what it needs from there, the contents of a
// Secret, comes in as one more change; what it wants written is a desired that the writer compares with the cluster until they agree.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// Provider is an operator in a cluster.
type Provider struct {
	// Config is how the API server is reached.
	Config *rest.Config
	// Namespace holds the lease, Identity tells replicas apart.
	Namespace, Identity string
	// DiscoveryAddress and HealthAddress are HOST:PORT to listen on.
	DiscoveryAddress, HealthAddress string
	// ScalerAddress is HOST:PORT to listen on for KEDA; "" answers none.
	ScalerAddress string
	// DiscoveryAuth is AuthStrict, AuthPermissive or AuthOff; DiscoveryReaders are the accounts, NAMESPACE/NAME, that read
	// what an auth service needs of all configs, or whole configs when WholeConfigs follows.
	DiscoveryAuth    string
	DiscoveryReaders []string
	// Address is that of this replica's pod, and TokenFile holds a token by which others let it read all configs: replicas tell each other what
	// dataplanes report.
	Address, TokenFile string
	// Namespaces are those to watch; none means all of them. What is in others does not exist for the operator then.
	Namespaces []string
	// Memory is how many bytes the process may have; 0 means that nobody says. What does not fit waits.
	Memory int64
	// Credentials names the Secret that is made, with a shared secret drawn by lot, where there is none; empty means that nobody wants it.
	Credentials string
	Options     translate.Options
	Log         *slog.Logger

	tasks       tasks
	lease       lease
	selfManaged []*selfManaged
}

// Running names what keeps Run from returning.
func (p *Provider) Running() string { return p.tasks.String() }

// Run serves until ctx ends, or something fails that cannot be tried again.
func (p *Provider) Run(ctx context.Context) error {
	m := newMeters()
	server, readers, err := p.newServer(m)
	if err != nil {
		return err
	}
	configs, err := listen("--discovery-address", p.DiscoveryAddress)
	if err != nil {
		return err
	}
	probes, err := listen("--health-address", p.HealthAddress)
	if err != nil {
		return errors.Join(err, configs.Close())
	}
	keda, err := listenIfWanted("--scaler-address", p.ScalerAddress)
	if err != nil {
		return errors.Join(err, configs.Close(), probes.Close())
	}
	m.serves(server)
	id := p.identity()
	group, ctx := errgroup.WithContext(ctx)
	p.Options.Partial = len(p.Namespaces) > 0
	l := newLoop(p.Options, server, m, &p.tasks, p.Log)
	l.ledger = newBudgetLedger(int(p.Memory / memoryOfEndpoint))
	p.Log.Info("operator serves", "discovery", configs.Addr().String(), "health", probes.Addr().String(), "identity", p.Identity)
	health := http.NewServeMux()
	health.Handle("/", telemetry.Probes(m.registry, l.readyz))
	health.Handle("/live", telemetry.Health{Live: l.livez})
	p.tasks.join(group, "probes", func() error { return telemetry.Serve(ctx, probes, health) })
	p.tasks.join(group, "config discovery", func() error { return telemetry.ServeUpTo(ctx, p.door(configs, id), l.server, discoveryConnections) })
	if keda != nil {
		p.Log.Info("operator serves KEDA", "scaler", keda.Addr().String())
		p.tasks.join(group, "external scaler", func() error { return p.serveScaler(ctx, keda, l, id) })
	}
	group.Go(func() error { return p.work(ctx, l, id, readers) })
	return group.Wait()
}

// memoryOfEndpoint is how many bytes of memory an endpoint may take in all forms in which the operator has it: in the config, in the frame that is sent, in
// what is being written, and as garbage. The rest is for what does not grow with endpoints.
const memoryOfEndpoint = 1 << 10

// work watches, translates and writes.
func (p *Provider) work(ctx context.Context, l *loop, id *trust.Identity, readers *authorizer) error {
	s, err := newScheme()
	if err != nil {
		return fmt.Errorf("register kinds: %w", err)
	}
	c, err := p.cache(ctx, s, &l.notReadyReason)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	hc, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	hc.Transport = leaseGuard{hc.Transport, &p.lease}
	mapper, err := apiutil.NewDynamicRESTMapper(p.Config, hc)
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	direct, err := client.New(p.Config, client.Options{HTTPClient: hc, Scheme: s, Mapper: mapper})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	cached, err := client.New(p.Config, client.Options{HTTPClient: hc, Scheme: s, Mapper: mapper, Cache: &client.CacheOptions{Reader: c}})
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	l.secrets = newSecretFetcher(direct, l.inbox, p.Log)
	l.writer = newWriter(cached, direct, s, l.inbox, l.meters, &p.tasks, p.Log)
	l.meters.knows(l.writer)
	if l.writer.events, err = newEventRecorder(ctx, p.Config, s, p.Options.ControllerName); err != nil {
		return err
	}
	l.costs = &deletionCosts{reports: l.rollouts.reports, client: direct, log: p.Log}
	l.shown = func(gateway types.NamespacedName) []string { return shown(ctx, cached, gateway) }
	group, ctx := errgroup.WithContext(ctx)
	o := own{cache: cache.Options{Scheme: s, Mapper: mapper, HTTPClient: hc}, owner: p.owner(ctx), meters: l.meters}
	ca, err := p.keepAuthority(ctx, group, l, id, o)
	if err != nil {
		return err
	}
	if err := p.keepCredentials(ctx, group, o); err != nil {
		return err
	}
	if err := p.followPods(ctx, group, readers, l, o.cache); err != nil {
		return err
	}
	l.peers = p.newPeerReplicas(ctx, l.rollouts.reports, id.Client())
	go l.rollouts.reports.Follow(ctx, p.Identity, l.server)
	group.Go(func() error {
		p.tasks.do("reports of dataplanes", func(t *task) { l.rollouts.run(ctx, t) })
		return nil
	})
	group.Go(func() error { p.tasks.do("names of nodes", func(t *task) { l.nodes.run(ctx, t) }); return nil })
	w := watcher{cache: c, scheme: s, mapper: mapper, inbox: l.inbox, notReadyReason: &l.notReadyReason, log: p.Log}
	scalers, err := p.newKEDAWatcher(l, cache.Options{Scheme: s, Mapper: mapper, HTTPClient: hc})
	if err != nil {
		return err
	}
	p.tasks.join(group, "watches", func() error { return c.Start(ctx) })
	p.tasks.join(group, "start of watches", func() error {
		if err := w.watch(ctx, l.writer); err != nil {
			return ignoreEnd(ctx, err)
		}
		if err := scalers.await(ctx); err != nil {
			return ignoreEnd(ctx, err)
		}
		group.Go(func() error { p.tasks.do("watch for KEDA", func(t *task) { scalers.run(ctx, t) }); return nil })
		p.tasks.join(group, "election of a leader", func() error {
			return p.elect(ctx, o.owner, func(ctx context.Context) { p.lead(ctx, l.lead) })
		})
		if err := ca.await(ctx, &l.notReadyReason); err != nil {
			return ignoreEnd(ctx, err)
		}
		group.Go(func() error { p.tasks.do("translation", func(t *task) { l.run(ctx, t) }); return nil })
		return nil
	})
	for range fetchers {
		group.Go(func() error { p.tasks.do("fetching of Secrets", func(t *task) { l.secrets.run(ctx, t) }); return nil })
	}
	return group.Wait()
}

// shown names the listeners in the ConfigMap of a Gateway; none when there is none that can be read.
func shown(ctx context.Context, cached client.Reader, gateway types.NamespacedName) (names []string) {
	m := &corev1.ConfigMap{}
	if err := cached.Get(ctx, gateway, m); err != nil {
		return nil
	}
	return listenerNames(m.Data[manifest.ConfigMapKey])
}

// lead writes while this process is the leader. It begins when all that was there at the start has been translated: what is written first is chosen among
// all of it.
func (l *loop) lead(ctx context.Context) {
	select {
	case <-l.known:
	case <-ctx.Done():
		return
	}
	l.meters.leader.Set(1)
	defer l.meters.leader.Set(0)
	var group sync.WaitGroup
	group.Go(func() { l.tasks.do("costs of deletion", func(t *task) { l.costs.run(ctx, t) }) })
	l.writer.lead(ctx)
	group.Wait()
}

// fit tells whether the process serves all that there is to serve, and follows what changes.
func (l *loop) readyz() error {
	if !l.ready.Load() {
		if notReadyReason := l.notReadyReason.Load(); notReadyReason != nil {
			return fmt.Errorf("operator not ready: %s", *notReadyReason)
		}
		return errors.New("operator not ready: the cluster has not been read yet")
	}
	if err := l.tasks.stuck(time.Now(), taskTimeout); err != nil {
		return fmt.Errorf("operator not ready: %w", err)
	}
	return nil
}

// hopeless is after how long at one thing a task will not come back: what is left is to start the process again.
const livenessTimeout = time.Minute

// alive tells whether there is hope without a restart. An API server that is away is no reason for one.
func (l *loop) livez() error { return l.tasks.stuck(time.Now(), livenessTimeout) }

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: stop what uses the port or choose another address", flag, address, err)
	}
	return ln, nil
}

// listenIfWanted returns nil where the address is empty.
func listenIfWanted(flag, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	return listen(flag, address)
}
