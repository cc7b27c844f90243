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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// objectWriter applies and deletes the generated objects of Gateways. It first compares an object with the cache, and
// makes no request if nothing has changed.
type objectWriter struct {
	client  client.Client // reads from the cache
	direct  client.Client // reads from the API server
	scheme  *runtime.Scheme
	meters  *meters
	pending pendingWrites
	log     *slog.Logger
	// installation is the value of installationAnnotation in the objects that are written.
	installation string
	// standbyKeys authenticate the standby Secrets that are written.
	standbyKeys *standbyKeys

	mu sync.Mutex
	// keda is the client for the KEDA kinds. It is nil while KEDA is not installed, or while the existing KEDA objects
	// are not listed yet.
	keda client.Client
}

// setKEDA sets the client for the KEDA kinds. It returns true if c is not nil and there was no client before.
func (w *objectWriter) setKEDA(c client.Client) (added bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	added = c != nil && w.keda == nil
	w.keda = c
	return added
}

// clientFor returns the client for an object's kind; nil while objects of this kind cannot be written.
func (w *objectWriter) clientFor(o resource.Object) client.Client {
	if !isKEDA(o) {
		return w.client
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keda
}

// isTerminating reports whether a namespace is being deleted. The API server rejects new objects in such a namespace.
func (w *objectWriter) isTerminating(ctx context.Context, namespace string) bool {
	n := &corev1.Namespace{}
	return namespace != "" &&
		w.client.Get(ctx, types.NamespacedName{Name: namespace}, n) == nil && n.DeletionTimestamp != nil
}

// createMissing creates the Services and workloads of a Gateway that do not exist, and reports whether it created any.
// It creates no workload while waitingWorkload returns one. It ignores errors, because sync tries again and reports
// them.
func (w *objectWriter) createMissing(ctx context.Context, ref translate.ObjectRef, want desired) (created bool) {
	if w.isTerminating(ctx, ref.Namespace) {
		return false
	}
	former, err := w.waitingWorkload(ctx, ref.NamespacedName, want)
	if err != nil {
		return false
	}
	var found rejections
	for _, o := range want.objects {
		if !isService(o) && (!isWorkload(o) || former != nil) {
			continue
		}
		live := o.DeepCopyObject().(client.Object)
		err := w.client.Get(ctx, resource.KeyOf(o), live)
		if apierrors.IsNotFound(err) && w.applyWithFallback(ctx, o, want, rejections{}, &found) == nil {
			created = true
		}
	}
	return created
}

// sync applies the wanted objects of a Gateway, except those for which skip returns true, and except a workload while
// waitingWorkload returns one. It then deletes generated objects of the Gateway that are not wanted, see prune. It
// returns the rejections by the API server. before are the rejections of the previous sync.
func (w *objectWriter) sync(
	ctx context.Context, ref translate.ObjectRef, want desired, before rejections, skip func(resource.Object) bool,
) (rejections, error) {
	var errs []error
	var failed []resource.Object
	var found rejections
	all := want.all(ref, w.standbyKeys)
	former, err := w.waitingWorkload(ctx, ref.NamespacedName, want)
	if err != nil {
		return before, err
	}
	if former != nil {
		found.formerWorkload = describe(former)
	}
	for _, o := range all {
		if former != nil && isWorkload(o) {
			failed = append(failed, o)
			continue
		}
		if skip(o) {
			continue
		}
		err := w.applyWithFallback(ctx, o, want, before, &found)
		if err != nil {
			failed = append(failed, o)
		}
		errs = append(errs, err)
		found.note(o, err)
	}
	deleteErr := w.prune(ctx, ref.NamespacedName, all, failed)
	err = errors.Join(append(errs, deleteErr)...)
	return found.keepUnknown(before, deleteErr, err), err
}

// restore recreates deleted Services and workloads of a Gateway whose new config is not published because of a problem.
// If the Gateway has no generated object at all, it was never served, and nothing is created.
func (w *objectWriter) restore(ctx context.Context, gateway types.NamespacedName, skeleton []resource.Object) error {
	if len(skeleton) == 0 {
		return nil
	}
	live, hasWorkload := map[objectID]bool{}, false
	for _, like := range append(generatedKinds(), &corev1.Service{}) {
		list, err := w.listOwned(ctx, w.client, like, gateway)
		if err != nil {
			return err
		}
		for _, o := range list {
			live[idOf(o)], hasWorkload = true, hasWorkload || isWorkload(o)
		}
	}
	var errs []error
	for _, o := range skeleton {
		if len(live) > 0 && !live[idOf(o)] && !(hasWorkload && isWorkload(o)) {
			errs = append(errs, w.applyWithFallback(ctx, o, desired{keepServices: true}, rejections{}, &rejections{}))
		}
	}
	return errors.Join(errs...)
}

// applyWithFallback applies an object. If the API server rejects a Service with spec.externalIPs, or a workload with
// the capabilities of in-kernel forwarding, the object is applied without them, and found gets the rejection. It is not
// applied without them if the live object has some, because clients may use the addresses, and pods may use the
// capabilities. External IPs that were rejected according to found or before are not tried again until they change.
func (w *objectWriter) applyWithFallback(
	ctx context.Context, o resource.Object, want desired, before rejections, found *rejections,
) error {
	o, scaledBy, err := w.withReplicas(ctx, o)
	if err != nil {
		return err
	}
	if scaledBy != "" {
		found.scaledBy = scaledBy
	}
	plain, addresses := manifest.WithoutExternalIPs(o), ""
	refused := &found.externalIPs
	if plain != nil {
		addresses = strings.Join(o.(*corev1.Service).Spec.ExternalIPs, " ")
		for _, known := range []rejection{*refused, before.externalIPs} {
			if known.content == addresses {
				*refused = known
				return w.apply(ctx, plain, want)
			}
		}
	} else {
		plain, refused = manifest.WithoutOffload(o), &found.offload
	}
	err = w.apply(ctx, o, want)
	if err == nil || plain == nil || !isRejected(err) || errors.Is(err, errOwnedByOther) {
		return err
	}
	live := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	if client.IgnoreNotFound(w.client.Get(ctx, resource.KeyOf(o), live)) != nil ||
		manifest.WithoutExternalIPs(live) != nil || manifest.WithoutOffload(live) != nil ||
		w.apply(ctx, plain, want) != nil {
		return err
	}
	*refused = newRejection(o, err)
	if addresses != "" {
		refused.content = addresses
	}
	return nil
}

// apply applies an object. It makes no request if the object in the cache is equal, or if the same write was just made
// and the cache does not show it yet.
func (w *objectWriter) apply(ctx context.Context, o resource.Object, want desired) error {
	c := w.clientFor(o)
	if c == nil {
		return nil
	}
	live := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	live.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if service, ok := o.(*corev1.Service); ok {
		has := &corev1.Service{}
		switch err := w.client.Get(ctx, resource.KeyOf(o), has); {
		case apierrors.IsNotFound(err):
		case err != nil || want.keepServices:
			return err
		default:
			o, _ = manifest.Fit(service, has)
		}
	}
	o = w.marked(o)
	patch, found, err := diff(ctx, c, o, live)
	if err != nil || patch == nil || w.pending.contains(o, patch) {
		return err
	}
	if found && !sameOwner(live, o) {
		return fmt.Errorf("apply %s: %w", describe(o), errOwnedByOther)
	}
	former := false
	if found && live.GetAnnotations()[appliedAnnotation] == "" {
		if former, err = takeFields(ctx, w.direct, o); err != nil {
			return err
		}
	}
	if d, ok := o.(*appsv1.Deployment); ok && found && (want.keepReplicas || former) && d.Spec.Replicas == nil {
		wrote, err := preserveReplicas(ctx, w.direct, resource.KeyOf(d))
		if err != nil {
			return err
		}
		if wrote {
			w.meters.countWrite(w.scheme, d, "apply")
		}
	}
	w.pending.add(o, patch)
	if d, ok := o.(*appsv1.Deployment); ok && found && !former {
		has := live.(*appsv1.Deployment)
		scaled := d.Spec.Replicas != nil && has.Spec.Replicas != nil && *has.Spec.Replicas != *d.Spec.Replicas
		// Without spec.replicas the number stays only as long as the scaler owns it.
		if scaled || d.Spec.Replicas == nil && scaleEntry(has.ManagedFields) != nil {
			patch.SetResourceVersion(live.GetResourceVersion()) // fails if the Deployment was scaled in the meantime
		}
	}
	if found {
		err = w.request(ctx, c, o, patch, true)
	} else {
		err = w.create(ctx, c, o, patch)
	}
	if err != nil {
		w.pending.remove(o)
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the watch of namespaces has not delivered the deletion yet
	}
	return err
}

// marked returns a copy of an object with installationAnnotation.
func (w *objectWriter) marked(o resource.Object) resource.Object {
	o = o.DeepCopyObject().(resource.Object)
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[installationAnnotation] = w.installation
	o.SetAnnotations(annotations)
	return o
}

// request applies a patch and counts the request.
func (w *objectWriter) request(
	ctx context.Context, c client.Client, o resource.Object, patch *unstructured.Unstructured, force bool,
) error {
	err := applyPatch(ctx, c, patch, force)
	w.meters.countWrite(w.scheme, o, "apply")
	return err
}

// noVersion is a resource version that no generated object has: in etcd, the first write of a new cluster gets a higher
// one. The API server ignores the version in a patch that creates an object, and answers 409 Conflict if the object
// exists.
const noVersion = "1"

// create applies the patch of an object that the cache does not contain. An object with its name may exist, because
// users create objects of these kinds too and the cache contains only those with the operator's label. Server-side
// apply would change such an object. Therefore the patch has noVersion, and the owner of the object is read from the
// API server only if it rejects the patch.
func (w *objectWriter) create(
	ctx context.Context, c client.Client, o resource.Object, patch *unstructured.Unstructured,
) error {
	force := !isKEDA(o)
	patch.SetResourceVersion(noVersion)
	err := w.request(ctx, c, o, patch, force)
	if !apierrors.IsConflict(err) && !apierrors.IsBadRequest(err) {
		return err
	}
	live, readErr := liveMetadata(ctx, w.direct, o)
	switch {
	case readErr != nil:
		return readErr
	case live != nil && !sameOwner(live, o):
		return fmt.Errorf("apply %s: %w", describe(o), errOwnedByOther)
	case live != nil:
		patch.SetResourceVersion(live.ResourceVersion)
	default: // deleted in the meantime, or the API server does not ignore the version
		patch.SetResourceVersion("")
	}
	return w.request(ctx, c, o, patch, force)
}

// sameOwner reports whether the operator may write a live object: either the same Gateway owns it as the wanted object,
// or no Gateway owns it and it has the operator's label.
func sameOwner(live, wanted client.Object) bool {
	owner, _ := ownerOf(wanted)
	if liveOwner, owned := ownerOf(live); owned {
		return liveOwner == owner
	}
	return live.GetLabels()[manifest.OwnedByLabel] == manifest.AppValue
}

// prune deletes the generated objects of a Gateway that are not in keep. If the replacement of an object is in failed,
// because it was not applied, the object is kept, so that calls continue.
func (w *objectWriter) prune(ctx context.Context, gateway types.NamespacedName, keep, failed []resource.Object) error {
	kept := map[objectID]bool{}
	for _, o := range keep {
		kept[idOf(o)] = true
	}
	var errs []error
	for _, like := range append(append(generatedKinds(), kedaKinds()...), &corev1.Service{}) {
		if slices.ContainsFunc(failed, func(o resource.Object) bool { return replaces(o, like) }) {
			continue
		}
		c := w.clientFor(like)
		if c == nil {
			continue
		}
		list, err := w.listOwned(ctx, c, like, gateway)
		errs = append(errs, err)
		for _, o := range list {
			if owner, ok := ownerOf(o); kept[idOf(o)] || !ok || owner.Name != gateway.Name ||
				o.GetDeletionTimestamp() != nil {
				continue
			}
			w.log.Info("delete", "object", describe(o), "gateway", gateway)
			w.meters.countWrite(w.scheme, o, "delete")
			w.pending.remove(o)
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID())})))
		}
	}
	return errors.Join(errs...)
}

