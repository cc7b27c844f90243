package kube

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// rejections are what the API server has against the objects of a unit: against the first of those that serve, and of those that scale what serves; and
// against the external addresses of one that serves without them.
type rejections struct{ serving, scaling, externalIPs rejection }

// note takes over what came of writing an object.
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
		about.unsure = true
	}
}

// rejection is what the API server has against an object, and what it was asked for.
type rejection struct {
	resource.Refused
	applied string
	reason  metav1.StatusReason
	// unsure says that it is not known, because something else has failed.
	unsure bool
}

// orStill is the rejection that there was before, where what failed may have to do with that one.
func (r rejection) orStill(before rejection, failed error) rejection {
	if r.Problem == "" && (r.unsure || failed != nil) {
		return before
	}
	return r
}

// refused tells whether an error is the last word of the API server, or of a webhook that it asks: it does not take the object, and will not until
// somebody changes something.
func isRejected(err error) bool {
	return errors.Is(err, errOwnedByOther) || isPatchTypeError(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// unreadable tells whether an API server cannot make an object of what is applied, because a list has two entries of one key, for one. It calls that a
// fault of its own, and has no other word for it than these.
func isPatchTypeError(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && strings.HasPrefix(status.Status().Message, "failed to create typed patch object")
}

func newRejection(o resource.Object, err error) rejection {
	r := rejection{reason: apierrors.ReasonForError(err)}
	said := err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Message != "" {
		said = status.Status().Message
	}
	if errors.Is(err, errOwnedByOther) {
		said = errOwnedByOther.Error()
	}
	r.Object, r.Problem = o.GetObjectKind().GroupVersionKind().Kind+" "+resource.KeyOf(o).String(), printable(said, eventText)
	if patch, err := patchFor(o); err == nil {
		r.applied = patch.GetAnnotations()[appliedAnnotation]
	}
	return r
}

// isLike tells whether the same was refused for the same. Its first words count: others may have a time or a number in them, and no status is to
// follow those.
func (r rejection) isLike(other rejection) bool {
	return r.Object == other.Object && r.applied == other.applied && r.reason == other.reason
}

// state is what the loop is told.
func (r rejections) state() resource.RefusalState {
	return resource.RefusalState{Serving: r.serving.Refused, Scaling: r.scaling.Refused, ExternalIPs: r.externalIPs.Refused}
}

// remember tells the loop of rejections, or that there are none any more, if that is news. It needs the lock.
func (w *writer) remember(u translate.ObjectRef, r rejections) (news bool) {
	old := w.rejections[u]
	if r.serving.isLike(old.serving) {
		r.serving = old.serving
	}
	if r.scaling.isLike(old.scaling) {
		r.scaling = old.scaling
	}
	if r.externalIPs.isLike(old.externalIPs) {
		r.externalIPs = old.externalIPs
	}
	if w.rejections[u] = r; r == (rejections{}) {
		delete(w.rejections, u)
	}
	state := r.state()
	if state == old.state() {
		return false
	}
	about := &resource.Refusal{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}, RefusalState: state}
	w.inbox.put(objectChange{object: about, deleted: r == (rejections{})})
	return true
}
