package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// A Service that is rejected because of externalIPs is created without them, and this rejection is sent to the loop
// once. The externalIPs are not tried again until they change. A live Service keeps its externalIPs.
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
		{"203.0.113.8", nil, 2, nil, false}, // the rejection equals the previous one
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

// If a workload is rejected because of the capabilities of in-kernel forwarding, it is applied without the
// capabilities, and later tried again with the capabilities. A live workload with the capabilities does not change.
func TestAWorkloadDoesWithoutRefusedCapabilities(t *testing.T) {
	e := newEdge(t)
	const words = "set workloadPolicy.offload"
	denies, asked := true, 0
	e.refuse = func(o runtime.ApplyConfiguration) error {
		fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if text := fmt.Sprint(fields["spec"]); denies && strings.Contains(text, "NET_ADMIN") {
			asked++
			return &apierrors.StatusError{
				ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: words},
			}
		}
		return nil
	}
	refused := resource.RejectedObject{Object: "Deployment media/edge", Problem: words}
	for _, step := range []struct {
		name   string
		image  string
		denies bool
		told   *resource.RejectionState
		has    string
		fails  bool
	}{
		{"rejected", "one", true, &resource.RejectionState{Offload: refused}, "one []", false},
		{"rejected again", "one", true, nil, "one []", false},
		{"accepted", "one", false, &resource.RejectionState{}, "one [BPF NET_ADMIN]", false},
		{"rejected while in use", "two", true, &resource.RejectionState{Serving: refused}, "one [BPF NET_ADMIN]", true},
	} {
		denies = step.denies
		before := asked
		workload := deployment()
		workload.Spec.Template.Spec.Containers = []corev1.Container{{
			Name: manifest.ContainerName, Image: step.image, SecurityContext: &corev1.SecurityContext{
				RunAsUser: new(int64(0)), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"BPF", "NET_ADMIN"}},
			},
		}}
		e.wants(desired{objects: e.objects(workload), complete: true})
		wait, err := e.writer.step(t.Context(), e.unit)
		for err == nil && wait > 0 && wait <= settleTime { // after the creation of the Service
			time.Sleep(wait)
			wait, err = e.writer.step(t.Context(), e.unit)
		}
		if (err != nil) != step.fails || step.denies && !step.fails && wait != rejectionRetry {
			t.Errorf("%s: %v, tried again after %s", step.name, err, wait)
		}
		made := &appsv1.Deployment{}
		if err := e.client.Get(t.Context(), gatewayKey, made); err != nil {
			t.Fatal(err)
		}
		c, has := made.Spec.Template.Spec.Containers[0], []corev1.Capability{}
		if c.SecurityContext != nil && c.SecurityContext.Capabilities != nil {
			has = append(has, c.SecurityContext.Capabilities.Add...)
		}
		if got := fmt.Sprintf("%s %v", c.Image, has); got != step.has {
			t.Errorf("%s: the container is %s, want %s", step.name, got, step.has)
		}
		if step.denies != (asked > before) {
			t.Errorf("%s: asked %d times", step.name, asked-before)
		}
		told := e.writer.rejections.inbox.drain()
		if (len(told) > 0) != (step.told != nil) || len(told) == 1 &&
			told[0].object.(*resource.Rejection).RejectionState != *step.told {
			t.Errorf("%s: the loop receives %+v", step.name, told)
		}
	}
}

// An object with the wanted name that belongs to another owner is not taken over, although server-side apply detects no
// conflict. An own object that lost its labels or its owner reference is repaired.
func TestObjectsOfOtherOwnersAreNotTakenOver(t *testing.T) {
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

// In a terminating namespace nothing is written. A rejection by the API server because of the termination is no
// failure, because the watch may deliver the deletion later.
func TestNothingIsWrittenToATerminatingNamespace(t *testing.T) {
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
func TestDeletedObjectsAreRecreatedWithoutAConfig(t *testing.T) {
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
func TestServingObjectsAreDeletedAfterTheirReplacementIsApplied(t *testing.T) {
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
