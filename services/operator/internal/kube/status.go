package kube

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// statusWriter writes the statuses of translated objects, and records their changes as events.
type statusWriter struct {
	client client.Client
	scheme *runtime.Scheme
	meters *meters
	events eventRecorder
}

// errStatusRejected means that the API server rejects a status. A retry fails until the object or the rules of the API
// server change.
var errStatusRejected = errors.New("write status: the API server rejects it")

// write writes the status of an object if it differs from the status in the cluster. The write succeeds only if the
// object still has the version from which the status was translated, because a status also contains entries of other
// controllers, which may have changed since. A newer version of the object is translated again.
func (w *statusWriter) write(ctx context.Context, ref translate.ObjectRef, want desired) error {
	o := emptyObject(ref)
	if err := w.client.Get(ctx, ref.NamespacedName, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	before, changed := setStatus(o, want.status)
	if o.GetResourceVersion() != want.version || !changed {
		return nil
	}
	w.meters.countWrite(w.scheme, o, "status")
	switch err := w.client.Status().Update(ctx, o, client.FieldOwner(fieldManager)); {
	case apierrors.IsNotFound(err):
		return nil // the object was deleted
	case isRejected(err) || apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", errStatusRejected, err)
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	w.events.record(o, newEvents(before, want.status, want.notes))
	return nil
}

// emptyObject returns an empty object of the kind to which a reference refers.
func emptyObject(ref translate.ObjectRef) client.Object {
	switch ref.Kind {
	case translate.KindGateway:
		return &gwapiv1.Gateway{}
	case translate.KindClass:
		return &gwapiv1.GatewayClass{}
	case translate.KindGatewayConfig:
		return &stunnerv1.GatewayConfig{}
	case translate.KindDataplane:
		return &stunnerv1.Dataplane{}
	case translate.KindStaticService:
		return &stunnerv1.StaticService{}
	case translate.KindRevocation:
		return &stunnerv1.Revocation{}
	}
	switch {
	case ref.GroupVersion.Version == gwapiv1a2.GroupVersion.Version:
		return &gwapiv1a2.UDPRoute{}
	case ref.GroupVersion.Group == gwapiv1.GroupName:
		return &gwapiv1.UDPRoute{}
	}
	return &stunnerv1.UDPRoute{}
}

// setStatus sets the status of an object. It returns the previous status, and whether the status has changed.
func setStatus(o client.Object, status any) (before any, changed bool) {
	field := reflect.ValueOf(o).Elem().FieldByName("Status")
	if _, route := status.(gwapiv1.RouteStatus); route { // the status types of routes embed gwapiv1.RouteStatus
		field = field.FieldByName("RouteStatus")
	}
	before = field.Interface()
	if reflect.DeepEqual(before, status) {
		return before, false
	}
	field.Set(reflect.ValueOf(status))
	return before, true
}
