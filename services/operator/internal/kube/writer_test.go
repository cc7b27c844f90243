package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A status is written only to the version of the object from which it was translated.
func TestStatusIsWrittenToTheVersionThatItIsMadeFor(t *testing.T) {
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

// A rejection is sent to the loop once, with the message of the API server, until the object is accepted; other errors
// are not sent. The status is written by the translation that follows.
func TestRefusalsAreTold(t *testing.T) {
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
		{"a webhook is away", 1, apierrors.NewInternalError(errors.New("failed calling webhook")), nil, true},
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
func TestRefusalsOfWhatScalesAreTheirOwn(t *testing.T) {
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

// A Service rejected because of externalIPs is created without them, and that is sent once. It is not retried until the
// externalIPs change. A live Service keeps its externalIPs.
func TestAServiceDoesWithoutExternalAddressesThatAreRefused(t *testing.T) {
	e := newEdge(t)
	const words = "Use of external IPs is denied by admission control."
	var asked []string
	e.refuse = func(o runtime.ApplyConfiguration) error {
		fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if addresses, wished, _ := unstructured.NestedStringSlice(fields, "spec", "externalIPs"); wished &&
			addresses[0] != "203.0.113.9" {
			asked = append(asked, addresses[0])
			return &apierrors.StatusError{
				ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Message: words},
			}
		}
		return nil
	}
	refused := resource.RejectedObject{Object: "Service media/edge", Problem: words}
	denied := &resource.RejectionState{ExternalIPs: refused}
	for _, step := range []struct {
		address string
		told    *resource.RejectionState
		asked   int
		has     []string
		fails   bool
	}{
		{"203.0.113.7", denied, 1, nil, false},
		{"203.0.113.7", nil, 1, nil, false},
		{"203.0.113.8", nil, 2, nil, false}, // an equal rejection
		{"203.0.113.9", &resource.RejectionState{}, 2, []string{"203.0.113.9"}, false},
		{"203.0.113.7", &resource.RejectionState{Serving: refused}, 3, []string{"203.0.113.9"}, true},
	} {
		objects := e.objects(deployment())
		spec := &objects[0].(*corev1.Service).Spec
		spec.Type, spec.LoadBalancerIP, spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, step.address, []string{
			step.address,
		}
		e.wants(desired{objects: objects, complete: true})
		if err := e.writer.write(t.Context(), e.unit); (err != nil) != step.fails {
			t.Errorf("%s: %v", step.address, err)
		}
		made := &corev1.Service{}
		if err := e.client.Get(t.Context(), gatewayKey, made); err != nil {
			t.Fatal(err)
		}
		if (made.Spec.LoadBalancerIP == step.address) == step.fails || !slices.Equal(made.Spec.ExternalIPs, step.has) {
			t.Errorf(
				"%s: the Service asks for %q and %q", step.address, made.Spec.LoadBalancerIP, made.Spec.ExternalIPs,
			)
		}
		if len(asked) != step.asked {
			t.Errorf("%s: asked for %q", step.address, asked)
		}
		told := e.writer.rejections.inbox.drain()
		if (len(told) > 0) != (step.told != nil) || len(told) == 1 &&
			told[0].object.(*resource.Rejection).RejectionState != *step.told {
			t.Errorf("%s: the loop receives %+v", step.address, told)
		}
	}
}

// An object with the wanted name that belongs to someone else is not taken over, although server-side apply detects no
// conflict. An own object that lost its labels or its owner reference is repaired.
func TestNothingIsTakenFromOthers(t *testing.T) {
	wanted := append(newEdge(t).objects(deployment()), newEdge(t).scaled())
	other := []metav1.OwnerReference{
		{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "other", UID: "other"},
	}
	for _, o := range wanted {
		for name, c := range map[string]struct {
			labels  map[string]string
			owners  []metav1.OwnerReference
			refused bool
		}{
			"of another owner":         {nil, nil, true},
			"that of another Gateway":  {o.GetLabels(), other, true},
			"ours, without its labels": {nil, o.GetOwnerReferences(), false},
			"ours, without its owner":  {o.GetLabels(), nil, false},
		} {
			there := o.DeepCopyObject().(client.Object)
			there.SetLabels(c.labels)
			there.SetOwnerReferences(c.owners)
			e := newEdge(t, there)
			applied := false
			kind := o.GetObjectKind().GroupVersionKind().Kind
			e.refuse = func(a runtime.ApplyConfiguration) error {
				applied = applied || a.(interface{ GetKind() string }).GetKind() == kind
				return nil
			}
			e.writer.objects.client, e.writer.objects.keda = labelled{e.client}, labelled{e.client}
			e.wants(desired{objects: wanted, complete: true})
			if err := e.writer.write(t.Context(), e.unit); errors.Is(err, errOwnedByOther) != c.refused ||
				applied == c.refused {
				t.Errorf("%s %s: applied %t: %v", kind, name, applied, err)
			}
		}
	}
}

// labelled is a cache that holds generated kinds by label only.
type labelled struct{ client.Client }

func (c labelled) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	_, gateway := o.(*gwapiv1.Gateway)
	_, service := o.(*corev1.Service)
	if err == nil && !gateway && !service && o.GetLabels()[manifest.OwnedByLabel] != manifest.AppValue {
		return apierrors.NewNotFound(corev1.Resource("any"), key.Name)
	}
	return err
}

// scaled returns the ScaledObject of the Gateway.
func (e *edge) scaled() *unstructured.Unstructured {
	labels := e.objects(deployment())[0]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"maxReplicaCount": int64(2)}}}
	o.SetGroupVersionKind(manifest.KEDA.WithKind(manifest.KindScaledObject))
	o.SetNamespace(labels.GetNamespace())
	o.SetName(labels.GetName())
	o.SetLabels(labels.GetLabels())
	o.SetOwnerReferences(labels.GetOwnerReferences())
	return o
}

