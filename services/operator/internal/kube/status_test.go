package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// answers are the responses of an API server to a status update, with the maximum number of requests within an hour.
var answers = map[string]struct {
	err  error
	most int64
}{
	"404 not found":   {apierrors.NewNotFound(schema.GroupResource{}, "edge"), 1},
	"409 conflict":    {apierrors.NewConflict(schema.GroupResource{}, "edge", errors.New("modified")), 16},
	"422 invalid":     {apierrors.NewInvalid(schema.GroupKind{}, "edge", nil), 16},
	"403 forbidden":   {apierrors.NewForbidden(schema.GroupResource{}, "edge", errors.New("no right")), 16},
	"400 bad request": {apierrors.NewBadRequest("no"), 16},
	"413 too large":   {apierrors.NewRequestEntityTooLargeError("no"), 16},
	"429 too many":    {apierrors.NewTooManyRequests("later", 1), 130},
	"500 internal":    {apierrors.NewInternalError(errors.New("no")), 130},
	"504 timeout":     {apierrors.NewTimeoutError("no", 1), 130},
	"no answer":       {context.DeadlineExceeded, 130},
	"no status":       {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusTeapot}}, 130},
}

// units returns an object of every kind with a status, and the status to write.
func units() map[translate.ObjectRef]any {
	all := map[translate.ObjectRef]any{}
	conditions := []metav1.Condition{{
		Type: condition.Accepted, Status: metav1.ConditionTrue, Reason: "Accepted",
		LastTransitionTime: metav1.Unix(1, 0),
	}}
	for _, k := range watchedKinds() {
		for _, o := range k.variants {
			o.SetNamespace(gatewayKey.Namespace)
			o.SetName(gatewayKey.Name)
			u, ok := translate.RefOf(o)
			switch {
			case !ok:
				continue
			case u.Kind == translate.KindGateway:
				all[u] = gwapiv1.GatewayStatus{Conditions: conditions}
			case u.Kind == translate.KindClass:
				all[u] = gwapiv1.GatewayClassStatus{Conditions: conditions}
			case u.Kind == translate.KindRoute:
				all[u] = gwapiv1.RouteStatus{
					Parents: []gwapiv1.RouteParentStatus{{ControllerName: "example.com/ours", Conditions: conditions}},
				}
			default:
				all[u] = stunnerv1.Status{Conditions: conditions}
			}
		}
	}
	return all
}

// A status that the API server rejects is retried with backoff, is written once it is accepted, and is not retried
// after the object was deleted.
func TestARejectedStatusIsRetriedWithBackoff(t *testing.T) {
	all := units()
	if len(all) != 9 {
		t.Fatalf("%d kinds have a status, want 9", len(all))
	}
	for u, status := range all {
		for name, answer := range answers {
			t.Run(u.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { refuseStatus(t, u, status, answer.err, answer.most) })
			})
		}
	}
}

func refuseStatus(t *testing.T, u translate.ObjectRef, status any, rejection error, most int64) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	object := emptyObject(u)
	object.SetNamespace(u.Namespace)
	object.SetName(u.Name)
	var asked atomic.Int64
	var refuses atomic.Bool
	refuses.Store(true)
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(object).WithStatusSubresource(
		object,
	).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(
			ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			asked.Add(1)
			if refuses.Load() {
				return rejection
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}).Build()
	read := func() client.Object {
		o := emptyObject(u)
		if err := c.Get(t.Context(), types.NamespacedName{Namespace: u.Namespace, Name: u.Name}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	w := newWriter(c, c, s, newInbox(), newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); synctest.Wait() }()
	go w.lead(ctx)
	synctest.Wait()
	w.set(u, desired{ours: true, status: status, uid: "edge", version: read().GetResourceVersion()})
	time.Sleep(time.Hour)
	synctest.Wait()
	if n := asked.Load(); n < 1 || n > most {
		t.Errorf("%d writes in the first hour, want at most %d", n, most)
	}
	if !apierrors.IsNotFound(rejection) {
		refuses.Store(false)
		time.Sleep(rejectionRetry)
		synctest.Wait()
		if _, changed := setStatus(read(), status); changed {
			t.Error("the status is not written when the API server takes it")
		}
		refuses.Store(true)
	}
	w.set(u, desired{ours: true, status: status, uid: "edge", version: "an older one"})
	w.set(u, desired{}) // the object was deleted
	before := asked.Load()
	time.Sleep(time.Hour)
	synctest.Wait()
	if n := asked.Load() - before; n != 0 {
		t.Errorf("%d writes for an object that is gone", n)
	}
}

// A status is written only to the version of the object from which it was translated.
func TestStatusIsWrittenOnlyToItsVersion(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "media", Name: "branch"}
	unit := translate.ObjectRef{Kind: translate.KindStaticService, NamespacedName: key}
	object := &stunnerv1.StaticService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(object).WithStatusSubresource(object).Build()
	w := newWriter(c, c, s, newInbox(), newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
	read := func() *stunnerv1.StaticService {
		live := &stunnerv1.StaticService{}
		if err := c.Get(t.Context(), key, live); err != nil {
			t.Fatal(err)
		}
		return live
	}
	seen := read().ResourceVersion
	status := stunnerv1.Status{Conditions: []metav1.Condition{
		{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Now()},
	}}
	w.set(unit, desired{ours: true, status: status, version: seen})

	other := read()
	other.Status.Conditions = []metav1.Condition{
		{Type: "Other", Status: metav1.ConditionTrue, Reason: "Said", LastTransitionTime: metav1.Now()},
	}
	if err := c.Status().Update(t.Context(), other, client.FieldOwner("other")); err != nil {
		t.Fatal(err)
	}
	if err := w.write(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
	if got := read().Status.Conditions; len(got) != 1 || got[0].Type != "Other" {
		t.Fatalf("what another controller has said is overwritten: %v", got)
	}
	w.setVersion(unit, "not the one", "any")
	w.setVersion(unit, seen, read().ResourceVersion)
	if err := w.write(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
	if got := read().Status.Conditions; len(got) != 1 || got[0].Type != "Accepted" {
		t.Errorf("nothing is written to the version that it is meant for: %v", got)
	}
}
