package kube

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// A rejection is sent to the loop once, with the message of the API server, until the object is accepted; other errors
// are not sent. The status is written by the translation that follows.
func TestRejectionsAreSentToTheLoop(t *testing.T) {
	e := newEdge(t)
	invalid := func(words string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: words}}
	}
	taken := func(words string) *resource.RejectionState {
		return &resource.RejectionState{Serving: resource.RejectedObject{Object: "Service media/edge", Problem: words}}
	}
	none := &resource.RejectionState{}
	for _, step := range []struct {
		name   string
		port   int32
		answer error
		told   *resource.RejectionState
		status bool
	}{
		{"the API server is away", 1, errors.New("connection refused"), nil, true},
		{"a port is taken", 1, invalid("port 30000 is taken\n"), taken("port 30000 is taken "), false},
		{"the same in other words", 1, invalid("at noon: port 30000 is taken"), nil, true},
		{"the API server is away again", 1, errors.New("connection refused"), nil, true},
		{"it is forbidden", 1, apierrors.NewForbidden(corev1.Resource("services"), "edge", errors.New("quota")), taken(
			`services "edge" is forbidden: quota`,
		), false},
		{"a webhook says no", 1, &apierrors.StatusError{
			ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "admission webhook denied the request"},
		},
			taken("admission webhook denied the request"), false},
		{"it is too large", 1, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), taken(
			"Request entity too large: limit is 3145728",
		), false},
		{"it cannot be read", 1, &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: http.StatusInternalServerError, Message: "failed to create typed patch object (media/edge): errors",
		}},
			taken("failed to create typed patch object (media/edge): errors"), false},
		{"a webhook is away", 1, apierrors.NewInternalError(errors.New("failed calling webhook")), taken(
			"status 500, the request is repeated: Internal error occurred: failed calling webhook",
		), false},
		{"it is still away", 1, apierrors.NewInternalError(errors.New("failed calling webhook again")), nil, true},
		{"the API server is overloaded", 1, apierrors.NewServiceUnavailable("etcd"), taken(
			"status 503, the request is repeated: etcd",
		), false},
		{"another port", 2, apierrors.NewForbidden(corev1.Resource("services"), "edge", errors.New("also")), taken(
			`services "edge" is forbidden: also`,
		), false},
		{"it is taken", 2, nil, none, true},
		{"and again", 2, nil, nil, true},
	} {
		objects := e.objects(deployment())
		objects[0].(*corev1.Service).Spec.Ports = []corev1.ServicePort{
			{Name: "udp", Port: step.port, Protocol: corev1.ProtocolUDP},
		}
		e.refuse = func(o runtime.ApplyConfiguration) error {
			if o.(interface{ GetKind() string }).GetKind() != "Service" {
				return nil
			}
			return step.answer
		}
		gw := &gwapiv1.Gateway{}
		if err := e.client.Get(t.Context(), gatewayKey, gw); err != nil {
			t.Fatal(err)
		}
		gw.Status.Conditions = nil
		if err := e.client.Status().Update(t.Context(), gw, client.FieldOwner("test")); err != nil {
			t.Fatal(err)
		}
		e.wants(desired{objects: objects, complete: true})
		if err := e.writer.write(t.Context(), e.unit); (err != nil) != (step.answer != nil) {
			t.Errorf("%s: %v", step.name, err)
		}
		if status := slices.Contains(e.has(), "status"); status != step.status {
			t.Errorf("%s: status written %t", step.name, status)
		}
		told := e.writer.rejections.inbox.drain()
		switch {
		case step.told == nil && len(told) > 0:
			t.Errorf("%s: the loop receives %+v", step.name, told[0].object.(*resource.Rejection).RejectionState)
		case step.told != nil && len(told) != 1:
			t.Errorf("%s: the loop receives %d things", step.name, len(told))
		case step.told != nil &&
			(told[0].object.(*resource.Rejection).RejectionState != *step.told || told[0].deleted != (*step.told == *none)):
			t.Errorf("%s: the loop receives %+v", step.name, told[0].object.(*resource.Rejection).RejectionState)
		}
	}
	for name, next := range map[string]desired{
		"there is another one of its name": {ours: true, uid: "other"}, "the Gateway is gone": {},
	} {
		e.refuse = func(runtime.ApplyConfiguration) error { return invalid("no") }
		objects := e.objects(deployment())
		objects[0].SetLabels(map[string]string{"another": "value"})
		e.wants(desired{objects: objects, complete: true})
		if err := e.writer.write(t.Context(), e.unit); err == nil || len(e.writer.rejections.inbox.drain()) != 1 {
			t.Errorf("refused again: %v", err)
		}
		e.writer.set(e.unit, next)
		if told := e.writer.rejections.inbox.drain(); len(told) != 1 || !told[0].deleted ||
			len(e.writer.rejections.of) > 0 {
			t.Errorf("%s, and the loop receives %v", name, told)
		}
	}
}

