package kube

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// rejections are the objects of a Gateway that are not written: those that the API server rejected, and formerWorkload,
// which waits for a permission, see waitingWorkload. serving is the first one without which calls
// cannot be served, scaling the first one of KEDA, and externalIPs a Service that was applied without its externalIPs.
type rejections struct {
	serving, scaling, externalIPs rejection
	formerWorkload                string
}

// note records the result of applying an object.
func (r *rejections) note(o resource.Object, err error) {
	about := &r.serving
	if isKEDA(o) {
		about = &r.scaling
	}
	switch {
	case err == nil || about.Problem != "":
	case isRejected(err):
		*about = newRejection(o, err)
	default:
		about.unknown = true
	}
}

// orBefore returns r, but takes a rejection from before if it is unknown because a write or a deletion failed. swept is
// the error of the deletions, failed that of all requests.
func (r rejections) orBefore(before rejections, swept, failed error) rejections {
	return rejections{
		serving:     r.serving.orBefore(before.serving, swept),
		scaling:     r.scaling.orBefore(before.scaling, swept),
		externalIPs: r.externalIPs.orBefore(before.externalIPs, failed),

		formerWorkload: r.formerWorkload,
	}
}

// rejection is one rejected object.
type rejection struct {
	resource.Refused
	// applied identifies the rejected content: the hash in appliedAnnotation, or the externalIPs.
	applied string
	reason  metav1.StatusReason
	// unknown means that the object was not rejected, but the request failed for another reason, so it may still be
	// rejected.
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
	r.Object, r.Problem = describe(o), printable(problem, maxEventText)
	if patch, err := patchFor(o); err == nil {
		r.applied = patch.GetAnnotations()[appliedAnnotation]
	}
	return r
}

func (r rejection) orBefore(before rejection, failed error) rejection {
	if r.Problem == "" && (r.unknown || failed != nil) {
		return before
	}
	return r
}

// orLike returns the old rejection if it concerns the same content of the same object and has the same reason. The
// message is not compared: it may contain a time or a counter, and each new message would cause a status write.
func (r rejection) orLike(old rejection) rejection {
	if r.Object == old.Object && r.applied == old.applied && r.reason == old.reason {
		return old
	}
	return r
}

// isRejected reports whether an error means that the API server or an admission webhook rejects the object. A retry
// fails until the object, a policy or a right changes.
func isRejected(err error) bool {
	return errors.Is(err, errOwnedByOther) || isPatchTypeError(err) || apierrors.IsInvalid(err) ||
		apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// isPatchTypeError reports whether the API server could not parse the applied object, for example because a list has
// two entries with the same key. The API server returns status 500 for it, so it can only be recognized by its message.
func isPatchTypeError(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && strings.HasPrefix(status.Status().Message, "failed to create typed patch object")
}

// rejectionStore holds the current rejections and sends changes of them to the loop. The lock of the writer guards it.
type rejectionStore struct {
	inbox *inbox
	of    map[translate.ObjectRef]rejections
}

// set stores the rejections of an object. If they differ from the previous ones, it sends them to the loop and returns
// true.
func (s *rejectionStore) set(ref translate.ObjectRef, r rejections) (changed bool) {
	old := s.of[ref]
	r.serving = r.serving.orLike(old.serving)
	r.scaling = r.scaling.orLike(old.scaling)
	r.externalIPs = r.externalIPs.orLike(old.externalIPs)
	if s.of[ref] = r; r == (rejections{}) {
		delete(s.of, ref)
	}
	state := r.state()
	if state == old.state() {
		return false
	}
	o := &resource.Refusal{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}, RefusalState: state}
	s.inbox.put(objectChange{object: o, deleted: r == (rejections{})})
	return true
}

// state returns the rejections in the form in which translations read them.
func (r rejections) state() resource.RefusalState {
	return resource.RefusalState{
		Serving: r.serving.Refused, Scaling: r.scaling.Refused, ExternalIPs: r.externalIPs.Refused,
		FormerWorkload: r.formerWorkload,
	}
}
