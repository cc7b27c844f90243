package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// edge is the Gateway media/edge, with a writer and a fake API server.
type edge struct {
	*testing.T
	client client.Client
	writer *writer
	unit   translate.ObjectRef
	// refuse is the response of the API server to each applied object.
	refuse func(runtime.ApplyConfiguration) error
}

func newEdge(t *testing.T, more ...client.Object) *edge {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{T: t, unit: translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: gatewayKey}}
	gw := &gwapiv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: gatewayKey.Namespace, Name: gatewayKey.Name, UID: "edge"},
	}
	e.client = fake.NewClientBuilder().WithScheme(s).WithObjects(append(more, gw)...).WithStatusSubresource(
		gw,
	).WithInterceptorFuncs(interceptor.Funcs{
		Apply: func(
			ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption,
		) error {
			if err := likeServer(ctx, c, o.(patch)); err != nil {
				return err
			}
			if e.refuse != nil {
				if err := e.refuse(o); err != nil {
					return err
				}
			}
			return c.Apply(ctx, o, opts...)
		},
	}).Build()
	e.writer = newWriter(e.client, e.client, s, newInbox(), newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
	return e
}

// patch is an apply configuration that was made from an unstructured object.
type patch interface {
	client.Object
	IsApplyConfiguration()
}

// likeServer handles the resource version of a patch as the API server does, and the fake one does not: it is ignored
// if the object does not exist.
func likeServer(ctx context.Context, c client.Client, p patch) error {
	if p.GetResourceVersion() == "" {
		return nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(p.GetObjectKind().GroupVersionKind())
	switch err := c.Get(ctx, client.ObjectKeyFromObject(p), live); {
	case apierrors.IsNotFound(err):
		p.SetResourceVersion("")
		return nil
	case err != nil:
		return err
	case live.ResourceVersion != p.GetResourceVersion():
		return apierrors.NewConflict(corev1.Resource("any"), p.GetName(), errors.New("the object has been modified"))
	}
	return nil
}

// wants sets the desired state of the Gateway.
func (e *edge) wants(want desired) {
	e.Helper()
	gw := &gwapiv1.Gateway{}
	if err := e.client.Get(e.Context(), gatewayKey, gw); err != nil {
		e.Fatal(err)
	}
	want.ours, want.uid, want.version = true, gw.UID, gw.ResourceVersion
	want.status = gwapiv1.GatewayStatus{Conditions: []metav1.Condition{
		{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Unix(1, 0)},
	}}
	e.writer.set(e.unit, want)
}

// has lists the kinds of the existing objects, and "status" if the status is written.
func (e *edge) has() (names []string) {
	e.Helper()
	for _, like := range append(generatedKinds(), &corev1.Service{}) {
		list, err := e.writer.objects.listOwned(e.Context(), e.client, like, gatewayKey)
		if err != nil {
			e.Fatal(err)
		}
		for _, o := range list {
			names = append(names, strings.Fields(describe(o))[0])
		}
	}
	gw := &gwapiv1.Gateway{}
	if err := e.client.Get(e.Context(), gatewayKey, gw); err == nil && len(gw.Status.Conditions) > 0 {
		names = append(names, "status")
	}
	slices.Sort(names)
	return names
}

// objects returns a Service, a workload and a ConfigMap of the Gateway.
func (e *edge) objects(workload resource.Object) []resource.Object {
	owner := manifest.OwnerOf(&gwapiv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: gatewayKey.Namespace, Name: gatewayKey.Name, UID: "edge"},
	}, nil)
	labels := manifest.ConfigMap(owner, published(), "")
	service := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: *labels.ObjectMeta.DeepCopy(),
	}
	workload.SetNamespace(labels.Namespace)
	workload.SetName(labels.Name)
	workload.SetLabels(labels.Labels)
	workload.SetOwnerReferences(labels.OwnerReferences)
	return []resource.Object{service, workload, labels}
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
}

// The generated objects of a Gateway that is given to another controller are deleted once. Objects of the other
// controller have the same labels and owner, and are kept, also after a change of the leader.
func TestObjectsOfAHandedOverGatewayAreDeletedOnce(t *testing.T) {
	away, edited := desired{complete: true, uid: "edge"}, desired{uid: "edge"}
	e := newEdge(t)
	e.wants(desired{objects: e.objects(deployment()), complete: true})
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	e.writer.set(e.unit, away)
	e.writer.set(e.unit, edited)
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	if got := e.has(); !slices.Equal(got, []string{"status"}) {
		t.Errorf("left: %v", got)
	}
	theirs := e.objects(deployment())[0].(client.Object)
	if err := e.client.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	ownedHandler{e.writer}.OnAdd(theirs, false)
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	e.writer.set(e.unit, away)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.writer.lead(ctx)
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	if got := e.has(); !slices.Equal(got, []string{"Service", "status"}) {
		t.Errorf("of what the other controller has made there is %v", got)
	}
}
