package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// fieldManager is who the operator is to server-side apply.
const fieldManager = "stunner-operator"

// appliedAnnotation remembers what was applied, so that a field that is no longer wanted is noticed after a restart too.
const appliedAnnotation = "stunner.l7mp.io/applied"

// apply makes an object what it is wanted to be, and reports whether that took a write. live is what the cache has of it, empty if nothing.
func apply(ctx context.Context, c client.Client, wanted resource.Object, live client.Object) (bool, error) {
	form, err := formOf(wanted)
	if err != nil {
		return false, err
	}
	err = c.Get(ctx, resource.KeyOf(wanted), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read %s %s: %w", form.GetKind(), resource.KeyOf(wanted), err)
	}
	if err == nil {
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
		if err != nil {
			return false, fmt.Errorf("read %s %s: %w", form.GetKind(), resource.KeyOf(wanted), err)
		}
		if covers(is, plain(form.Object)) {
			return false, nil
		}
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(form), client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil {
		return true, fmt.Errorf("apply %s %s: %w", form.GetKind(), resource.KeyOf(wanted), err)
	}
	return true, nil
}

// formOf is an object as it is applied: its own fields only, with the mark of what they are.
func formOf(o resource.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", o, resource.KeyOf(o), err)
	}
	form := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(fields, "status")
	for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
		unstructured.RemoveNestedField(fields, append(path, "creationTimestamp")...)
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", o, resource.KeyOf(o), err)
	}
	sum := sha256.Sum256(encoded)
	annotations := form.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedAnnotation] = hex.EncodeToString(sum[:8])
	form.SetAnnotations(annotations)
	return form, nil
}

// plain leaves out what a typed object of a cache does not say of itself.
func plain(fields map[string]any) map[string]any {
	copied := make(map[string]any, len(fields))
	for k, v := range fields {
		if k != "apiVersion" && k != "kind" {
			copied[k] = v
		}
	}
	return copied
}

// covers tells whether everything that is wanted is there. What else is there belongs to somebody else, or is a default.
func covers(is, wanted any) bool {
	switch wanted := wanted.(type) {
	case nil: // a field that is written without a value
		return true
	case map[string]any:
		is, ok := is.(map[string]any)
		for k, v := range wanted {
			if !ok || !covers(is[k], v) {
				return false
			}
		}
		return ok || len(wanted) == 0
	case []any:
		is, ok := is.([]any)
		if !ok || len(is) != len(wanted) {
			return len(wanted) == 0 && len(is) == 0
		}
		for i, v := range wanted {
			if !covers(is[i], v) {
				return false
			}
		}
		return true
	}
	return is == wanted
}
