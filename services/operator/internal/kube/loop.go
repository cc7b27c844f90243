package kube

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// loop turns changes into configs and into work for the writer. Everything in it belongs to one goroutine.
//
// What a change costs is what it concerns: the view takes the change and says which facts are different, the readers know which units were
// told those, and only they are translated.
type loop struct {
	options  translate.Options
	server   *discovery.Server
	writer   *writer
	secrets  *secretFetcher
	rollouts *rollouts
	peers    *peerReplicas
	costs    *deletionCosts
	nodes    *nodeAddresses
	inbox    *inbox
	meters   *meters
	log      *slog.Logger
	// shown names the listeners in the config that the cluster shows of a Gateway: an operator before this one has published it.
	shown func(gateway types.NamespacedName) []string

	view *resource.View
	// agenda is what is to be translated, first what was there at the start and has not been translated yet; nil before the start.
	queue     *workQueue
	first     map[translate.ObjectRef]struct{}
	ledger    *budgetLedger
	readers   resource.Readers[translate.ObjectRef]
	published map[types.NamespacedName]config.Config
	// missing are Gateways that somebody has served, and of which nothing is published.
	missing map[types.NamespacedName]struct{}
	// waiting are the units that were told of a Secret that is still being fetched.
	waiting map[types.NamespacedName]map[translate.ObjectRef]struct{}
	// tried are the Secrets that have been asked for at least once.
	tried map[types.NamespacedName]bool

	limiter rateLimiter
	// since is time.Since but in tests.
	since func(u translate.ObjectRef, begun time.Time) time.Duration

	tasks *tasks
	// ready is when everything that was there at the start is published; lack is what keeps it from being read, if something does.
	ready          atomic.Bool
	notReadyReason atomic.Pointer[string]
	// known is closed when ready is set for the first time.
	known chan struct{}
}

// newLoop returns a loop that knows nothing. It needs secrets and writer before it runs.
func newLoop(o translate.Options, server *discovery.Server, m *meters, ts *tasks, log *slog.Logger) *loop {
	in := newInbox()
	return &loop{
		options: o, server: server, inbox: in, rollouts: newRollouts(reports.New(log), in), nodes: newNodeAddresses(server.SetNode, log), meters: m, tasks: ts, log: log,
		view: resource.NewView(nil), queue: newWorkQueue(), ledger: newBudgetLedger(0), published: map[types.NamespacedName]config.Config{}, missing: map[types.NamespacedName]struct{}{},
		waiting: map[types.NamespacedName]map[translate.ObjectRef]struct{}{}, tried: map[types.NamespacedName]bool{}, known: make(chan struct{}),
		limiter: newRateLimiter(), since: func(_ translate.ObjectRef, begun time.Time) time.Duration { return time.Since(begun) },
	}
}

func (l *loop) run(ctx context.Context, t *task) {
	notify(l.inbox.wake)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.inbox.wake:
		case <-l.limiter.timer(time.Now()):
		}
		for busy := true; busy && ctx.Err() == nil; {
			l.receive(l.inbox.drain(), t)
			busy = l.work(t)
			if !l.ready.Load() && len(l.first) == 0 && l.triedAll() {
				l.ready.Store(true)
				close(l.known)
			}
		}
		t.end()
	}
}

// triedAll tells whether everything that was there at the start has been published, but for what cannot be read.
func (l *loop) triedAll() bool {
	for key := range l.waiting {
		if !l.tried[key] {
			return false
		}
	}
	return len(l.limiter.delayed) == 0
}

// take takes changes in and translates whom they concern.
func (l *loop) take(changes []objectChange, t *task) {
	l.receive(changes, t)
	for l.work(t) {
	}
}

// hear takes changes in and lists whom they concern.
func (l *loop) receive(changes []objectChange, t *task) {
	t.begin()
	concerned := map[translate.ObjectRef]struct{}{}
	for _, c := range changes {
		l.readers.Of(l.observe(c, concerned), concerned)
	}
	l.limiter.addDue(concerned, time.Now())
	l.queue.add(concerned)
	if l.first == nil {
		l.first = concerned
	}
}

// work translates the unit whose turn it is, unless it rests; false if there is none.
func (l *loop) work(t *task) bool {
	u, ok := l.queue.next(len(l.first) > 0)
	if !ok {
		return false
	}
	t.begin()
	begun := time.Now()
	switch {
	case u.Object(l.view) == nil:
		l.translate(u)
		l.limiter.forget(u)
	case l.limiter.allows(u, begun) && l.translate(u):
		l.limiter.record(u, l.since(u, begun), time.Now())
	}
	delete(l.first, u)
	return true
}

