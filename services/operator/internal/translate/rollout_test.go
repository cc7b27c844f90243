package translate_test

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Programmed follows the reports of the dataplanes: whether they run the published config.
func TestProgrammedFollowsTheReportsOfDataplanes(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_load_balancer_may_report_ports.txtar"))
	key := c.view().Gateways()[0]
	for name, test := range map[string]struct {
		rollout resource.RolloutState
		want    metav1.Condition
	}{
		"nobody reports": {resource.RolloutState{}, metav1.Condition{Status: "True", Reason: "Programmed"}},
		"all refuse": {resource.RolloutState{Pod: "edge-1", Problem: "port 80: taken", Draining: 1},
			metav1.Condition{
				Status: "False", Reason: "Invalid",
				Message: "no dataplane serves all of the config: pod edge-1 says: port 80: taken",
			}},
		"none runs it": {resource.RolloutState{Behind: 2},
			metav1.Condition{
				Status: "False", Reason: "Pending",
				Message: "2 pods report, none runs the published config: see their logs",
			}},
		"one drains": {
			resource.RolloutState{Draining: 1},
			metav1.Condition{Status: "True", Reason: "Programmed", Message: "programmed, 1 pod draining"},
		},
		"one forwards in user space": {
			resource.RolloutState{OffloadPod: "edge-1", OffloadProblem: "no CAP_BPF"},
			metav1.Condition{
				Type: condition.OffloadUnavailable, Status: "True", Reason: "Warning",
				Message: "pod edge-1 does not forward media in the kernel as requested: no CAP_BPF",
			},
		},
	} {
		v := c.view()
		told := resource.Facts{}
		translate.Gateway(v.Recording(told), key, c.options)
		var readers resource.Readers[string]
		readers.Record("the Gateway", told)
		concerned := map[string]struct{}{}
		readers.Of(v.Put(&resource.Rollout{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, RolloutState: test.rollout,
		}), concerned)
		if len(concerned) != 1 {
			t.Errorf("%s: the Gateway is not translated again", name)
		}
		r := translate.Gateway(v, key, c.options)
		want := test.want
		want.Type = cmp.Or(want.Type, condition.Programmed)
		if !slices.ContainsFunc(r.Status.Conditions, func(got metav1.Condition) bool {
			return got.Type == want.Type && got.Status == want.Status && got.Reason == want.Reason && got.Message == want.Message
		}) {
			t.Errorf("%s: %+v", name, r.Status.Conditions)
		}
		if r.Decision != translate.Served {
			t.Errorf("%s: what dataplanes say has changed the config", name)
		}
	}
}

// A Gateway is not Programmed while the API server rejects an object that serves it, independent of the reports of
// dataplanes. A rejected object that only scales the pods sets condition Autoscaled and does not change Programmed.
func TestARejectedObjectUnsetsProgrammed(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_load_balancer_may_report_ports.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	told := resource.Facts{}
	before := translate.Gateway(v.Recording(told), key, c.options)
	var readers resource.Readers[string]
	readers.Record("the Gateway", told)
	service := resource.RejectedObject{Object: "Service media/edge", Problem: "port 30000 is taken"}
	scaled := resource.RejectedObject{Object: "ScaledObject media/edge", Problem: "there is an HPA"}
	offload := resource.RejectedObject{Object: "Deployment media/edge", Problem: "set workloadPolicy.offload"}
	const (
		programmed = "Programmed=True/Programmed:"
		not        = "Programmed=False/Invalid: the API server refuses Service media/edge: port 30000 is taken; what was published before stays in force"
		unscaled   = "Autoscaled=False/Invalid: the API server refuses ScaledObject media/edge: there is an HPA; the Gateway is served, and scaled as before, if it was"
		userSpace  = "OffloadUnavailable=True/Warning: the pods of Deployment media/edge forward media in user space, because the API server refuses their capabilities: set workloadPolicy.offload"
	)
	for _, step := range []struct {
		state resource.RejectionState
		want  []string
	}{
		{resource.RejectionState{Offload: offload}, []string{programmed, userSpace}},
		{resource.RejectionState{Serving: service}, []string{not}},
		{resource.RejectionState{Serving: service, Scaling: scaled}, []string{not, unscaled}},
		{resource.RejectionState{Scaling: scaled}, []string{programmed, unscaled}},
		{resource.RejectionState{}, []string{programmed}},
	} {
		refusal := &resource.Rejection{
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, RejectionState: step.state,
		}
		change := v.Put
		if step.state == (resource.RejectionState{}) {
			change = v.Delete
		}
		concerned := map[string]struct{}{}
		if readers.Of(change(refusal), concerned); len(concerned) != 1 {
			t.Error("the Gateway is not translated again")
		}
		v.Put(withStatus(v.Gateway(key), translate.Gateway(v, key, c.options).Status)) // the provider writes the status
		r := translate.Gateway(v, key, c.options)
		var got []string
		for _, c := range r.Status.Conditions[1:] {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message)))
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%+v:\n%q\nwant\n%q", step.state, got, step.want)
		}
		r.Status, r.Problems = before.Status, before.Problems
		if !reflect.DeepEqual(r, before) {
			t.Error("what the API server says has changed more than the status")
		}
	}
}

// A Service without its rejected external IPs is a note, and the Gateway stays Programmed.
func TestRejectedExternalIPsAreANote(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_wished_address_wins.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	v.Put(&resource.Rejection{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
	}, RejectionState: resource.RejectionState{
		ExternalIPs: resource.RejectedObject{Object: "Service turn/lobby", Problem: "denied by admission control"},
	}})
	r := translate.Gateway(v, key, c.options)
	accepted, programmed := r.Status.Conditions[0], r.Status.Conditions[1]
	const want = "the API server refuses spec.externalIPs of Service turn/lobby, which does without: denied by admission control"
	if accepted.Status != metav1.ConditionTrue || programmed.Status != metav1.ConditionTrue ||
		!strings.Contains(accepted.Message, want) {
		t.Errorf("the Gateway says %+v and %+v", accepted, programmed)
	}
}

func withStatus(gw *gwapiv1.Gateway, status gwapiv1.GatewayStatus) *gwapiv1.Gateway {
	gw = gw.DeepCopy()
	gw.Status = status
	return gw
}

// While the credentials of a Gateway are missing, its Services and its workload are known. While its parameters are
// missing, they are not.
func TestASkeletonNeedsNoCredentials(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_load_balancer_may_report_ports.txtar"))
	for kind, want := range map[string]bool{"Secret": true, "GatewayConfig": false, "Dataplane": false} {
		v := c.view()
		key := v.Gateways()[0]
		whole := translate.Gateway(v, key, c.options)
		v = resource.NewView(slices.DeleteFunc(
			slices.Clone(c.objects), func(o resource.Object) bool { return reflect.TypeOf(o).Elem().Name() == kind },
		))
		r := translate.Gateway(v, key, c.options)
		if r.Decision != translate.Held || r.Objects != nil || len(whole.Skeleton) != 2 || want &&
			!reflect.DeepEqual(r.Skeleton, whole.Skeleton) || !want && r.Skeleton != nil {
			t.Errorf("without %s: %s, %d objects, skeleton %v", kind, r.Decision, len(r.Objects), r.Skeleton)
		}
	}
}
