package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// fieldManager is the name under which the operator owns fields in server-side apply.
const fieldManager = "stunner-operator"

// appliedAnnotation holds a hash of the object that the operator applied last. If the hash of the wanted object
// differs, the object is applied again. Server-side apply then removes a field that the operator no longer sets, even
// after a restart of the operator.
const appliedAnnotation = "stunner.l7mp.io/applied"

// installationAnnotation holds the namespace of the operator that applied the object last.
const installationAnnotation = "stunner.l7mp.io/installation"

// diff reads the live object from the cache into live and compares it with the wanted object. It returns the apply
// configuration of the wanted object, or nil if the live object already has its fields and its hash. found reports
// whether the live object exists.
func diff(
	ctx context.Context, c client.Reader, wanted resource.Object, live client.Object,
) (patch *unstructured.Unstructured, found bool, err error) {
	patch, err = patchFor(wanted)
	if err != nil {
		return nil, false, err
	}
	switch err = c.Get(ctx, resource.KeyOf(wanted), live); {
	case apierrors.IsNotFound(err):
		return patch, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read %s %s: %w", patch.GetKind(), resource.KeyOf(wanted), err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(asCached(live))
	if err != nil {
		return nil, true, fmt.Errorf("read %s %s: %w", patch.GetKind(), resource.KeyOf(wanted), err)
	}
	like, err := patchWithoutHash(asCached(wanted))
	if err != nil {
		return nil, true, err
	}
	setAppliedHash(like, patch.GetAnnotations()[appliedAnnotation])
	if covers(fields, withoutTypeMeta(like.Object)) {
		return nil, true, nil
	}
	return patch, true, nil
}

// errOwnedByOther means that an object with the wanted name exists, but another Gateway or a user owns it.
var errOwnedByOther = errors.New(
	"it is there already and is not this Gateway's: delete it, or give one of the two another name")

// applyPatch applies a patch by server-side apply. Without force, a conflict with another field manager is an error.
func applyPatch(ctx context.Context, c client.Client, patch *unstructured.Unstructured, force bool) error {
	o := []client.ApplyOption{client.FieldOwner(fieldManager)}
	if force {
		o = append(o, client.ForceOwnership)
	}
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(patch), o...)
	switch name := client.ObjectKeyFromObject(patch); {
	case err == nil:
		return nil
	case !force && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return fmt.Errorf("apply %s %s: %w: %w", patch.GetKind(), name, errOwnedByOther, err)
	default:
		return fmt.Errorf("apply %s %s: %w", patch.GetKind(), name, err)
	}
}

// patchFor returns the apply configuration of an object: the fields that the operator sets, with their hash in
// appliedAnnotation.
func patchFor(o resource.Object) (*unstructured.Unstructured, error) {
	patch, err := patchWithoutHash(o)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(patch.Object)
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", o, resource.KeyOf(o), err)
	}
	sum := sha256.Sum256(encoded)
	setAppliedHash(patch, hex.EncodeToString(sum[:8]))
	return patch, nil
}

// patchWithoutHash returns the apply configuration of an object, without appliedAnnotation.
func patchWithoutHash(o resource.Object) (*unstructured.Unstructured, error) {
	// For an unstructured object the converter returns the map of the object, which must not be modified.
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.DeepCopyObject())
	if err != nil {
		return nil, fmt.Errorf("convert %T %s: %w", o, resource.KeyOf(o), err)
	}
	patch := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(fields, "status")
	for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
		unstructured.RemoveNestedField(fields, append(path, "creationTimestamp")...)
	}
	return patch, nil
}

func setAppliedHash(patch *unstructured.Unstructured, as string) {
	annotations := patch.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedAnnotation] = as
	patch.SetAnnotations(annotations)
}

// withoutTypeMeta returns a copy of an object's fields without apiVersion and kind, which typed objects in the cache do
// not have.
func withoutTypeMeta(fields map[string]any) map[string]any {
	copied := maps.Clone(fields)
	delete(copied, "apiVersion")
	delete(copied, "kind")
	return copied
}

// covers reports whether the live object contains every wanted field with its value. Other live fields are ignored,
// because they are defaults or belong to other field managers.
func covers(live, wanted any) bool {
	switch wanted := wanted.(type) {
	case nil: // an empty wanted field matches a missing live field
		return true
	case map[string]any:
		live, ok := live.(map[string]any)
		for k, v := range wanted {
			if !ok || !covers(live[k], v) {
				return false
			}
		}
		return ok || len(wanted) == 0
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) != len(wanted) {
			return len(wanted) == 0 && len(live) == 0
		}
		for i, v := range wanted {
			if !covers(live[i], v) {
				return false
			}
		}
		return true
	}
	return live == wanted
}
