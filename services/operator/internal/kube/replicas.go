package kube

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// replicasManager is the field manager that takes over spec.replicas when the operator stops setting it.
const replicasManager = fieldManager + "-replicas"

// preserveReplicas keeps spec.replicas of a Deployment before the operator stops applying it, and reports whether it
// wrote. The API server defaults a field without a manager, which would scale the Deployment to 1 and end the calls of
// all other pods. Therefore replicasManager applies the same number first; an autoscaler takes the field over from it.
func preserveReplicas(ctx context.Context, direct client.Client, key types.NamespacedName) (wrote bool, err error) {
	d := &appsv1.Deployment{}
	switch err := direct.Get(ctx, key, d); { // the cache does not hold managed fields
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
		var fields struct {
			Spec struct {
				Replicas *struct{} `json:"f:replicas"`
			} `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil ||
			fields.Spec.Replicas == nil {
			continue
		}
		if m.Manager != fieldManager || m.Operation != metav1.ManagedFieldsOperationApply {
			return false
		}
		own = true
	}
	return own
}
