package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// desired is what the cluster should say of a unit.
type desired struct {
	ours   bool
	status any
	// notes are remarks that fit no condition.
	notes []string
	// uid and version are those of the object for which the status was made.
	uid     types.UID
	version string
	// objects are those of a Gateway. When the list is complete, others that belong to the Gateway go.
	objects  []resource.Object
	complete bool
	// keepServices leaves Services that exist as they are.
	keepServices bool
	keepReplicas bool
	// standby is what pods of the Gateway start with while nobody serves it; nil where there are no pods of ours.
	standby *config.Config
	// skeleton are those objects of a Gateway that are made again while it is not known which it should have.
	skeleton []resource.Object
}

// all are the objects of a Gateway, the Secret with which its pods start among them.
func (want desired) all(u translate.ObjectRef) []resource.Object {
	if want.standby == nil {
		return want.objects
	}
	return append([]resource.Object{manifest.Standby(u.NamespacedName, want.uid, *want.standby)}, want.objects...)
}

// withoutEndpoints is the desired without what changes by the second while a media server is rolled out.
func (want desired) withoutEndpoints() desired {
	if want.standby != nil {
		c := *want.standby
		c.Clusters = nil
		want.standby = &c
	}
	return want
}

// givenAway tells whether a Gateway is another controller's now, and what it has of ours is to go, once.
func (want desired) givenAway() bool { return !want.ours && want.complete }

// writer brings objects and statuses to where the translation wants them, on the leader. It compares with what a cache has first: over an
// unchanged cluster it makes no write.
type writer struct {
	client client.Client
	direct client.Client
	scheme *runtime.Scheme
	meters *meters
	tasks  *tasks
	events eventRecorder
	// inbox hears of what the API server does not take.
	inbox   *inbox
	pending pendingWrites
	log     *slog.Logger

	mu         sync.Mutex
	desired    map[translate.ObjectRef]desired
	rejections map[translate.ObjectRef]rejections
	// scaling reads and writes the kinds of KEDA; nil while they are not known, or what there is of them is not.
	keda client.Client
	// queue is there while this process leads, and progress is what it has come to since.
	queue    priorityqueue.PriorityQueue[translate.ObjectRef]
	progress map[translate.ObjectRef]progress
}

// newWriter returns a writer that compares with what c reads from a cache. What it has to know exactly it reads from direct.
func newWriter(c, direct client.Client, s *runtime.Scheme, in *inbox, m *meters, ts *tasks, log *slog.Logger) *writer {
	return &writer{
		client: c, direct: direct, scheme: s, inbox: in, meters: m, tasks: ts, log: log, desired: map[translate.ObjectRef]desired{}, rejections: map[translate.ObjectRef]rejections{},
		progress: map[translate.ObjectRef]progress{},
	}
}

// want takes over what a unit should be from now on. A unit that is gone takes its objects along by itself: they are owned by it.
func (w *writer) set(u translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.desired[u]; before.givenAway() && !want.ours && want.uid == before.uid {
		return // what it has goes first
	}
	if !want.ours && !want.complete {
		delete(w.desired, u)
		delete(w.progress, u)
		w.remember(u, rejections{})
		return
	}
	before, known := w.desired[u]
	if before.uid != want.uid {
		w.remember(u, rejections{})
	}
	if want.ours && !want.complete && before.uid == want.uid { // what has been made stays wanted, whatever is wrong now
		want.objects, want.complete, want.standby = before.objects, before.complete, before.standby
		want.keepReplicas = before.keepReplicas
	}
	if known && reflect.DeepEqual(before, want) {
		return // it has been done, or is being tried
	}
	w.desired[u] = want
	if known && reflect.DeepEqual(before.withoutEndpoints(), want.withoutEndpoints()) {
		w.lookLater(u) // most changes of endpoints end here
		return
	}
	w.look(u)
}

// unhappy counts the objects whose status says that something is wrong.
func (w *writer) unhappy() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, want := range w.desired {
		if slices.ContainsFunc(fieldConditions(want.status), func(s fieldCondition) bool { return condition.Wrong(s.Condition) }) {
			n++
		}
	}
	return n
}