// note puts a change into the view and returns the facts that it changes. A unit that is new has been told nothing yet: it concerns itself.
func (l *loop) observe(c objectChange, concerned map[translate.ObjectRef]struct{}) resource.Facts {
	if m, ok := c.object.(*metav1.PartialObjectMetadata); ok {
		return l.observeSecretVersion(resource.KeyOf(m), m.ResourceVersion, c.deleted)
	}
	if u, ok := translate.RefOf(c.object); ok && !c.deleted {
		if !l.readers.Knows(u) {
			concerned[u] = struct{}{}
		}
		return l.putObject(u, c.object)
	}
	if s, ok := c.object.(*corev1.Secret); ok {
		key := resource.KeyOf(s)
		l.tried[key] = true
		if c.failed || c.deleted && l.secrets.retryNotFound(key) {
			return nil
		}
		maps.Copy(concerned, l.waiting[key])
		delete(l.waiting, key)
		if !l.secrets.accept(s, c.deleted) {
			return nil
		}
	}
	if n, ok := c.object.(*corev1.Node); ok {
		l.nodes.note(n, c.deleted)
	}
	changed := l.put(c)
	switch o := c.object.(type) {
	case *discoveryv1.EndpointSlice:
		if l.peers.are(o) {
			l.peers.look(l.view.EndpointSlicesOf(l.peers.service))
		}
		l.updateEndpointsBehind(o)
	case *corev1.Service:
		if gateway, ok := resource.GatewayOf(o); ok {
			l.updateEndpoints(gateway)
		}
	}
	return changed
}

func (l *loop) put(c objectChange) resource.Facts {
	if c.deleted {
		return l.view.Delete(c.object)
	}
	return l.view.Put(c.object)
}

// putObject takes the new form of a unit. When it differs in nothing that counts, what was wanted of the form before is wanted of this one.
func (l *loop) putObject(u translate.ObjectRef, o resource.Object) resource.Facts {
	before := u.Object(l.view)
	changed := l.view.Put(o)
	if before != nil && len(changed) == 0 {
		l.writer.sameAs(u, before.GetResourceVersion(), o.GetResourceVersion())
	}
	return changed
}

// noteSecret hears that a Secret is there, is different, or is gone. Whoever has been told that there is none asks again when one appears.
func (l *loop) observeSecretVersion(key types.NamespacedName, version string, gone bool) resource.Facts {
	switch {
	case gone:
		l.secrets.forget(key)
		return l.view.Delete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
	case l.secrets.observe(key, version):
		return resource.SecretFacts(key)
	}
	return nil
}

// translate translates one unit and passes on what came of it. While a Secret that it was told of is being fetched nothing is passed on: it
// would look as if the Secret did not exist. It reports whether the result is passed on.
func (l *loop) translate(u translate.ObjectRef) (complete bool) {
	told := resource.Facts{}
	opt := l.options
	opt.Now = metav1.Now()
	if gw := l.view.Gateway(u.NamespacedName); gw != nil && u.Kind == translate.KindGateway {
		opt.Published, opt.Room = l.current(u.NamespacedName), l.ledger.roomFor(u.NamespacedName, gw.CreationTimestamp.Time)
	}
	began := time.Now()
	out := u.Translate(l.view.Telling(told), opt)
	defer func() { l.meters.duration.Observe(time.Since(began).Seconds()) }()
	l.meters.translations.Inc()
	l.readers.Told(u, told)
	if u.Kind == translate.KindGateway {
		l.share(u.NamespacedName, out.Gateway, opt.Room)
	}
	complete = true
	for _, key := range told.Secrets() {
		if l.secrets.ensure(key) {
			continue
		}
		complete = false
		if l.waiting[key] == nil {
			l.waiting[key] = map[translate.ObjectRef]struct{}{}
		}
		l.waiting[key][u] = struct{}{}
	}
	if u.Kind == translate.KindGateway {
		defer l.updateMissing(u.NamespacedName, out.Ours)
	}
	if !complete {
		return false
	}
	givenAway := u.Kind == translate.KindGateway && l.serve(u.NamespacedName, out.Gateway)
	want := l.desiredOf(u, out, givenAway)
	if o := u.Object(l.view); o != nil {
		want.uid, want.version = o.GetUID(), o.GetResourceVersion()
	} else {
		l.readers.Forget(u)
	}
	l.writer.set(u, want)
	return true
}

