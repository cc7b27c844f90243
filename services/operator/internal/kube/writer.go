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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// job is what the cluster should say of a unit.
type job struct {
	ours   bool
	status any
	// notes are remarks that fit no condition.
	notes []string
	// uid and version are those of the object for which the status was made.
	uid     types.UID
	version string
	// objects are those of a Gateway. When the list is complete, others that belong to the Gateway go.
	objects      []resource.Object
	complete     bool
	keepServices bool
}

// writer brings objects and statuses to where the translation wants them, on the leader. It compares with what a cache has first: over an
// unchanged cluster it makes no write.
type writer struct {
	client client.Client
	scheme *runtime.Scheme
	meters *meters
	tasks  *tasks
	herald herald
	log    *slog.Logger

	mu   sync.Mutex
	jobs map[translate.Unit]job
	// queue is there while this process leads.
	queue workqueue.TypedRateLimitingInterface[translate.Unit]
}

func newWriter(c client.Client, s *runtime.Scheme, m *meters, ts *tasks, log *slog.Logger) *writer {
	return &writer{client: c, scheme: s, meters: m, tasks: ts, log: log, jobs: map[translate.Unit]job{}}
}

// want takes over what a unit should be from now on. A unit that is gone takes its objects along by itself: they are owned by it.
func (w *writer) want(u translate.Unit, j job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !j.ours && !j.complete {
		delete(w.jobs, u)
		return
	}
	before, known := w.jobs[u]
	if j.ours && !j.complete && before.uid == j.uid { // what has been made stays wanted, whatever is wrong now
		j.objects, j.keepServices, j.complete = before.objects, before.keepServices, before.complete
	}
	if known && reflect.DeepEqual(before, j) {
		return // it has been done, or is being tried: most changes of endpoints end here
	}
	w.jobs[u] = j
	w.look(u)
}

// unhappy counts the objects whose status says that something is wrong.
func (w *writer) unhappy() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if slices.ContainsFunc(statements(j.status), func(s statement) bool { return condition.Wrong(s.Condition) }) {
			n++
		}
	}
	return n
}

// sameAs takes over that an object has a new version which says the same.
func (w *writer) sameAs(u translate.Unit, before, now string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j, ok := w.jobs[u]; ok && j.version == before {
		j.version = now
		w.jobs[u] = j
		w.look(u)
	}
}

// look has a unit compared with the cluster.
func (w *writer) look(u translate.Unit) {
	if w.queue != nil {
		w.queue.Add(u)
	}
}

// workers is how many units are written at a time.
const workers = 4

// lead writes until ctx ends, and returns when nothing is being written any more.
func (w *writer) lead(ctx context.Context) {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[translate.Unit](100*time.Millisecond, 30*time.Second)
	queue := workqueue.NewTypedRateLimitingQueue(limit)
	w.mu.Lock()
	w.queue = queue
	for u := range w.jobs {
		queue.Add(u)
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
}

func (w *writer) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[translate.Unit], t *task) {
	for {
		u, down := queue.Get()
		if down {
			return
		}
		t.begin()
		err := w.write(ctx, u)
		t.end()
		switch {
		case err == nil || ctx.Err() != nil:
			queue.Forget(u)
		default:
			if !apierrors.IsConflict(err) { // the cache was behind; it will not be for long
				w.log.Warn("write, to be tried again", "unit", u.String(), "error", err)
				w.meters.failures.Inc()
			}
			queue.AddRateLimited(u)
		}
		queue.Done(u)
	}
}

// write brings one unit up to date: objects first, the status that speaks of them last. What has no time any more is done next time: what has
// been written by then is not written again.
func (w *writer) write(ctx context.Context, u translate.Unit) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	w.mu.Lock()
	j, ok := w.jobs[u]
	w.mu.Unlock()
	if !ok {
		return nil
	}
	var errs []error
	if j.complete {
		for _, o := range j.objects {
			err := w.writeObject(ctx, o, j.keepServices)
			errs = append(errs, err)
			if refused(err) {
				w.tellRefusal(ctx, u, o, err)
			}
		}
		errs = append(errs, w.sweep(ctx, u.NamespacedName, j))
	}
	if j.ours {
		errs = append(errs, w.writeStatus(ctx, u, j))
	}
	return errors.Join(errs...)
}

