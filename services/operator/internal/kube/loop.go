package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// loop is the goroutine that translates changed objects. It publishes the resulting configs and passes the desired
// state to the writer. Only this goroutine uses published and the fields from view to since.
//
// The work for a change is proportional to the number of affected objects. The view returns the facts that a change
// affects, see resource.Fact. readers records which objects depend on which facts. Only these objects are translated
// again.
type loop struct {
	options   translate.Options
	writer    *writer
	secrets   *secretFetcher
	rollouts  *rollouts
	published *publisher
	peers     *peerReplicas
	costs     *deletionCosts
	others    *installations
	nodes     *nodeAddresses
	inbox     *inbox
	meters    *meters
	log       *slog.Logger

	view    *resource.View
	readers resource.Readers[translate.ObjectRef]
	memo    translate.Memo
	queue   *workQueue
	limiter rateLimiter
	ledger  *budgetLedger
	intake  *intake
	// waitForRoom are the Gateways whose certificates did not fit into the memory of their namespace.
	waitForRoom map[translate.ObjectRef]struct{}
	// initial are the objects of the initial list that have not been translated yet. It is nil before the initial list
	// was read.
	initial map[translate.ObjectRef]struct{}
	// waiting are, by Secret, the objects whose translation needs this Secret while it is still being fetched.
	waiting map[types.NamespacedName]map[translate.ObjectRef]struct{}
	// tried are the Secrets for which at least one fetch has ended, successfully or not.
	tried map[types.NamespacedName]bool
	// unusable are, by Gateway, the versions of the standby Secrets from which no config can be restored.
	unusable map[types.NamespacedName]string
	// since is time.Since, and translateObject is ObjectRef.Translate. Tests replace them.
	since           func(ref translate.ObjectRef, begun time.Time) time.Duration
	translateObject func(translate.ObjectRef, *resource.View, translate.Options) translate.Outcome

	tasks *tasks
	// ready is true when the configs of the initial list of objects are published, see initialPublished.
	ready atomic.Bool
	// known is closed when ready becomes true.
	known chan struct{}
	// notReadyReason is the reason why the start of the translation waits, for example for the API server, a CRD or the
	// Secret of the CA. It is nil if the start does not wait. The readiness probe returns it.
	notReadyReason atomic.Pointer[string]
}

// newLoop returns a loop with an empty view. The caller must set secrets, writer, costs, others, peers,
// published.previous and published.standby before run.
func newLoop(o translate.Options, server *discovery.Server, m *meters, ts *tasks, log *slog.Logger) *loop {
	in := newInbox()
	server.SetComplete(false)
	r := newRollouts(reports.New(log), in)
	r.server = server
	return &loop{
		options: o, log: log, rollouts: r, published: newPublisher(server, r, m, log),
		nodes: newNodeAddresses(server.SetNode, log),
		inbox: in, meters: m, tasks: ts,
		view: resource.NewView(nil), queue: newWorkQueue(), limiter: newRateLimiter(), ledger: newBudgetLedger(0),
		intake: newIntake(0, log), waitForRoom: map[translate.ObjectRef]struct{}{},
		waiting: map[types.NamespacedName]map[translate.ObjectRef]struct{}{}, tried: map[types.NamespacedName]bool{},
		unusable:        map[types.NamespacedName]string{},
		since:           func(_ translate.ObjectRef, begun time.Time) time.Duration { return time.Since(begun) },
		translateObject: translate.ObjectRef.Translate,
		known:           make(chan struct{}),
	}
}

func (l *loop) run(ctx context.Context, t *task) {
	notify(l.inbox.wake)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.inbox.wake:
		case <-l.intake.freedForCertificates:
			l.requeue(l.waitForRoom)
		case <-l.limiter.timer(time.Now()):
		}
		for busy := true; busy && ctx.Err() == nil; {
			l.apply(l.inbox.drain(), t)
			busy = l.translateNext(t)
			if !l.ready.Load() && len(l.initial) == 0 && l.initialPublished() {
				l.ready.Store(true)
				close(l.known)
				l.published.server.SetComplete(true)
			}
		}
		t.end()
	}
}

