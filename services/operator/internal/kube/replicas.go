package kube

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// replicasManager is the field manager that owns spec.replicas after the operator has stopped setting it.
const replicasManager = fieldManager + "-replicas"

// preserveReplicas keeps the number of replicas of a Deployment when the operator stops setting spec.replicas.
// Otherwise the field would have no manager, and the API server would reset it to the default of 1, which ends the
// calls of all other pods. Therefore replicasManager applies the current value first. An autoscaler can take over the
// field later. preserveReplicas reports whether it wrote the Deployment.
func preserveReplicas(ctx context.Context, direct client.Client, key types.NamespacedName) (wrote bool, err error) {
	d := &appsv1.Deployment{}
	switch err := direct.Get(ctx, key, d); { // objects in the cache have no managed fields
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read Deployment %s: %w", key, err)
	}
	if d.Spec.Replicas == nil || !ownsReplicas(d.ManagedFields) {
		return false, nil
	}
	patch := &unstructured.Unstructured{
		Object: map[string]any{"spec": map[string]any{"replicas": int64(*d.Spec.Replicas)}},
	}
	patch.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	patch.SetNamespace(d.Namespace)
	patch.SetName(d.Name)
	patch.SetResourceVersion(d.ResourceVersion) // fails if the Deployment was scaled in the meantime
	err = direct.Apply(ctx, client.ApplyConfigurationFromUnstructured(patch), client.FieldOwner(replicasManager),
		client.ForceOwnership)
	if err != nil {
		return false, fmt.Errorf("keep replicas of Deployment %s: %w", key, err)
	}
	return true, nil
}

// ownsReplicas reports whether the operator is the only manager of spec.replicas.
func ownsReplicas(managed []metav1.ManagedFieldsEntry) (own bool) {
	for _, m := range managed {
		if !setsReplicas(m) {
			continue
		}
		if m.Manager != fieldManager || m.Operation != metav1.ManagedFieldsOperationApply {
			return false
		}
		own = true
	}
	return own
}