// sameAs takes over that an object has a new version which says the same.
func (w *writer) sameAs(u translate.ObjectRef, before, now string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want, ok := w.desired[u]; ok && want.version == before {
		want.version = now
		w.desired[u] = want
		w.look(u)
	}
}

// scale says how the kinds of KEDA are written, nil if they cannot be. Everything is compared once they can.
func (w *writer) scale(c client.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c != nil && w.keda == nil {
		for u := range w.desired {
			w.look(u)
		}
	}
	w.keda = c
}

// clientOf reads and writes a kind; nil when that cannot be now.
func (w *writer) clientOf(o resource.Object) client.Client {
	if !isKEDA(o) {
		return w.client
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keda
}

// workers is how many units are written at a time.
const workers = 4

// lead writes until ctx ends, and returns when nothing is being written any more.
func (w *writer) lead(ctx context.Context) {
	queue := newQueue()
	w.mu.Lock()
	w.queue, w.progress = queue, map[translate.ObjectRef]progress{}
	for u, want := range w.desired {
		if want.givenAway() { // long ago, maybe: what it has by now may be somebody else's
			delete(w.desired, u)
			continue
		}
		w.look(u)
	}
	w.mu.Unlock()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { w.tasks.do("writing", func(t *task) { w.work(ctx, queue, t) }) })
	}
	<-ctx.Done()
	w.mu.Lock()
	w.queue = nil
	w.mu.Unlock()
	queue.ShutDown()
	group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for u := range w.rejections { // nobody tells who does not lead when they are over
		w.remember(u, rejections{})
	}
}

func (w *writer) work(ctx context.Context, queue priorityqueue.PriorityQueue[translate.ObjectRef], t *task) {
	for {
		u, down := queue.Get()
		if down {
			return
		}
		t.begin()
		wait, err := w.step(ctx, u)
		t.end()
		if err == nil || ctx.Err() != nil {
			queue.Forget(u)
			if wait > 0 {
				queue.AddAfter(u, wait)
			}
		} else {
			w.again(queue, u, err)
		}
		queue.Done(u)
	}
}

// Bounds of how often a status is written that the API server refuses: quickTries times within half a minute, and then once in rejectionRetry, because rights
// may be granted and kinds renewed without a change of the object.
const (
	quickTries     = 8
	rejectionRetry = 10 * time.Minute
)

// again has a unit written again in a while, because writing it has failed.
func (w *writer) again(queue priorityqueue.PriorityQueue[translate.ObjectRef], u translate.ObjectRef, err error) {
	if !apierrors.IsConflict(err) { // the cache was behind; it will not be for long
		w.log.Warn("write, to be tried again", "unit", u.String(), "error", err)
		w.meters.failures.Inc()
	}
	if errors.Is(err, errStatusRejected) && queue.NumRequeues(u) >= quickTries {
		queue.AddAfter(u, rejectionRetry)
		return
	}
	queue.AddRateLimited(u)
}

// write brings one unit up to date: objects first, the status that speaks of them last. What has no time any more is done next time: what has
// been written by then is not written again.
func (w *writer) write(ctx context.Context, u translate.ObjectRef) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w.mu.Lock()
	want, ok := w.desired[u]
	w.mu.Unlock()
	if !ok || w.ends(ctx, u.Namespace) {
		return nil
	}
	err, told := w.writeObjects(ctx, u, want)
	if want.givenAway() && err == nil {
		w.leave(u, want)
	}
	if want.ours && !told { // a status that speaks of the rejection is on its way
		err = errors.Join(err, w.writeStatus(ctx, u, want))
	}
	return err
}

// leave forgets a Gateway that was given away. What is made for it from now on has the same labels and the same owner, and is not ours.
func (w *writer) leave(u translate.ObjectRef, want desired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.desired[u]; now.givenAway() && now.uid == want.uid {
		delete(w.desired, u)
		delete(w.progress, u)
	}
}

// ends tells whether a namespace is being deleted, and all in it: it takes nothing new, and what is said there nobody reads.
func (w *writer) ends(ctx context.Context, namespace string) bool {
	n := &corev1.Namespace{}
	return namespace != "" && w.client.Get(ctx, types.NamespacedName{Name: namespace}, n) == nil && n.DeletionTimestamp != nil
}