// initialPublished reports whether the configs of all objects in the initial list are published. Objects whose Secret
// could not be fetched are ignored.
func (l *loop) initialPublished() bool {
	for key := range l.waiting {
		if !l.tried[key] {
			return false
		}
	}
	return len(l.limiter.delayed) == 0
}

// apply applies changes to the view, and queues the objects that must be translated again.
func (l *loop) apply(changes []objectChange, t *task) {
	t.begin()
	affected := map[translate.ObjectRef]struct{}{}
	for _, c := range changes {
		others, concerned := map[translate.ObjectRef]struct{}{}, map[translate.ObjectRef]struct{}{}
		changed := l.observe(c, others)
		l.readers.Of(changed, concerned)
		l.memo.Observe(changed, concerned)
		for ref := range others {
			l.memo.Forget(ref)
		}
		maps.Copy(affected, others)
		maps.Copy(affected, concerned)
	}
	l.limiter.addDue(affected, time.Now())
	l.queue.add(affected)
	if l.initial == nil {
		l.initial = affected
	}
}

// requeue queues objects that must be translated again although no fact has changed.
func (l *loop) requeue(refs map[translate.ObjectRef]struct{}) {
	for ref := range refs {
		l.memo.Forget(ref)
	}
	l.queue.add(refs)
}

// observe applies one change and returns the facts that changed. It adds objects to affected that must be translated
// although no fact on which they depend has changed.
func (l *loop) observe(c objectChange, affected map[translate.ObjectRef]struct{}) resource.Facts {
	if !c.deleted && resource.Empty(c.object) != "" {
		return l.observeUnread(c, affected)
	}
	ref, translated := translate.RefOf(c.object)
	if translated && c.reread && isNewer(ref.Object(l.view), c.object) {
		return nil
	}
	if translated && !c.deleted {
		return l.observeTranslated(ref, c.object, affected)
	}
	switch o := c.object.(type) {
	case *metav1.PartialObjectMetadata:
		if c.deleted {
			l.intake.remove(&corev1.Secret{ObjectMeta: identityOf(o)})
		}
		return l.observeSecretVersion(resource.KeyOf(o), o.ResourceVersion, c.deleted)
	case *corev1.Secret:
		return l.observeSecret(o, c, affected)
	case *corev1.Node:
		l.nodes.update(o, c.deleted)
	case *discoveryv1.EndpointSlice:
		defer l.observeEndpoints(o) // reads the updated view
	case *corev1.Service:
		defer l.observeService(o)
	}
	return l.updateView(c)
}

// observeUnread handles an object whose content was not kept, see intake. The version that was read before stays in the
// view. An object that was never read enters the view only if its status can show the reason.
func (l *loop) observeUnread(c objectChange, affected map[translate.ObjectRef]struct{}) resource.Facts {
	if s, ok := c.object.(*corev1.Secret); ok {
		c.object = lastRead(orNil(l.view.Secret(resource.KeyOf(s))), s)
		return l.observeSecret(c.object.(*corev1.Secret), c, affected)
	}
	ref, translated := translate.RefOf(c.object)
	if !translated {
		return nil
	}
	before := ref.Object(l.view)
	if before != nil && before.GetUID() != c.object.GetUID() {
		before = nil // the view has another object of the same name
	}
	if before != nil && before.GetResourceVersion() == c.object.GetResourceVersion() && resource.Unread(before) == "" {
		return nil // the object was read in the meantime
	}
	return l.observeTranslated(ref, lastRead(before, c.object), affected)
}

// orNil returns a nil interface for a nil Secret.
func orNil(s *corev1.Secret) resource.Object {
	if s == nil {
		return nil
	}
	return s
}

func (l *loop) updateView(c objectChange) resource.Facts {
	if c.deleted {
		return l.view.Delete(c.object)
	}
	return l.view.Put(c.object)
}