// share notes what a Gateway has of what all share, and lists whom that concerns: routes that wait or wait no longer, and Gateways that have to give
// something back or can have more.
func (l *loop) share(key types.NamespacedName, r *translate.Result, room translate.Room) {
	concerned := map[translate.ObjectRef]struct{}{}
	hold, gateways := r.OverBudget, []types.NamespacedName(nil)
	if gw := l.view.Gateway(key); gw == nil || hold == nil {
		gateways = l.ledger.forget(key)
		hold = &resource.OverBudget{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	} else {
		gateways = l.ledger.record(key, ledgerEntry{created: gw.CreationTimestamp.Time, demand: r.Demand, room: room})
	}
	l.readers.Of(l.view.Put(hold), concerned)
	for _, other := range gateways {
		concerned[translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: other}] = struct{}{}
	}
	l.queue.add(concerned)
}

// desiredOf is what the writer has to do for a unit. A Gateway that was ours and was given to another controller needs our objects no longer; one
// that never was ours is not looked at.
func (l *loop) desiredOf(u translate.ObjectRef, out translate.Outcome, givenAway bool) desired {
	want := desired{ours: out.Ours, status: out.Status, complete: givenAway}
	if out.Gateway != nil {
		want.notes = out.Gateway.Notes
	}
	switch r := out.Gateway; {
	case r == nil || !out.Ours:
	case !r.Hold && l.current(u.NamespacedName) != nil:
		want.objects, want.complete = r.ObjectsWith(l.current(u.NamespacedName)), true
		want.keepReplicas = r.KeepReplicas
		if r.Managed() {
			want.standby = l.current(u.NamespacedName)
		}
	default:
		want.skeleton = r.Skeleton
	}
	return want
}

// serve publishes the config of a Gateway. A Gateway that is gone, or that was given to another controller, is served no longer; while
// something is wrong everything stays. It reports whether a Gateway that was served was given away.
func (l *loop) serve(key types.NamespacedName, r *translate.Result) (givenAway bool) {
	gw := l.view.Gateway(key)
	switch {
	case !r.Ours && (gw == nil || l.view.Class(string(gw.Spec.GatewayClassName)) != nil):
		return l.withdraw(key) && gw != nil
	case r.Ours && !r.Hold:
		l.publish(key, r)
	}
	return false
}

// miss notes whether there is nothing to serve a Gateway with that was served before this operator began: its dataplanes and the auth service get no config.
func (l *loop) updateMissing(key types.NamespacedName, ours bool) {
	if ours && l.current(key) == nil && l.shown != nil && len(l.shown(key)) > 0 {
		l.missing[key] = struct{}{}
	} else {
		delete(l.missing, key)
	}
	l.meters.missing.Set(float64(len(l.missing)))
}

func (l *loop) withdraw(key types.NamespacedName) bool {
	if l.current(key) == nil {
		return false
	}
	delete(l.published, key)
	l.rollouts.withdrawn(key)
	l.server.Delete(key.String())
	l.meters.configs.Set(float64(len(l.published)))
	l.log.Info("withdraw config", "gateway", key)
	return true
}

// publish publishes a config unless that would take a listener away by mistake: one that cannot be served now, and that was served by
// dataplanes when this process began. They hold the config that they have.
func (l *loop) publish(key types.NamespacedName, r *translate.Result) {
	next := r.Config
	if l.current(key) == nil {
		for _, listener := range r.HeldListeners {
			if slices.Contains(l.shown(key), listener) {
				l.log.Warn("publish no config: a listener that was served cannot be now", "gateway", key, "listener", listener)
				return
			}
		}
	}
	revision, changed := l.server.Publish(*next)
	if !changed {
		return
	}
	l.published[key] = next.Clone()
	l.rollouts.published(key, revision)
	l.rollouts.look(key, time.Now()) // a dataplane may have spoken by now, and one that stays with what it has says nothing
	l.meters.configs.Set(float64(len(l.published)))
	l.log.Info("publish config", "gateway", key, "revision", revision)
}

// current is the config that a Gateway is served with.
func (l *loop) current(key types.NamespacedName) *config.Config {
	if c, ok := l.published[key]; ok {
		return &c
	}
	return nil
}
