package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// replicasAnnotation holds, on a Deployment, spec.replicas of the Dataplane as the operator read it last, or
// unsetReplicas. A number that differs from it was changed in the Dataplane, and takes effect even if another field
// manager has scaled the Deployment in the meantime.
const (
	replicasAnnotation = "stunner.l7mp.io/replicas"
	unsetReplicas      = "unset"
)

// withReplicas returns a copy of a wanted Deployment with replicasAnnotation. It removes spec.replicas if another field
// manager, such as a HorizontalPodAutoscaler, has set the field through the scale subresource after the last change of
// the number in the Dataplane. The operator and the autoscaler would otherwise revert each other. scaledBy is the name
// of that field manager. Other objects are returned as they are.
func (w *objectWriter) withReplicas(
	ctx context.Context, o resource.Object,
) (wanted resource.Object, scaledBy string, err error) {
	d, ok := o.(*appsv1.Deployment)
	if !ok {
		return o, "", nil
	}
	d = d.DeepCopy()
	number := unsetReplicas
	if d.Spec.Replicas != nil {
		number = strconv.Itoa(int(*d.Spec.Replicas))
	}
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[replicasAnnotation] = number
	if d.Spec.Replicas == nil {
		return d, "", nil
	}
	live := &appsv1.Deployment{}
	switch err := w.client.Get(ctx, resource.KeyOf(d), live); {
	case apierrors.IsNotFound(err):
		return d, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("read Deployment %s: %w", resource.KeyOf(d), err)
	}
	if scaledBy = scalerOf(live, number); scaledBy != "" {
		d.Spec.Replicas = nil
	}
	return d, scaledBy, nil
}

// scalerOf returns the field manager that has set spec.replicas of a live Deployment through the scale subresource, or
// "" if the number of the Dataplane was changed since. A Deployment without replicasAnnotation was applied by an
// earlier version of the operator.
func scalerOf(live *appsv1.Deployment, number string) string {
	last, known := live.Annotations[replicasAnnotation]
	if m := scaleEntry(live.ManagedFields); m != nil && (!known || last == number) {
		return m.Manager
	}
	return ""
}

// scaleEntry returns the entry of a field manager that owns spec.replicas through the scale subresource, or nil.
func scaleEntry(managed []metav1.ManagedFieldsEntry) *metav1.ManagedFieldsEntry {
	for i, m := range managed {
		if m.Subresource == "scale" && setsReplicas(m) {
			return &managed[i]
		}
	}
	return nil
}

// setsReplicas reports whether an entry of the managed fields contains spec.replicas.
func setsReplicas(m metav1.ManagedFieldsEntry) bool {
	var fields struct {
		Spec struct {
			Replicas *struct{} `json:"f:replicas"`
		} `json:"f:spec"`
	}
	return m.FieldsV1 != nil && json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec.Replicas != nil
}

// trimmedScaleEntry returns the managed fields that withReplicas needs: the entry of scaleEntry, reduced to
// spec.replicas.
func trimmedScaleEntry(managed []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	m := scaleEntry(managed)
	if m == nil {
		return nil
	}
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes([]byte(`{"f:spec":{"f:replicas":{}}}`))
	return []metav1.ManagedFieldsEntry{{
		Manager: m.Manager, Operation: m.Operation, Subresource: m.Subresource, FieldsV1: fields,
	}}
}
