package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// The operator takes over the generated objects of an operator that writes with update requests, such as the operator
// of the existing STUNner. It recognizes these objects because they lack appliedAnnotation:
//
//   - Before the first apply, takeFields makes fieldManager the owner of the fields that the former operator set.
//     Otherwise the API server would keep the fields that this operator does not set, and would combine them
//     with the fields that this operator sets.
//   - A workload is not applied before the Gateway permits it, see translate.Result.TakeOver, because the new pod
//     template replaces all pods. Until then, waitingWorkload returns the workload.

// takeFields makes fieldManager the owner of all fields of a live object that another operator owns. It reports whether
// there were such fields.
func takeFields(ctx context.Context, direct client.Client, o resource.Object) (took bool, err error) {
	live, err := liveMetadata(ctx, direct, o)
	if err != nil || live == nil {
		return false, err
	}
	former := sets.New[string]()
	for _, m := range live.ManagedFields {
		if isFormer(m) {
			former.Insert(m.Manager)
		}
	}
	if former.Len() == 0 {
		return false, nil
	}
	before := live.DeepCopy()
	if err = csaupgrade.UpgradeManagedFields(live, former, fieldManager); err == nil {
		// The admission policy of the operator requires that an owner reference names the Gateway as controller of the
		// object. References to other owners stay.
		for _, owner := range o.GetOwnerReferences() {
			sameUID := func(r metav1.OwnerReference) bool { return r.UID == owner.UID }
			live.OwnerReferences = append(slices.DeleteFunc(live.OwnerReferences, sameUID), owner)
		}
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		err = direct.Patch(ctx, live, patch, client.FieldOwner(fieldManager))
	}
	if err != nil {
		return false, fmt.Errorf("take over the fields of %s: %w", describe(o), err)
	}
	return true, nil
}

// formerManager is the field manager of the operator of the existing STUNner.
const formerManager = "manager"

// isFormer reports whether an entry of the managed fields belongs to a former operator: its manager is formerManager,
// or it contains the label OwnedByLabel. Only an operator that writes whole generated objects owns this label; a user
// or tool that changes single fields does not.
func isFormer(m metav1.ManagedFieldsEntry) bool {
	if m.Operation != metav1.ManagedFieldsOperationUpdate || m.Subresource != "" {
		return false
	}
	var fields struct {
		Metadata struct {
			Labels map[string]any `json:"f:labels"`
		} `json:"f:metadata"`
	}
	if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}
	_, owns := fields.Metadata.Labels["f:"+manifest.OwnedByLabel]
	return owns || m.Manager == formerManager
}

// waitingWorkload returns the workload of a Gateway that a former operator created and that must not be applied yet,
// because the Gateway does not permit it; nil if there is no such workload.
func (w *objectWriter) waitingWorkload(
	ctx context.Context, gateway types.NamespacedName, want desired,
) (client.Object, error) {
	i := slices.IndexFunc(want.objects, func(o resource.Object) bool { return isWorkload(o) })
	if want.takeOver || i < 0 {
		return nil, nil
	}
	live := want.objects[i].DeepCopyObject().(client.Object)
	err := w.client.Get(ctx, resource.KeyOf(live), live)
	if err == nil && live.GetAnnotations()[appliedAnnotation] != "" {
		return nil, nil
	}
	for _, like := range []client.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}} {
		list, err := w.listOwned(ctx, w.client, like, gateway)
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			owner, owned := ownerOf(o)
			if o.GetAnnotations()[appliedAnnotation] != "" || !owned || owner.Name != gateway.Name {
				continue
			}
			gvk, err := apiutil.GVKForObject(o, w.scheme)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", describe(o), err)
			}
			o.GetObjectKind().SetGroupVersionKind(gvk)
			live, err := liveMetadata(ctx, w.direct, o)
			if err != nil || live != nil && waits(live.ManagedFields) {
				return o, err
			}
		}
	}
	return nil, nil
}

// waits reports whether a workload without appliedAnnotation waits for a permission, according to its managed fields:
// this operator has never applied the workload, or a former operator has written it since, after a roll back. If only a
// user removed the annotation, the workload does not wait.
func waits(managed []metav1.ManagedFieldsEntry) bool {
	applied := slices.ContainsFunc(managed, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == fieldManager && m.Operation == metav1.ManagedFieldsOperationApply
	})
	return !applied || slices.ContainsFunc(managed, isFormer)
}

// liveMetadata reads the metadata of an object from the API server, because objects in the cache have no managed
// fields. It returns nil if the object does not exist.
func liveMetadata(
	ctx context.Context, direct client.Client, o resource.Object,
) (*metav1.PartialObjectMetadata, error) {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	switch err := direct.Get(ctx, resource.KeyOf(o), live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", describe(o), err)
	}
	return live, nil
}
