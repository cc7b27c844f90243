package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	strictjson "sigs.k8s.io/json"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// patched applies spec.podTemplatePatch to a pod template. It returns an error if the result does not have the fields
// of a pod template, or if the patch changes the labels that select the pods, removes the dataplane container, or sets
// metadata other than labels and annotations.
func patched(pod corev1.PodTemplateSpec, patch *runtime.RawExtension) (corev1.PodTemplateSpec, error) {
	if patch == nil || len(patch.Raw) == 0 {
		return pod, nil
	}
	before, err := json.Marshal(pod)
	if err != nil {
		return pod, fmt.Errorf("encode pod template: %w", err)
	}
	after, err := merge(before, patch.Raw)
	if err != nil {
		return pod, fmt.Errorf("is no strategic merge patch of a pod template: %w", err)
	}
	var result corev1.PodTemplateSpec
	strict, err := strictjson.UnmarshalStrict(after, &result)
	if err = errors.Join(append(strict, err)...); err != nil {
		return pod, fmt.Errorf("does not make a pod template: %w", err)
	}
	// The strategic merge puts new containers first. The dataplane container must stay first, because kubectl logs and
	// exec use the first container by default.
	slices.SortStableFunc(result.Spec.Containers, func(a, b corev1.Container) int { return position(a) - position(b) })
	return result, checkPatched(pod, result)
}

// merge applies a strategic merge patch to a pod template. The library panics if the key of an element, such as the
// name of a container, is a list or an object.
func merge(template, patch []byte) (merged []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the name or key of an element is no text: %v", v)
		}
	}()
	return strategicpatch.StrategicMergePatch(template, patch, corev1.PodTemplateSpec{})
}

func position(c corev1.Container) int {
	if c.Name == ContainerName {
		return 0
	}
	return 1
}

// CheckPatch returns the error that spec.podTemplatePatch would cause for any Gateway.
func CheckPatch(template *stunnerv1.Dataplane) error {
	_, err := patched(Workload{Template: template}.pod(Owner{}), template.Spec.PodTemplatePatch)
	return err
}

// checkPatched checks that a patch keeps the labels of the pods and the dataplane container, and sets no other
// metadata.
func checkPatched(before, after corev1.PodTemplateSpec) error {
	for _, label := range slices.Sorted(maps.Keys(Owner{}.podLabels())) {
		if after.Labels[label] != before.Labels[label] {
			return finding.Errorf("leave it out", "changes label %s, by which Services find the pods", label)
		}
	}
	rest := after.ObjectMeta
	rest.Labels, rest.Annotations = nil, nil
	if !reflect.DeepEqual(rest, metav1.ObjectMeta{}) {
		return finding.Errorf("leave it out", "sets other metadata than labels and annotations")
	}
	if !slices.ContainsFunc(after.Spec.Containers, func(c corev1.Container) bool { return c.Name == ContainerName }) {
		return finding.Errorf("leave it in", "takes container %s away", ContainerName)
	}
	return nil
}
