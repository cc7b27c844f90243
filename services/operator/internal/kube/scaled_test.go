package kube

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A field manager that has used the scale subresource keeps its number, unless the number of the Dataplane has changed
// since. Trimming an object, once or twice, keeps the fields that show both.
func TestScalerOf(t *testing.T) {
	entry := func(subresource, fields string) metav1.ManagedFieldsEntry {
		raw := &metav1.FieldsV1{}
		raw.SetRawBytes([]byte(fields))
		return metav1.ManagedFieldsEntry{
			Manager: "autoscaler", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource, FieldsV1: raw,
		}
	}
	const replicas = `{"f:spec":{"f:replicas":{},"f:paused":{}}}`
	edited, scaled := entry("", replicas), entry("scale", replicas)
	for name, row := range map[string]struct {
		last, number string // replicasAnnotation of the live Deployment, and its wanted value
		managed      []metav1.ManagedFieldsEntry
		want         string
	}{
		"nothing else scales":          {"2", "2", nil, ""},
		"another manager edits":        {"2", "2", []metav1.ManagedFieldsEntry{edited}, ""},
		"another field by scale":       {"2", "2", []metav1.ManagedFieldsEntry{entry("scale", `{"f:spec":{}}`)}, ""},
		"scaled":                       {"2", "2", []metav1.ManagedFieldsEntry{edited, scaled}, "autoscaler"},
		"scaled before the annotation": {"", "2", []metav1.ManagedFieldsEntry{scaled}, "autoscaler"},
		"scaled, then changed":         {"2", "3", []metav1.ManagedFieldsEntry{scaled}, ""},
		"scaled while unset, then set": {unsetReplicas, "3", []metav1.ManagedFieldsEntry{scaled}, ""},
	} {
		live := newEdge(t).objects(deployment())[1].(*appsv1.Deployment)
		live.ManagedFields, live.Annotations = row.managed, map[string]string{}
		if row.last != "" {
			live.Annotations[replicasAnnotation] = row.last
		}
		for _, times := range []string{"not trimmed", "trimmed", "trimmed twice"} {
			if got := scalerOf(live, row.number); got != row.want {
				t.Errorf("%s, %s: scaled by %q, want %q", name, times, got, row.want)
			}
			if _, err := trimForCache(live); err != nil {
				t.Fatal(err)
			}
		}
	}
}