// writeObjects brings the objects of a unit up to date, and reports whether the loop was told that one of them is refused.
func (w *writer) writeObjects(ctx context.Context, u translate.ObjectRef, want desired) (err error, told bool) {
	if !want.complete {
		return w.restore(ctx, u.NamespacedName, want.skeleton), false
	}
	var errs []error
	var missing []resource.Object
	var found rejections
	wanted := want.all(u)
	w.mu.Lock()
	before := w.rejections[u]
	w.mu.Unlock()
	for _, o := range wanted {
		if w.rests(ctx, u, o) {
			continue
		}
		err := w.writeOrSpare(ctx, o, want, before.externalIPs, &found.externalIPs)
		if err != nil {
			missing = append(missing, o)
		}
		errs = append(errs, err)
		found.note(o, err)
	}
	swept := w.sweep(ctx, u.NamespacedName, wanted, missing)
	err = errors.Join(append(errs, swept)...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.desired[u].uid != want.uid {
		return err, false
	}
	old := w.rejections[u]
	found.serving = found.serving.orStill(old.serving, swept)
	found.scaling = found.scaling.orStill(old.scaling, swept)
	found.externalIPs = found.externalIPs.orStill(old.externalIPs, err)
	return err, w.remember(u, found) && err != nil
}

// restore makes those objects again that are gone. Where none is left, none has been made.
func (w *writer) restore(ctx context.Context, gateway types.NamespacedName, skeleton []resource.Object) error {
	if len(skeleton) == 0 {
		return nil
	}
	there, runs := map[objectID]bool{}, false
	for _, like := range append(generatedKinds(), &corev1.Service{}) {
		list, err := w.owned(ctx, w.client, like, gateway)
		if err != nil {
			return err
		}
		for _, o := range list {
			there[idOf(o)], runs = true, runs || isWorkload(o)
		}
	}
	var errs []error
	for _, o := range skeleton {
		if len(there) > 0 && !there[idOf(o)] && !(runs && isWorkload(o)) {
			errs = append(errs, w.writeOrSpare(ctx, o, desired{keepServices: true}, rejection{}, &rejection{}))
		}
	}
	return errors.Join(errs...)
}

// isWorkload tells whether an object runs pods. A Gateway has one that does.
func isWorkload(o client.Object) bool {
	switch o.(type) {
	case *appsv1.Deployment, *appsv1.DaemonSet:
		return true
	}
	return false
}

// writeOrSpare writes an object, and a Service that is not taken because of its external addresses without them: it is found by its load balancer. One that
// has such addresses, which clients may be using, stays as it is. What was refused before is not asked for again until other addresses are wished for.
// found is what the API server has against them.
func (w *writer) writeOrSpare(ctx context.Context, o resource.Object, want desired, before rejection, found *rejection) error {
	bare := manifest.WithoutExternalIPs(o)
	if bare == nil {
		return w.writeObject(ctx, o, want)
	}
	wished := strings.Join(o.(*corev1.Service).Spec.ExternalIPs, " ")
	for _, known := range []rejection{*found, before} {
		if known.applied == wished {
			*found = known
			return w.writeObject(ctx, bare, want)
		}
	}
	err := w.writeObject(ctx, o, want)
	if err == nil || !isRejected(err) || errors.Is(err, errOwnedByOther) {
		return err
	}
	has := &corev1.Service{}
	if client.IgnoreNotFound(w.client.Get(ctx, resource.KeyOf(o), has)) != nil || len(has.Spec.ExternalIPs) > 0 || w.writeObject(ctx, bare, want) != nil {
		return err
	}
	*found = newRejection(o, err)
	found.applied = wished
	return nil
}

func (w *writer) writeObject(ctx context.Context, o resource.Object, want desired) error {
	c := w.clientOf(o)
	if c == nil {
		return nil
	}
	live := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	live.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if wanted, service := o.(*corev1.Service); service {
		has := &corev1.Service{}
		switch err := w.client.Get(ctx, resource.KeyOf(o), has); {
		case apierrors.IsNotFound(err):
		case err != nil || want.keepServices:
			return err
		default:
			o, _ = manifest.Fit(wanted, has)
		}
	}
	patch, found, err := diff(ctx, c, o, live)
	if err != nil || patch == nil || w.pending.contains(o, patch) {
		return err
	}
	if d, ok := o.(*appsv1.Deployment); ok && found && want.keepReplicas && d.Spec.Replicas == nil {
		if err := w.leaveReplicas(ctx, resource.KeyOf(d)); err != nil {
			return err
		}
	}
	if err := w.free(ctx, o, live, found); err != nil {
		return err
	}
	w.pending.add(o, patch)
	err = apply(ctx, c, patch, found || !isKEDA(o))
	w.count(o, "apply")
	if err != nil {
		w.pending.remove(o)
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the watch of namespaces says so in a moment
	}
	return err
}

// free returns an error where the name of an object belongs to somebody else: people make these kinds too, and so do other Gateways. live is what the
// cache has of it, which knows most kinds by our labels only. The API server sees no conflict where somebody else has set other fields.
func (w *writer) free(ctx context.Context, o resource.Object, live client.Object, found bool) error {
	if !found {
		there := &metav1.PartialObjectMetadata{}
		there.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		switch err := w.direct.Get(ctx, resource.KeyOf(o), there); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", describe(o), err)
		}
		live = there
	}
	if !isOurs(live, o) {
		return fmt.Errorf("apply %s: %w", describe(o), errOwnedByOther)
	}
	return nil
}

