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

// replicasManager is who holds a number of pods that the operator has said and says no more.
const replicasManager = fieldManager + "-replicas"

// leaveReplicas keeps the number of a Deployment's pods before the operator stops to say it. Of a field that nobody says any more the API server makes
// the default, which is 1 here, and would end the calls in all other pods. So another manager says the same number first; whoever scales takes it
// over from that one.
func (w *writer) leaveReplicas(ctx context.Context, key types.NamespacedName) error {
	d := &appsv1.Deployment{}
	switch err := w.direct.Get(ctx, key, d); { // the cache does not hold managed fields
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read Deployment %s: %w", key, err)
	}
	if d.Spec.Replicas == nil || !ownsReplicas(d.ManagedFields) {
		return nil
	}
	patch := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(*d.Spec.Replicas)}}}
	patch.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	patch.SetNamespace(d.Namespace)
	patch.SetName(d.Name)
	patch.SetResourceVersion(d.ResourceVersion) // if somebody has scaled meanwhile, it is not ours to say
	err := w.direct.Apply(ctx, client.ApplyConfigurationFromUnstructured(patch), client.FieldOwner(replicasManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("leave replicas of Deployment %s: %w", key, err)
	}
	w.count(d, "apply")
	return nil
}

// ownsReplicas tells whether the operator says the number of pods, and nobody else does.
func ownsReplicas(managed []metav1.ManagedFieldsEntry) (own bool) {
	for _, m := range managed {
		var fields struct {
			Spec struct {
				Replicas *struct{} `json:"f:replicas"`
			} `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil || fields.Spec.Replicas == nil {
			continue
		}
		if m.Manager != fieldManager || m.Operation != metav1.ManagedFieldsOperationApply {
			return false
		}
		own = true
	}
	return own
}