// Rejections of KEDA objects are independent of others.
func TestRejectionsOfKEDAObjectsAreIndependent(t *testing.T) {
	e := newEdge(t)
	scaled := e.scaled()
	e.writer.objects.keda = e.client
	words := func(s string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: s}}
	}
	away := errors.New("connection refused")
	for _, step := range []struct {
		name             string
		service, scaling error
		want             resource.RejectionState
	}{
		{"nothing scales", nil, words("there is an HPA"), resource.RejectionState{
			Scaling: resource.RejectedObject{Object: "ScaledObject media/edge", Problem: "there is an HPA"},
		}},
		{"nothing serves either", words("no"), words("there is an HPA"), resource.RejectionState{
			Serving: resource.RejectedObject{Object: "Service media/edge", Problem: "no"},
			Scaling: resource.RejectedObject{Object: "ScaledObject media/edge", Problem: "there is an HPA"},
		}},
		{"it serves, and of the other nothing is known", nil, away, resource.RejectionState{
			Scaling: resource.RejectedObject{Object: "ScaledObject media/edge", Problem: "there is an HPA"},
		}},
		{"all is well", nil, nil, resource.RejectionState{}},
	} {
		e.refuse = func(o runtime.ApplyConfiguration) error {
			return map[string]error{
				"Service": step.service, "ScaledObject": step.scaling,
			}[o.(interface{ GetKind() string }).GetKind()]
		}
		objects := e.objects(deployment())
		objects[0].SetAnnotations(map[string]string{"another": step.name})
		e.wants(desired{objects: append(objects, scaled), complete: true})
		if err := e.writer.write(t.Context(), e.unit); (err != nil) != (step.service != nil || step.scaling != nil) {
			t.Errorf("%s: %v", step.name, err)
		}
		told := e.writer.rejections.inbox.drain()
		if len(told) != 1 || told[0].object.(*resource.Rejection).RejectionState != step.want ||
			told[0].deleted != (step.want == resource.RejectionState{}) {
			t.Errorf("%s: the loop receives %+v", step.name, told)
		}
	}
}

// A process that stops leading drops its rejections: it does not learn when they end.
func TestRefusalsEndWithLeading(t *testing.T) {
	e := newEdge(t)
	e.refuse = func(runtime.ApplyConfiguration) error {
		return apierrors.NewForbidden(corev1.Resource("any"), "edge", errors.New("quota"))
	}
	e.wants(desired{objects: e.objects(deployment()), complete: true})
	if err := e.writer.write(t.Context(), e.unit); err == nil || len(e.writer.rejections.inbox.drain()) != 1 {
		t.Fatalf("not refused: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.writer.lead(ctx)
	if told := e.writer.rejections.inbox.drain(); len(told) != 1 || !told[0].deleted {
		t.Errorf("the loop receives %v", told)
	}
}