// isOurs tells whether what is there may become what is wanted: it belongs to the same Gateway, or to none and says that the operator has made it.
func isOurs(there, wanted client.Object) bool {
	wants, _ := ownerOf(wanted)
	if has, owned := ownerOf(there); owned {
		return has == wants
	}
	return there.GetLabels()[manifest.OwnedByLabel] == manifest.AppValue
}

func (w *writer) count(o resource.Object, verb string) {
	kind := "unknown"
	if gvks, _, err := w.scheme.ObjectKinds(o); err == nil {
		kind = gvks[0].Kind
	}
	w.meters.writes.WithLabelValues(kind, verb).Inc()
}

// sweep deletes what belongs to a Gateway and is not wanted any more; but not what one that is missing is to take the place of.
func (w *writer) sweep(ctx context.Context, gateway types.NamespacedName, keep, missing []resource.Object) error {
	wanted := map[objectID]bool{}
	for _, o := range keep {
		wanted[idOf(o)] = true
	}
	var errs []error
	for _, like := range append(append(generatedKinds(), kedaKinds()...), &corev1.Service{}) {
		if slices.ContainsFunc(missing, func(o resource.Object) bool { return succeeds(o, like) }) {
			continue
		}
		c := w.clientOf(like)
		if c == nil {
			continue
		}
		list, err := w.owned(ctx, c, like, gateway)
		errs = append(errs, err)
		for _, o := range list {
			if owner, ok := ownerOf(o); wanted[idOf(o)] || !ok || owner.Name != gateway.Name || o.GetDeletionTimestamp() != nil {
				continue
			}
			w.log.Info("delete", "object", describe(o), "gateway", gateway)
			w.count(o, "delete")
			w.pending.remove(o)
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})))
		}
	}
	return errors.Join(errs...)
}

// succeeds tells whether an object can do what another one does for the calls of a Gateway.
func succeeds(o, former client.Object) bool {
	_, is := o.(*corev1.Service)
	_, was := former.(*corev1.Service)
	return is && was || isWorkload(o) && isWorkload(former)
}

// owned lists what the labels say belongs to a Gateway.
func (w *writer) owned(ctx context.Context, c client.Reader, like client.Object, gateway types.NamespacedName) ([]client.Object, error) {
	gvks, _, err := w.scheme.ObjectKinds(like)
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	list, err := w.listOf(gvks[0])
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	err = c.List(ctx, list, client.InNamespace(gateway.Namespace), client.MatchingLabels{
		manifest.OwnedByLabel: manifest.AppValue, resource.RelatedGatewayName: gateway.Name, resource.RelatedGatewayNamespace: gateway.Namespace,
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gvks[0].Kind, err)
	}
	var found []client.Object
	err = eachItem(list, func(o client.Object) { found = append(found, o) })
	return found, err
}