// observeTranslated applies a new version of a translated object to the view. If no fact has changed, the desired state
// stays valid for the new version. A new object is added to affected, because it has not been translated and therefore
// depends on no fact yet.
func (l *loop) observeTranslated(
	ref translate.ObjectRef, o resource.Object, affected map[translate.ObjectRef]struct{},
) resource.Facts {
	if !l.readers.Has(ref) {
		affected[ref] = struct{}{}
	}
	before := ref.Object(l.view)
	if ref.Kind == translate.KindGateway && before != nil && before.GetUID() != o.GetUID() {
		l.end(ref.NamespacedName) // the Gateway was deleted and created again, and the watch delivered one change
	}
	changed := l.view.Put(o)
	if gw, is := o.(*gwapiv1.Gateway); is && (before == nil || before.GetUID() != o.GetUID()) && l.published.nodePorts != nil {
		l.setNodePorts(ref.NamespacedName, l.published.nodePorts(gw))
	}
	if before != nil && len(changed) == 0 {
		l.writer.setVersion(ref, before.GetResourceVersion(), o.GetResourceVersion())
	}
	return changed
}

// isNewer reports whether an object is a newer version than the object in the view, which may be nil.
func isNewer(inView, o resource.Object) bool {
	if inView == nil || resource.Unread(inView) != "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(inView.GetResourceVersion(), o.GetResourceVersion())
	return err == nil && order > 0
}

// observeSecretVersion handles new metadata of a Secret. When a Secret appears, the objects that need it are translated
// again.
func (l *loop) observeSecretVersion(key types.NamespacedName, version string, deleted bool) resource.Facts {
	switch {
	case deleted:
		l.secrets.forget(key)
		return l.view.Delete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
	case l.secrets.observe(key, version):
		return resource.SecretFacts(key)
	}
	return nil
}

// observeSecret handles the result of fetching a Secret. It adds the objects that were waiting for the Secret to
// affected.
func (l *loop) observeSecret(
	s *corev1.Secret, c objectChange, affected map[translate.ObjectRef]struct{},
) resource.Facts {
	key := resource.KeyOf(s)
	l.tried[key] = true
	if c.failed || c.deleted && l.secrets.retryNotFound(key) {
		return nil
	}
	maps.Copy(affected, l.waiting[key])
	delete(l.waiting, key)
	if !l.secrets.accept(s, c.deleted) {
		return nil
	}
	changed := l.updateView(c)
	if c.certificate != nil {
		l.view.SetCertificate(key, c.certificate)
	}
	return changed
}

