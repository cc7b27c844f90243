// Package kube runs the operator in a cluster. It watches objects, publishes configs over config discovery, and writes
// the generated objects and statuses.
//
//	watches ─▶ inbox ─▶ loop ─▶ discovery.Server          every replica
//	                     └────▶ writer ─▶ API server      the leader
//
// The loop is one goroutine that owns the view of the cluster. It never waits for the API server: the content of a
// Secret arrives through the inbox like any other change, and the writer applies the desired state in goroutines of its
// own, with retries.
//
// A file uses only files of the same layer or a lower layer. The layers, from the bottom: settings, kinds, inbox and
// task; files for one part each (apply, trim, rollout, secrets, …); objects, takeover and status; writer; loop;
// provider.
//
// # Files
//
//	settings.go                     settings
//	loop.go                         the view, and translation of changed objects
//	workqueue.go                    order of translations
//	ratelimit.go                    rate limit of the translations of one Gateway
//	kinds.go watch.go inbox.go      kinds, watches, and changes of objects
//	cache.go trim.go                caches, and the fields that are removed from objects
//	intake.go size.go               the share of the memory that the objects of a namespace have
//	secrets.go                      content of Secrets
//	publish.go                      configs, also of listeners that the existing system exposed
//	standby.go restore.go           standby Secrets, and the configs that are restored from them
//	desired.go writer.go            desired state
//	writequeue.go pending.go        order of writes
//	objects.go apply.go             apply and delete
//	rejection.go                    objects that the API server rejected
//	status.go events.go             statuses; events
//	takeover.go                     objects of the operator of the existing system (e2e/kube/takeover_test.go)
//	authorizer.go                   authentication of config discovery: the decision
//	keys.go pods.go tokenreview.go  keys of the API server, pods and TokenReviews for it
//	authority.go                    the Secret of the CA of config discovery
//	credentials.go                  the generated shared secret
//	inspection.go accessreview.go   inspection API: callers, SubjectAccessReviews, problems of objects
//	rollout.go                      reports of dataplanes as rollout status and load of a Gateway
//	endpoints.go                    the pods of a Gateway
//	cost.go                         the cost of deleting a pod
//	peers.go                        the other replicas of the operator
//	forwarding.go                   lists of pods that forward to each other
//	keda.go replicas.go             detection of KEDA; ownership of spec.replicas
//	budgetledger.go                 endpoint budgets over all Gateways
//	nodes.go                        addresses of nodes
//	leader.go                       leader election
//	installations.go                other installations with the same controller name
//	task.go                         liveness of tasks
//	meters.go                       metrics
package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// Provider is an operator in a cluster.
type Provider struct {
	Settings

	tasks tasks
	lease lease
	// selfManaged are the objects that the operator maintains for its own use.
	selfManaged []*selfManaged
	inspected   inspected
}

// Running returns the names of the tasks that have not ended.
func (p *Provider) Running() string { return p.tasks.String() }

// memoryPerEndpoint is an estimate of the memory for one endpoint in bytes: in the config, in the encoded frame, in the
// objects to write, and as garbage.
const memoryPerEndpoint = 1 << 10

// intakeShare is the divisor of the memory limit for the part that the objects in the cluster may take.
const intakeShare = 2