func (w *writer) writeObject(ctx context.Context, o resource.Object, keepServices bool) error {
	live := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	if wanted, service := o.(*corev1.Service); service {
		has := &corev1.Service{}
		switch err := w.client.Get(ctx, resource.KeyOf(o), has); {
		case apierrors.IsNotFound(err):
		case err != nil || keepServices:
			return err
		default:
			o, _ = manifest.Fit(wanted, has)
		}
	}
	wrote, err := apply(ctx, w.client, o, live)
	if wrote {
		w.count(o, "apply")
	}
	return err
}

// refused tells whether an error is the API server's last word: it does not take the object, and will not until somebody changes something. That
// a namespace which ends takes none is nothing that people can mend.
func refused(err error) bool {
	return (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// tellRefusal tells people of an object that cannot be had. What was there before stays.
func (w *writer) tellRefusal(ctx context.Context, u translate.Unit, refused resource.Object, why error) {
	o := blank(u)
	if w.client.Get(ctx, u.NamespacedName, o) != nil {
		return // nobody is left to be told
	}
	action := "Apply" + refused.GetObjectKind().GroupVersionKind().Kind
	w.herald.tell(o, []tidings{{warning: true, action: action, reason: "Refused", text: cut(why.Error())}})
}

func (w *writer) count(o resource.Object, verb string) {
	kind := "unknown"
	if gvks, _, err := w.scheme.ObjectKinds(o); err == nil {
		kind = gvks[0].Kind
	}
	w.meters.writes.WithLabelValues(kind, verb).Inc()
}

// sweep deletes what belongs to a Gateway and is not wanted any more.
func (w *writer) sweep(ctx context.Context, gateway types.NamespacedName, j job) error {
	wanted := map[string]bool{}
	for _, o := range j.objects {
		wanted[nameOf(o)] = true
	}
	var errs []error
	for _, like := range append(written(), &corev1.Service{}) {
		if _, service := like.(*corev1.Service); service && j.keepServices {
			continue
		}
		list, err := w.owned(ctx, like, gateway)
		errs = append(errs, err)
		for _, o := range list {
			if owner, ok := ownerOf(o); wanted[nameOf(o)] || !ok || owner.Name != gateway.Name {
				continue
			}
			w.log.Info("delete", "object", nameOf(o), "gateway", gateway)
			w.count(o, "delete")
			errs = append(errs, client.IgnoreNotFound(w.client.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})))
		}
	}
	return errors.Join(errs...)
}

// owned lists what the labels say belongs to a Gateway.
func (w *writer) owned(ctx context.Context, like client.Object, gateway types.NamespacedName) ([]client.Object, error) {
	gvks, _, err := w.scheme.ObjectKinds(like)
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	made, err := w.scheme.New(gvks[0].GroupVersion().WithKind(gvks[0].Kind + "List"))
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	list := made.(client.ObjectList)
	err = w.client.List(ctx, list, client.InNamespace(gateway.Namespace), client.MatchingLabels{
		manifest.OwnedByLabel: manifest.AppValue, resource.RelatedGatewayName: gateway.Name, resource.RelatedGatewayNamespace: gateway.Namespace,
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gvks[0].Kind, err)
	}
	var found []client.Object
	err = eachItem(list, func(o client.Object) { found = append(found, o) })
	return found, err
}

// ownerOf is the Gateway that an object belongs to. Labels are no proof: people copy and remove them.
func ownerOf(o client.Object) (u translate.Unit, ok bool) {
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
func (w *writer) writeStatus(ctx context.Context, u translate.Unit, j job) error {
	o := blank(u)
	if err := w.client.Get(ctx, u.NamespacedName, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	before, changed := setStatus(o, j.status)
	if o.GetResourceVersion() != j.version || !changed {
		return nil
	}
	w.count(o, "status")
	if err := w.client.Status().Update(ctx, o, client.FieldOwner(fieldManager)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	w.herald.tell(o, news(before, j))
	return nil
}

// blank is an empty object of a unit's kind.
func blank(u translate.Unit) client.Object {
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
	if u, ok := ownerOf(object); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.look(u)
	}
}
