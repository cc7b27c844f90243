package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// rejections are the objects of a Gateway that were not written because the API server rejected them. serving is the
// first rejected object that is not of a KEDA kind, scaling the first rejected KEDA object, and externalIPs a Service
// that was applied without its externalIPs. formerWorkload is a workload that is not rejected, but must not be replaced
// without a permission, see waitingWorkload. scaledBy is the field manager that has scaled the Deployment, see
// withReplicas.
type rejections struct {
	serving, scaling, externalIPs, offload rejection
	formerWorkload, scaledBy               string
}

// note records the result of applying an object.
func (r *rejections) note(o resource.Object, err error) {
	about := &r.serving
	if isKEDA(o) {
		about = &r.scaling
	}
	switch {
	case err == nil || about.Problem != "":
	case isRejected(err) || serverError(err) != 0:
		*about = newRejection(o, err)
	default:
		about.unknown = true
	}
}

// keepUnknown returns r with some rejections replaced by those in before: if a write or a deletion failed for another
// reason, it is unknown whether the object is still rejected. deleteErr is the error of the deletions, and failed is
// the error of all requests.
func (r rejections) keepUnknown(before rejections, deleteErr, failed error) rejections {
	return rejections{
		serving:     r.serving.keepUnknown(before.serving, deleteErr),
		scaling:     r.scaling.keepUnknown(before.scaling, deleteErr),
		externalIPs: r.externalIPs.keepUnknown(before.externalIPs, failed),
		offload:     r.offload.keepUnknown(before.offload, failed),

		formerWorkload: r.formerWorkload, scaledBy: r.scaledBy,
	}
}

type rejection struct {
	resource.RejectedObject
	// content identifies the rejected content of the object: the hash in appliedAnnotation, or the externalIPs.
	content string
	reason  metav1.StatusReason
	// unknown means that the API server did not reject the object, but the request failed for another reason. The
	// object may still be rejected when the request is repeated.
	unknown bool
}

func newRejection(o resource.Object, err error) rejection {
	r := rejection{reason: apierrors.ReasonForError(err)}
	problem := err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Message != "" {
		problem = status.Status().Message
	}
	if errors.Is(err, errOwnedByOther) {
		problem = errOwnedByOther.Error()
	}
	if code := serverError(err); code != 0 {
		problem = fmt.Sprintf("status %d, the request is repeated: %s", code, problem)
	}
	r.Object, r.Problem = describe(o), printable(problem, maxEventText)
	if patch, err := patchFor(o); err == nil {
		r.content = patch.GetAnnotations()[appliedAnnotation]
	}
	return r
}

func (r rejection) keepUnknown(before rejection, failed error) rejection {
	if r.Problem == "" && (r.unknown || failed != nil) {
		return before
	}
	return r
}

// orLike returns the old rejection if it concerns the same content of the same object and has the same reason. The
// message is not compared, because it may contain a time or a counter, and each new message would cause a status write.
func (r rejection) orLike(old rejection) rejection {
	if r.Object == old.Object && r.content == old.content && r.reason == old.reason {
		return old
	}
	return r
}

// isRejected reports whether an error means that the API server or an admission webhook rejects an object, or that the
// object has another owner. A retry fails until the object, an admission policy or the operator's RBAC rights change.
func isRejected(err error) bool {
	return errors.Is(err, errOwnedByOther) || isPatchTypeError(err) || apierrors.IsInvalid(err) ||
		apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// serverError returns the status code of an error of the API server itself, or of a webhook that it calls; 0 for any
// other error. The request is repeated, but the status of the Gateway must name the error while it lasts.
func serverError(err error) int {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Code < http.StatusInternalServerError || isRejected(err) {
		return 0
	}
	return int(status.Status().Code)
}

// isPatchTypeError reports whether the API server could not parse the applied object, for example because a list has
// two entries with the same key. The API server returns status 500 for it, so it can only be recognized by its message.
func isPatchTypeError(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && strings.HasPrefix(status.Status().Message, "failed to create typed patch object")
}

// rejectionStore holds the current rejections of all objects and sends changes of the rejections to the translation
// loop. The lock of the writer guards it.
type rejectionStore struct {
	inbox *inbox
	of    map[translate.ObjectRef]rejections
}

// set stores the rejections of an object. If they differ from the previous rejections, set sends them to the
// translation loop and returns true.
func (s *rejectionStore) set(ref translate.ObjectRef, r rejections) (changed bool) {
	old := s.of[ref]
	r.serving = r.serving.orLike(old.serving)
	r.scaling = r.scaling.orLike(old.scaling)
	r.externalIPs = r.externalIPs.orLike(old.externalIPs)
	r.offload = r.offload.orLike(old.offload)
	if s.of[ref] = r; r == (rejections{}) {
		delete(s.of, ref)
	}
	state := r.state()
	if state == old.state() {
		return false
	}
	meta := metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}
	o := &resource.Rejection{ObjectMeta: meta, RejectionState: state}
	s.inbox.put(objectChange{object: o, deleted: r == (rejections{})})
	return true
}

// state returns the rejections in the form in which translations read them.
func (r rejections) state() resource.RejectionState {
	return resource.RejectionState{
		Serving: r.serving.RejectedObject, Scaling: r.scaling.RejectedObject, ExternalIPs: r.externalIPs.RejectedObject,
		Offload: r.offload.RejectedObject, FormerWorkload: r.formerWorkload, ScaledBy: r.scaledBy,
	}
}