// replaces reports whether object o can serve the calls of a Gateway instead of object former: both are Services, or
// both are workloads.
func replaces(o, former client.Object) bool {
	return isService(o) && isService(former) || isWorkload(o) && isWorkload(former)
}

// listOwned lists the objects of a kind that have the labels of a Gateway.
func (w *objectWriter) listOwned(
	ctx context.Context, c client.Reader, like client.Object, gateway types.NamespacedName,
) ([]client.Object, error) {
	gvks, _, err := w.scheme.ObjectKinds(like)
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	list, err := w.emptyList(gvks[0])
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", like, err)
	}
	err = c.List(ctx, list, client.InNamespace(gateway.Namespace), client.MatchingLabels{
		manifest.OwnedByLabel:            manifest.AppValue,
		resource.RelatedGatewayName:      gateway.Name,
		resource.RelatedGatewayNamespace: gateway.Namespace,
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gvks[0].Kind, err)
	}
	var found []client.Object
	err = meta.EachListItem(list, func(o runtime.Object) error {
		found = append(found, o.(client.Object))
		return nil
	})
	return found, err
}

func (w *objectWriter) emptyList(gvk schema.GroupVersionKind) (client.ObjectList, error) {
	gvk.Kind += "List"
	if gvk.Group == manifest.KEDA.Group {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		return list, nil
	}
	list, err := w.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	return list.(client.ObjectList), nil
}