// observeEndpoints handles a changed EndpointSlice of the operator's own Service or of a Gateway's Service.
func (l *loop) observeEndpoints(s *discoveryv1.EndpointSlice) {
	if l.peers.include(s) {
		l.peers.update(l.view.EndpointSlicesOf(l.peers.service))
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if service := l.view.Service(key); service != nil {
		l.observeService(service)
	}
}

// observeService updates the dataplane pods of the Gateway to which a Service belongs.
func (l *loop) observeService(s *corev1.Service) {
	gateway, ok := resource.GatewayOf(s)
	if !ok {
		return
	}
	var all []*discoveryv1.EndpointSlice
	for _, service := range l.view.ServicesOf(gateway) {
		all = append(all, l.view.EndpointSlicesOf(resource.KeyOf(service))...)
	}
	l.rollouts.setEndpoints(gateway, endpointsOf(all))
}

// translateNext takes the next object from the queue and translates it, unless the rate limiter delays it. It returns
// false if the queue is empty.
func (l *loop) translateNext(t *task) bool {
	ref, ok := l.queue.next(len(l.initial) > 0)
	if !ok {
		return false
	}
	t.begin()
	begun := time.Now()
	switch {
	case ref.Object(l.view) == nil:
		l.memo.Forget(ref)
		l.translate(ref)
		l.limiter.forget(ref)
	case l.limiter.allows(ref, begun) && l.translate(ref):
		l.limiter.record(ref, l.since(ref, begun), time.Now())
	}
	delete(l.initial, ref)
	return true
}

// translate translates an object, publishes the config if it is a Gateway, and sets the desired state. If a Secret that
// the translation needs is still being fetched, it discards the result, which treats the Secret as absent, and returns
// false.
func (l *loop) translate(ref translate.ObjectRef) (complete bool) {
	begun, key := time.Now(), ref.NamespacedName
	defer func() { l.meters.duration.Observe(time.Since(begun).Seconds()) }()
	l.meters.translations.Inc()
	opt, dependencies := l.optionsFor(ref), resource.Facts{}
	if l.translateEndpoints(ref, opt) {
		return true
	}
	opt.Memo = &l.memo
	out, ok := l.translated(ref, dependencies, opt)
	if !ok {
		return l.keepPublished(ref, nil)
	}
	have := l.haveSecrets(ref, dependencies)
	var restored *config.Config
	if have && out.Gateway != nil && out.Gateway.NeedsPublished {
		if restored, have = l.restore(ref); restored != nil {
			opt.Published = restored
			if out, ok = l.translated(ref, dependencies, opt); !ok {
				return l.keepPublished(ref, restored)
			}
			have = l.haveSecrets(ref, dependencies)
		}
	}
	l.readers.Record(ref, dependencies)
	if out.Gateway != nil {
		l.shareBudget(key, out.Gateway)
		defer l.published.updateMissing(key, out.Gateway.Decision)
	}
	if !have {
		l.memo.Forget(ref)
		return false
	}
	handedOver := out.Gateway != nil && l.serve(key, out.Gateway, restored)
	want := l.desiredOf(ref, out, handedOver)
	if o := ref.Object(l.view); o != nil {
		want.uid, want.version = o.GetUID(), o.GetResourceVersion()
	} else {
		l.readers.Delete(ref)
	}
	l.writer.set(ref, want)
	return true
}

// translated returns the translation of an object, and the facts that it read as dependencies. It returns false if the
// translation panics. Config, objects and status then stay as they are until a dependency changes.
func (l *loop) translated(
	ref translate.ObjectRef, dependencies resource.Facts, opt translate.Options,
) (out translate.Outcome, ok bool) {
	ok = translate.Contain(l.log, ref, func() {
		out = l.translateObject(ref, l.view.Recording(dependencies), opt)
	})
	if !ok {
		l.memo.Forget(ref)
		l.readers.Record(ref, dependencies)
	}
	return out, ok
}

// keepPublished keeps the config of a Gateway that cannot be translated. After a restart, the config is restored from
// the standby Secret, unless it was restored before. It returns false while this Secret is being fetched.
func (l *loop) keepPublished(ref translate.ObjectRef, restored *config.Config) (complete bool) {
	key := ref.NamespacedName
	if ref.Kind != translate.KindGateway || l.view.Gateway(key) == nil {
		return true
	}
	if restored == nil && l.published.current(key) == nil {
		known := false
		if restored, known = l.restore(ref); !known {
			return false
		}
	}
	held := translate.Result{Key: key, Decision: translate.Held, Revoked: l.revoked(ref, restored)}
	l.serve(key, &held, restored)
	l.published.updateMissing(key, translate.Held)
	if held.Revoked != nil {
		l.writer.revoke(ref, held.Revoked)
	}
	return true
}

// revoked returns the published config of a Gateway with the revocations that are in force now, if they differ;
// otherwise nil. The Gateway is translated again when its Revocations change, although its translation may panic before
// it reads them.
func (l *loop) revoked(ref translate.ObjectRef, restored *config.Config) (c *config.Config) {
	opt, dependencies := l.optionsFor(ref), resource.Facts{}
	opt.Published = cmp.Or(restored, opt.Published)
	translate.Contain(l.log, ref, func() {
		c = translate.Revoked(l.view.Recording(dependencies), ref.NamespacedName, opt)
	})
	l.readers.Extend(ref, dependencies)
	return c
}

func (l *loop) optionsFor(ref translate.ObjectRef) translate.Options {
	opt, key := l.options, ref.NamespacedName
	opt.Now = metav1.Now()
	if gw := l.view.Gateway(key); gw != nil && ref.Kind == translate.KindGateway {
		opt.Published, opt.Room = l.published.current(key), l.ledger.roomFor(key, gw.CreationTimestamp.Time)
		opt.Room.Certificates = l.intake.certificateRoom(key)
		if opt.Published == nil {
			opt.Previous = l.published.previous(key)
		}
	}
	return opt
}

// translateEndpoints translates and publishes a Gateway for which only endpoints have changed since its last
// translation. It changes only the standby Secret in the desired state. It returns false if the Gateway needs a whole
// translation.
func (l *loop) translateEndpoints(ref translate.ObjectRef, opt translate.Options) bool {
	dependencies := resource.Facts{}
	var out translate.Outcome
	known := false
	returned := translate.Contain(l.log, ref, func() {
		out, known = l.memo.Translate(ref, l.view.Recording(dependencies), opt)
	})
	if !returned {
		l.memo.Forget(ref)
	}
	if !known {
		return false
	}
	l.readers.Extend(ref, dependencies)
	l.shareBudget(ref.NamespacedName, out.Gateway)
	l.published.publish(ref.NamespacedName, *out.Gateway.Config)
	if !l.writer.setStandby(ref, l.published.current(ref.NamespacedName)) {
		l.memo.Forget(ref)
		return false
	}
	return true
}

// haveSecrets reports whether all Secrets that the translation of an object needs have been fetched. If not, the object
// is translated again when they have been fetched. dependencies are the facts that the translation read.
func (l *loop) haveSecrets(ref translate.ObjectRef, dependencies resource.Facts) bool {
	have := true
	for _, key := range dependencies.Secrets() {
		have = l.haveSecret(ref, key) && have
	}
	return have
}

// haveSecret is haveSecrets for one Secret.
func (l *loop) haveSecret(ref translate.ObjectRef, key types.NamespacedName) bool {
	if l.secrets.ensure(key) {
		return true
	}
	if l.waiting[key] == nil {
		l.waiting[key] = map[translate.ObjectRef]struct{}{}
	}
	l.waiting[key][ref] = struct{}{}
	return false
}

// shareBudget records how many endpoints a Gateway has and needs. It queues the routes that begin or cease to exceed a
// budget, and the other Gateways that must have fewer endpoints or may have more.
func (l *loop) shareBudget(key types.NamespacedName, r *translate.Result) {
	affected, ref := map[translate.ObjectRef]struct{}{}, translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}
	l.intake.countCertificates(key, r.Demand.Certificates)
	if delete(l.waitForRoom, ref); r.Demand.MoreCertificates {
		l.waitForRoom[ref] = struct{}{}
	}
	over, gateways := r.OverBudget, []types.NamespacedName(nil)
	if gw := l.view.Gateway(key); gw == nil || over == nil {
		gateways = l.ledger.forget(key)
		over = &resource.OverBudget{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	} else {
		gateways = l.ledger.record(key, ledgerEntry{created: gw.CreationTimestamp.Time, demand: r.Demand})
	}
	l.readers.Of(l.view.Put(over), affected)
	for _, other := range gateways {
		affected[translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: other}] = struct{}{}
	}
	l.requeue(affected)
}