// listOf is an empty list of a kind.
func (w *writer) listOf(gvk schema.GroupVersionKind) (client.ObjectList, error) {
	gvk.Kind += "List"
	if gvk.Group == manifest.KEDA.Group {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		return list, nil
	}
	made, err := w.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	return made.(client.ObjectList), nil
}

// ownerOf is the Gateway that an object belongs to. Labels are no proof: people copy and remove them.
func ownerOf(o client.Object) (u translate.ObjectRef, ok bool) {
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == translate.KindGateway && strings.HasPrefix(owner.APIVersion, gwapiv1.GroupName+"/") {
			u.Kind, u.Namespace, u.Name = translate.KindGateway, o.GetNamespace(), owner.Name
			return u, true
		}
	}
	return u, false
}

// writeStatus writes the status of a unit if the cluster has another one. A status holds what other controllers say as well: of an object
// that has changed since the translation nothing is written, there or at the API server. The translation that knows of the change is on its way.
func (w *writer) writeStatus(ctx context.Context, u translate.ObjectRef, want desired) error {
	o := blank(u)
	if err := w.client.Get(ctx, u.NamespacedName, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	before, changed := setStatus(o, want.status)
	if o.GetResourceVersion() != want.version || !changed {
		return nil
	}
	w.count(o, "status")
	switch err := w.client.Status().Update(ctx, o, client.FieldOwner(fieldManager)); {
	case apierrors.IsNotFound(err):
		return nil // the object is gone
	case isRejected(err) || apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", errStatusRejected, err)
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	w.events.record(o, newEvents(before, want))
	return nil
}

// errStatusRejected says that the API server does not take a status, and will not until something changes.
var errStatusRejected = errors.New("write status: the API server refuses it")

// blank is an empty object of a unit's kind.
func blank(u translate.ObjectRef) client.Object {
	switch u.Kind {
	case translate.KindGateway:
		return &gwapiv1.Gateway{}
	case translate.KindClass:
		return &gwapiv1.GatewayClass{}
	case translate.KindGatewayConfig:
		return &stunnerv1.GatewayConfig{}
	case translate.KindDataplane:
		return &stunnerv1.Dataplane{}
	case translate.KindStaticService:
		return &stunnerv1.StaticService{}
	}
	switch u.Spelling.Version {
	case gwapiv1a2.GroupVersion.Version:
		return &gwapiv1a2.UDPRoute{}
	}
	if u.Spelling.Group == gwapiv1.GroupName {
		return &gwapiv1.UDPRoute{}
	}
	return &stunnerv1.UDPRoute{}
}

// setStatus gives an object a status, and returns the one that it had and whether that was another one.
func setStatus(o client.Object, status any) (before any, changed bool) {
	field := reflect.ValueOf(o).Elem().FieldByName("Status")
	if _, route := status.(gwapiv1.RouteStatus); route { // its type is a struct around this one
		field = field.FieldByName("RouteStatus")
	}
	before = field.Interface()
	if reflect.DeepEqual(before, status) {
		return before, false
	}
	field.Set(reflect.ValueOf(status))
	return before, true
}

// The writer hears of the objects that it has made, to mend what others do to them.
var _ toolscache.ResourceEventHandler = (*writer)(nil)

// OnAdd is part of toolscache.ResourceEventHandler, as OnUpdate and OnDelete are.
func (w *writer) OnAdd(o any, initial bool) {
	if !initial {
		w.touched(o)
	}
}

// OnUpdate has the owner of an object compared.
func (w *writer) OnUpdate(_, o any) { w.touched(o) }

// OnDelete has the owner of an object compared.
func (w *writer) OnDelete(o any) { w.touched(o) }

func (w *writer) touched(o any) {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, ok := o.(client.Object)
	if !ok {
		return
	}
	w.pending.remove(object)
	if u, ok := ownerOf(object); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.look(u)
	}
}
