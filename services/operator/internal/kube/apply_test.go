package kube

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Live fields of other managers do not matter; a missing or different wanted field does.
func TestCovers(t *testing.T) {
	wanted := func() *appsv1.Deployment {
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: map[string]string{"app": "stunner"}},
		}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "stunnerd", Image: "one", Args: []string{"-w"}}}
		return d
	}
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"the same":          {func(*appsv1.Deployment) {}, true},
		"defaults":          {func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32(10)) }, true},
		"scaled by others":  {func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }, true},
		"another label":     {func(d *appsv1.Deployment) { d.Labels["team"] = "media" }, true},
		"our label gone":    {func(d *appsv1.Deployment) { delete(d.Labels, "app") }, false},
		"our label changed": {func(d *appsv1.Deployment) { d.Labels["app"] = "other" }, false},
		"another image":     {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "two" }, false},
		"an argument more": {
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Args = []string{"-w", "-v"} }, false,
		},
		"a container more": {func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{})
		}, false},
		"no containers":             {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers = nil }, false},
		"applied with another hash": {func(d *appsv1.Deployment) { d.Annotations[appliedAnnotation] = "older" }, false},
	} {
		patch, err := patchFor(wanted())
		if err != nil {
			t.Fatal(err)
		}
		live := wanted()
		live.Annotations = patch.GetAnnotations()
		c.change(live)
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
		if err != nil {
			t.Fatal(err)
		}
		if got := covers(is, withoutTypeMeta(patch.Object)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The API server normalizes values and drops empty fields. Equal meanings count as equal.
func TestCoversEquivalentValues(t *testing.T) {
	pod := func(cpu, memory string, port intstr.IntOrString, selector map[string]string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}
		d.Spec.Template.Spec.NodeSelector = selector
		d.Spec.Template.Spec.Containers = []corev1.Container{{
			Name: "stunnerd",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)},
			},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}},
			},
		}}
		return d
	}
	number, word := intstr.FromInt32(8086), intstr.FromString("health")
	for name, c := range map[string]struct {
		wanted, live *appsv1.Deployment
		want         bool
	}{
		"cpu as a fraction":      {pod("0.25", "20M", number, nil), pod("250m", "20M", number, nil), true},
		"memory as a number":     {pod("250m", "20000000", number, nil), pod("250m", "20M", number, nil), true},
		"memory in larger units": {pod("250m", "1024Mi", number, nil), pod("250m", "1Gi", number, nil), true},
		"other memory":           {pod("250m", "20Mi", number, nil), pod("250m", "20M", number, nil), false},
		"other cpu":              {pod("0.3", "20M", number, nil), pod("250m", "20M", number, nil), false},
		"a port by its name":     {pod("1", "20M", word, nil), pod("1", "20M", word, nil), true},
		"another port":           {pod("1", "20M", word, nil), pod("1", "20M", number, nil), false},
		"an empty map":           {pod("1", "20M", number, map[string]string{}), pod("1", "20M", number, nil), true},
		"a map that is gone": {
			pod("1", "20M", number, map[string]string{"a": "b"}), pod("1", "20M", number, nil), false,
		},
	} {
		patch, err := patchFor(c.wanted)
		if err != nil {
			t.Fatal(err)
		}
		c.live.Annotations = patch.GetAnnotations()
		encoded, err := json.Marshal(c.live)
		if err != nil {
			t.Fatal(err)
		}
		cached := &appsv1.Deployment{}
		if err := json.Unmarshal(encoded, cached); err != nil {
			t.Fatal(err)
		}
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
		if err != nil {
			t.Fatal(err)
		}
		if got := covers(is, withoutTypeMeta(patch.Object)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !covers(map[string]any{"replicas": int64(1)}, map[string]any{"replicas": nil, "paused": nil}) {
		t.Error("a field without a value is wanted to be something")
	}
}

// A removed field is detected because the hash of the applied object differs.
func TestApplyIsMarked(t *testing.T) {
	marks := map[string]string{}
	for name, labels := range map[string]map[string]string{
		"none": nil, "empty": {}, "one": {"team": "media"}, "another": {"team": "voice"},
	} {
		patch, err := patchFor(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
		marks[name] = patch.GetAnnotations()[appliedAnnotation]
	}
	if marks["none"] != marks["empty"] || marks["none"] == marks["one"] || marks["one"] == marks["another"] ||
		marks["one"] == "" {
		t.Errorf("marks %v", marks)
	}
}