// serve publishes or withdraws the config of a Gateway according to the decision of the translation. restored is the
// config that an earlier operator process published, or nil. handedOver is true if a served Gateway was changed to the
// GatewayClass of another controller.
func (l *loop) serve(key types.NamespacedName, r *translate.Result, restored *config.Config) (handedOver bool) {
	if r.Decision.Ours() || restored != nil {
		l.rollouts.forwarding.setGateway(key, l.view.Gateway(key).UID)
	}
	switch {
	case r.Decision == translate.Served:
		l.published.publish(key, *r.Config)
		l.setNodePorts(key, r.NodePorts)
	case r.Revoked != nil:
		l.published.publish(key, *r.Revoked)
	case r.Decision.Ends():
		return l.end(key) && r.Decision == translate.Foreign
	case restored != nil:
		l.published.publish(key, *restored)
	}
	return false
}

// end forgets a Gateway that was deleted or belongs to another controller. It reports whether a config was published.
func (l *loop) end(key types.NamespacedName) (published bool) {
	l.rollouts.forwarding.removeGateway(key)
	delete(l.unusable, key)
	l.setNodePorts(key, nil)
	return l.published.withdraw(key)
}

// setNodePorts sets the ports of nodes that the published config of a Gateway binds, and queues the Gateways that must
// leave these ports to it. nil means that it binds none.
func (l *loop) setNodePorts(gateway types.NamespacedName, n *resource.NodePorts) {
	affected, change := map[translate.ObjectRef]struct{}{}, objectChange{object: n}
	if n == nil {
		gone := metav1.ObjectMeta{Namespace: gateway.Namespace, Name: gateway.Name}
		change = objectChange{object: &resource.NodePorts{ObjectMeta: gone}, deleted: true}
	}
	l.readers.Of(l.updateView(change), affected)
	l.requeue(affected)
}