// Run serves until ctx ends or a fatal error occurs.
func (p *Provider) Run(ctx context.Context) error {
	m := newMeters()
	p.inspected.pods = newPodIndex()
	server, readers, err := newDiscoveryServer(p.Settings, p.inspected.pods, m)
	if err != nil {
		return err
	}
	configs, err := telemetry.Listen("--discovery-address", p.DiscoveryAddress)
	if err != nil {
		return err
	}
	probes, err := telemetry.Listen("--health-address", p.HealthAddress)
	if err != nil {
		return errors.Join(err, configs.Close())
	}
	var keda net.Listener
	if p.ScalerAddress != "" {
		if keda, err = telemetry.Listen("--scaler-address", p.ScalerAddress); err != nil {
			return errors.Join(err, configs.Close(), probes.Close())
		}
	}
	m.registerCount(telemetry.OperatorDiscoveryStreams, server.Streams)
	id := newIdentity(p.Settings)
	group, ctx := errgroup.WithContext(ctx)
	p.Options.Partial = len(p.Namespaces) > 0
	l := newLoop(p.Options, server, m, &p.tasks, p.Log)
	l.ledger = newBudgetLedger(int(p.Memory / memoryPerEndpoint))
	l.intake = newIntake(int(p.Memory/intakeShare), p.Log)
	m.registerCount(telemetry.OperatorUnread, l.intake.unreadObjects)
	p.Log.Info("operator serves", "discovery", configs.Addr().String(), "health", probes.Addr().String(),
		"identity", p.Identity)
	health := http.NewServeMux()
	health.Handle("/", telemetry.Probes(m.registry, l.readyz))
	health.Handle("/live", telemetry.Health{Live: l.livez})
	p.tasks.join(group, "probes", func() error { return telemetry.Serve(ctx, probes, health) })
	var refused *refusedDataplanes
	if p.DiscoveryAuth == AuthStrict {
		refused = &refusedDataplanes{pods: p.inspected.pods, refused: l.rollouts.refused}
	}
	handler := refused.watch(newInspection(p, server, readers, id, &p.inspected, m).Or(server))
	p.tasks.join(group, "config discovery", func() error {
		return telemetry.ServeUpTo(ctx, discoveryListener(p.Settings, configs, id, refused.connected), handler, discoveryConnections)
	})
	if keda != nil {
		p.Log.Info("external scaler for KEDA serves", "scaler", keda.Addr().String())
		p.tasks.join(group, "external scaler",
			func() error { return serveScaler(ctx, p.Settings, keda, id, m, l.allocations) })
	}
	group.Go(func() error { return p.work(ctx, l, id, readers) })
	return group.Wait()
}

// work runs the watches, the translation loop and the writer until ctx ends.
func (p *Provider) work(ctx context.Context, l *loop, id *trust.Identity, readers *authorizer) error {
	s, err := newScheme()
	if err != nil {
		return fmt.Errorf("register kinds: %w", err)
	}
	c, err := waitForCache(ctx, p.Log, &l.notReadyReason, func() (cache.Cache, error) { return newCache(p.Settings, s, l.intake) })
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	k, err := p.newClients(s, c)
	if err != nil {
		return fmt.Errorf("reach API server: %w", err)
	}
	l.secrets = newSecretFetcher(k.direct, l.inbox, l.intake, p.Log)
	l.writer = newWriter(k.cached, k.direct, s, l.inbox, l.meters, &p.tasks, p.Log)
	p.inspected.writer.Store(l.writer)
	l.meters.registerCount(telemetry.OperatorProblems, l.writer.countProblems)
	if l.writer.statuses.events, err = newEventRecorder(ctx, p.Config, s, p.Options.ControllerName); err != nil {
		return err
	}
	l.costs = &deletionCosts{reports: l.rollouts.reports, client: k.direct, log: p.Log}
	l.writer.objects.installation = p.Namespace
	l.others = newInstallations(p.Settings, k.cached, k.direct, l)
	l.published.previous = func(gateway types.NamespacedName) []string {
		return previousListeners(ctx, k.cached, l.view.Gateway(gateway))
	}
	l.published.nodePorts = func(gw *gwapiv1.Gateway) *resource.NodePorts { return previousNodePorts(ctx, k.cached, gw) }
	l.published.standby = func(gateway types.NamespacedName) *corev1.Secret {
		return cachedStandby(ctx, k.cached, gateway)
	}
	group, ctx := errgroup.WithContext(ctx)
	own := selfManagedOptions{
		config: p.Config, cache: k.options, owner: ownerReferences(ctx, p.Settings), tasks: &p.tasks,
	}
	if readers != nil {
		readers.gateways.Store(new(client.Reader(c)))
		l.rollouts.forwarding = newForwarding(l.rollouts.reports, readers.pods, l.published.server, p.Log)
	}
	ca, err := p.manageOwnObjects(ctx, group, l, id, own)
	if err != nil {
		return err
	}
	reconsider := l.published.server.Reconsider
	pods, err := waitForCache(ctx, p.Log, &l.notReadyReason, func() (cache.Cache, error) {
		return newPodCache(p.Settings, k.options)
	})
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	if err := p.inspected.pods.start(ctx, group, &p.tasks, pods, reconsider); err != nil {
		return err
	}
	l.peers = newPeerReplicas(ctx, p.Settings, l.rollouts.reports, id.Client(),
		func(urls []string) { p.inspected.peers.Store(&urls) })
	go l.rollouts.reports.Follow(ctx, p.Identity, l.published.server)
	p.tasks.run(group, "reports of dataplanes", func(t *task) { l.rollouts.run(ctx, t) })
	p.tasks.run(group, "unread objects", func(t *task) { l.intake.run(ctx, t, k.direct, l.inbox, l.secrets.queue.Add) })
	p.tasks.run(group, "names of nodes", func(t *task) { l.nodes.run(ctx, t) })
	w := watcher{cache: c, scheme: s, mapper: k.options.Mapper, notReadyReason: &l.notReadyReason, log: p.Log}
	kedas, err := newKEDAWatcher(
		p.Settings, k.options, l.inbox, l.intake, ownedHandler{l.writer}, l.writer.setKEDA)
	if err != nil {
		return err
	}
	p.tasks.join(group, "watches", func() error { return c.Start(ctx) })
	p.tasks.join(group, "start of watches", func() error {
		translated, generated := l.intake.releasing(l.inbox), l.intake.releasing(ownedHandler{l.writer})
		if err := w.watchAll(ctx, translated, generated); err != nil {
			return ignoreEnd(ctx, err)
		}
		if _, err := addHandler(ctx, c, &gwapiv1.GatewayClass{}, l.others); err != nil {
			return ignoreEnd(ctx, fmt.Errorf("watch GatewayClasses: %w", err))
		}
		if err := kedas.await(ctx); err != nil {
			return ignoreEnd(ctx, err)
		}
		p.tasks.run(group, "watch for KEDA", func(t *task) { kedas.run(ctx, t) })
		p.tasks.join(group, "leader election", func() error {
			return p.lease.elect(ctx, p.Settings, own.owner, func(ctx context.Context) { p.lead(ctx, l) })
		})
		if err := ca.await(ctx, &l.notReadyReason); err != nil {
			return ignoreEnd(ctx, err)
		}
		p.tasks.run(group, "translation", func(t *task) { l.run(ctx, t) })
		return nil
	})
	for range fetchers {
		p.tasks.run(group, "fetching of Secrets", func(t *task) { l.secrets.run(ctx, t) })
	}
	return group.Wait()
}

