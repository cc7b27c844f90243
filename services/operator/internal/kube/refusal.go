package kube

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// refusals are what the API server has against the objects of a unit: against the first of those that serve, and of those that scale what serves; and
// against the external addresses of one that serves without them.
type refusals struct{ serving, scaling, externalIPs refusal }

// note takes over what came of writing an object.
func (r *refusals) note(o resource.Object, err error) {
	about := &r.serving
	if isScaling(o) {
		about = &r.scaling
	}
	switch {
	case err == nil || about.Problem != "":
	case refused(err):
		*about = refusalOf(o, err)
	default:
		about.unsure = true
	}
}

// refusal is what the API server has against an object, and what it was asked for.
type refusal struct {
	resource.Refused
	applied string
	reason  metav1.StatusReason
	// unsure says that it is not known, because something else has failed.
	unsure bool
}

// orStill is the refusal that there was before, where what failed may have to do with that one.
func (r refusal) orStill(before refusal, failed error) refusal {
	if r.Problem == "" && (r.unsure || failed != nil) {
		return before
	}
	return r
}

// refused tells whether an error is the last word of the API server, or of a webhook that it asks: it does not take the object, and will not until
// somebody changes something.
func refused(err error) bool {
	return errors.Is(err, errForeign) || unreadable(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// unreadable tells whether an API server cannot make an object of what is applied, because a list has two entries of one key, for one. It calls that a
// fault of its own, and has no other word for it than these.
func unreadable(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && strings.HasPrefix(status.Status().Message, "failed to create typed patch object")
}

func refusalOf(o resource.Object, err error) refusal {
	r := refusal{reason: apierrors.ReasonForError(err)}
	said := err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Message != "" {
		said = status.Status().Message
	}
	if errors.Is(err, errForeign) {
		said = errForeign.Error()
	}
	r.Object, r.Problem = o.GetObjectKind().GroupVersionKind().Kind+" "+resource.KeyOf(o).String(), plainText(said, eventText)
	if form, err := formOf(o); err == nil {
		r.applied = form.GetAnnotations()[appliedAnnotation]
	}
	return r
}

// isLike tells whether the same was refused for the same. Its first words count: others may have a time or a number in them, and no status is to
// follow those.
func (r refusal) isLike(other refusal) bool {
	return r.Object == other.Object && r.applied == other.applied && r.reason == other.reason
}

// state is what the loop is told.
func (r refusals) state() resource.RefusalState {
	return resource.RefusalState{Serving: r.serving.Refused, Scaling: r.scaling.Refused, ExternalIPs: r.externalIPs.Refused}
}

// remember tells the loop of refusals, or that there are none any more, if that is news. It needs the lock.
func (w *writer) remember(u translate.ObjectRef, r refusals) (news bool) {
	old := w.refusals[u]
	if r.serving.isLike(old.serving) {
		r.serving = old.serving
	}
	if r.scaling.isLike(old.scaling) {
		r.scaling = old.scaling
	}
	if r.externalIPs.isLike(old.externalIPs) {
		r.externalIPs = old.externalIPs
	}
	if w.refusals[u] = r; r == (refusals{}) {
		delete(w.refusals, u)
	}
	state := r.state()
	if state == old.state() {
		return false
	}
	about := &resource.Refusal{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}, RefusalState: state}
	w.inbox.put(change{object: about, gone: r == (refusals{})})
	return true
}