// desiredOf returns the desired state that results from a translation. If handedOver is true, the Gateway now belongs
// to another controller, and its generated objects are to be deleted. The objects of a Gateway that never belonged to
// this controller are left unchanged.
func (l *loop) desiredOf(ref translate.ObjectRef, out translate.Outcome, handedOver bool) desired {
	want := desired{ours: out.Ours, status: out.Status, problems: out.Problems, complete: handedOver}
	r := out.Gateway
	if r == nil {
		return want
	}
	want.notes = condition.Messages(r.Notes)
	switch published := l.published.current(ref.NamespacedName); {
	case r.Decision != translate.Served || published == nil:
		want.skeleton, want.standby = r.Skeleton, published // revocations may have been added to it
	default:
		want.objects, want.complete, want.keepReplicas = r.ObjectsWith(published), true, r.KeepReplicas
		want.takeOver, want.standby = r.TakeOver, published
	}
	return want
}

// lead runs the tasks of the leader until ctx ends. It first waits until all objects of the initial list are
// translated, because the order of the first writes depends on all objects, see writeQueue.
func (l *loop) lead(ctx context.Context) {
	select {
	case <-l.known:
	case <-ctx.Done():
		return
	}
	l.meters.leader.Set(1)
	defer l.meters.leader.Set(0)
	var group sync.WaitGroup
	group.Go(func() { l.tasks.do("deletion costs", func(t *task) { l.costs.run(ctx, t) }) })
	l.others.identify(ctx)
	group.Go(func() { l.tasks.do("other installations", func(t *task) { l.others.run(ctx, t) }) })
	l.writer.lead(ctx)
	group.Wait()
}

// allocations returns the allocations of a Gateway for KEDA.
func (l *loop) allocations(gateway types.NamespacedName) (int, error) {
	if err := l.readyz(); err != nil {
		return 0, err
	}
	return l.rollouts.load(gateway)
}

// readyz returns an error until the initial configs are published, and while a task is stuck.
func (l *loop) readyz() error {
	if !l.ready.Load() {
		if reason := l.notReadyReason.Load(); reason != nil {
			return fmt.Errorf("operator not ready: %s", *reason)
		}
		return errors.New("operator not ready: the cluster has not been read yet")
	}
	if err := l.tasks.stuck(time.Now(), taskTimeout); err != nil {
		return fmt.Errorf("operator not ready: %w", err)
	}
	return nil
}

// livez returns an error if a task has been stuck for so long that only a restart helps. An unavailable API server is
// not an error, because a restart does not help against it.
func (l *loop) livez() error { return l.tasks.stuck(time.Now(), livenessTimeout) }
