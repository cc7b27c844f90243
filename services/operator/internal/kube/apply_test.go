package kube

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What others have added is none of our business; what we want and is not there is.
func TestCovers(t *testing.T) {
	wanted := func() *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: map[string]string{"app": "stunner"}}}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "stunnerd", Image: "one", Args: []string{"-w"}}}
		return d
	}
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"the same":           {func(*appsv1.Deployment) {}, true},
		"defaults":           {func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32(10)) }, true},
		"scaled by somebody": {func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }, true},
		"another label":      {func(d *appsv1.Deployment) { d.Labels["team"] = "media" }, true},
		"our label gone":     {func(d *appsv1.Deployment) { delete(d.Labels, "app") }, false},
		"our label changed":  {func(d *appsv1.Deployment) { d.Labels["app"] = "other" }, false},
		"another image":      {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "two" }, false},
		"an argument more":   {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Args = []string{"-w", "-v"} }, false},
		"a container more": {func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{})
		}, false},
		"no containers":           {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers = nil }, false},
		"applied in another form": {func(d *appsv1.Deployment) { d.Annotations[appliedAnnotation] = "older" }, false},
	} {
		form, err := formOf(wanted())
		if err != nil {
			t.Fatal(err)
		}
		live := wanted()
		live.Annotations = form.GetAnnotations()
		c.change(live)
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
		if err != nil {
			t.Fatal(err)
		}
		if got := covers(is, plain(form.Object)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