// apiClients are the clients of the API server, and the options for further caches. All clients use one HTTP client,
// which rejects writes while this process does not hold the lease.
type apiClients struct {
	// direct reads from the API server, cached from the cache.
	direct, cached client.Client
	options        cache.Options
}

func (p *Provider) newClients(s *runtime.Scheme, c cache.Cache) (k apiClients, err error) {
	hc, err := rest.HTTPClientFor(p.Config)
	if err != nil {
		return k, err
	}
	hc.Transport = leaseGuard{hc.Transport, &p.lease}
	mapper, err := apiutil.NewDynamicRESTMapper(p.Config, hc)
	if err != nil {
		return k, err
	}
	k.options = cache.Options{Scheme: s, Mapper: mapper, HTTPClient: hc}
	o := client.Options{HTTPClient: hc, Scheme: s, Mapper: mapper}
	if k.direct, err = client.New(p.Config, o); err != nil {
		return k, err
	}
	o.Cache = &client.CacheOptions{Reader: c}
	k.cached, err = client.New(p.Config, o)
	return k, err
}

// manageOwnObjects starts the maintenance of the objects that the operator itself needs, if they are configured: the CA
// of config discovery and the generated credentials. With AuthOff, the returned authority is nil.
func (p *Provider) manageOwnObjects(
	ctx context.Context, group *errgroup.Group, l *loop, id *trust.Identity, o selfManagedOptions,
) (ca *authority, err error) {
	if p.DiscoveryAuth == AuthOff {
		l.writer.setStandbyKeys([][]byte{nil})
	} else {
		ca = newAuthority(p.Namespace, nil, id, l.inbox, l.meters, p.Log)
		ca.changed = func(a trust.Authority) { l.setAuthority(a, time.Now()) }
		p.selfManaged = append(p.selfManaged, &ca.selfManaged)
		if err := ca.manage(ctx, group, o); err != nil {
			return nil, err
		}
	}
	if p.Credentials != "" {
		c := newCredentials(types.NamespacedName{Namespace: p.Namespace, Name: p.Credentials}, nil, l.meters, p.Log)
		p.selfManaged = append(p.selfManaged, &c.selfManaged)
		if err := c.manage(ctx, group, o); err != nil {
			return nil, err
		}
	}
	return ca, nil
}

// lead runs the tasks of the leader until ctx ends.
func (p *Provider) lead(ctx context.Context, l *loop) {
	for _, s := range p.selfManaged {
		s.leading.Store(true)
		defer s.leading.Store(false)
		notify(s.wake)
	}
	l.lead(ctx)
}