// In a terminating namespace nothing is written. That the API server rejects objects in it is no failure: the watch may
// deliver the deletion later.
func TestNothingIsWrittenWhereANamespaceEnds(t *testing.T) {
	ending := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "media", DeletionTimestamp: new(metav1.Unix(1, 0)), Finalizers: []string{"kubernetes"},
	}}
	e := newEdge(t, ending)
	e.wants(desired{objects: e.objects(deployment()), complete: true})
	if err := e.writer.write(t.Context(), e.unit); err != nil || len(e.has()) > 0 {
		t.Errorf("made %v: %v", e.has(), err)
	}
	e = newEdge(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "media"}})
	e.refuse = func(runtime.ApplyConfiguration) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Reason:  metav1.StatusReasonForbidden,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
		}}
	}
	e.wants(desired{objects: e.objects(deployment()), complete: true})
	if err := e.writer.write(t.Context(), e.unit); err != nil || len(e.writer.rejections.inbox.drain()) > 0 {
		t.Errorf("a namespace that ends is a rejection, or a failure: %v", err)
	}
}

// Deleted objects of a Gateway without a config are recreated if another object shows that they existed. Existing
// objects are not changed.
func TestWhatIsGoneIsMadeAgainWithoutAConfig(t *testing.T) {
	const service, deployed, config, status = "Service", "Deployment", "ConfigMap", "status"
	for name, c := range map[string]struct {
		there  []int
		change bool
		want   []string
	}{
		"nothing was made":                     {nil, false, []string{status}},
		"only a Service":                       {[]int{0}, false, []string{deployed, service, status}},
		"only a workload":                      {[]int{1}, false, []string{deployed, service, status}},
		"no workload":                          {[]int{0, 2}, false, []string{config, deployed, service, status}},
		"all but the ConfigMap":                {[]int{0, 1}, false, []string{deployed, service, status}},
		"a workload of another kind is wanted": {[]int{1, 2}, true, []string{config, deployed, service, status}},
	} {
		e := newEdge(t)
		all := e.objects(deployment())
		var there []client.Object
		for _, i := range c.there {
			there = append(there, all[i].DeepCopyObject().(client.Object))
		}
		e = newEdge(t, there...)
		e.refuse = func(o runtime.ApplyConfiguration) error {
			kind := o.(interface{ GetKind() string }).GetKind()
			if slices.ContainsFunc(
				c.there, func(i int) bool { return all[i].GetObjectKind().GroupVersionKind().Kind == kind },
			) {
				t.Errorf("%s: the %s that is there is written", name, kind)
			}
			return nil
		}
		wanted := all
		if c.change {
			wanted = e.objects(&appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}})
		}
		wanted[0].SetAnnotations(map[string]string{"another": "value"})
		e.wants(desired{skeleton: wanted[:2]})
		if err := e.writer.write(t.Context(), e.unit); err != nil {
			t.Fatal(err)
		}
		if got := e.has(); !slices.Equal(got, c.want) {
			t.Errorf("%s: there is %v, want %v", name, got, c.want)
		}
	}
}

// An object that serves is deleted only after its replacement was applied; all others are deleted at once.
func TestWhatServesStaysUntilItsSuccessorIsThere(t *testing.T) {
	e := newEdge(t)
	old := e.objects(deployment())
	e.wants(desired{objects: old, complete: true})
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	next := e.objects(&appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}})
	next[0].SetName("another")
	next = next[:2]
	for _, step := range []struct {
		refused string
		want    []string
	}{
		{"DaemonSet", []string{"Deployment", "Service", "status"}},
		{"", []string{"DaemonSet", "Service", "status"}},
	} {
		e.refuse = func(o runtime.ApplyConfiguration) error {
			if o.(interface{ GetKind() string }).GetKind() == step.refused {
				return errors.New("connection refused")
			}
			return nil
		}
		e.wants(desired{objects: next, complete: true})
		if err := e.writer.write(t.Context(), e.unit); (err != nil) != (step.refused != "") {
			t.Error(err)
		}
		if got := e.has(); !slices.Equal(got, step.want) {
			t.Errorf("while %q is refused there is %v, want %v", step.refused, got, step.want)
		}
	}
	e.refuse = func(o runtime.ApplyConfiguration) error {
		if o.(interface{ GetKind() string }).GetKind() == "Service" {
			return errors.New("connection refused")
		}
		return nil
	}
	e.wants(desired{objects: old[:2], complete: true})
	if err := e.writer.write(t.Context(), e.unit); err == nil {
		t.Error("nothing is refused")
	}
	if got, want := e.has(), []string{"Deployment", "Service", "status"}; !slices.Equal(got, want) {
		t.Errorf("while the Service is refused there is %v, want %v", got, want)
	}
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
