package manifest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// byHand is the folder with manifests for autoscaling without the operator.
const byHand = "../../../../keda"

// Autoscaling is off by default, and never applies to a DaemonSet.
func TestAutoscalingIsOffByDefault(t *testing.T) {
	for name, spec := range map[string]stunnerv1.DataplaneSpec{
		"unset": {},
		"daemon set": {
			DataplaneResource: stunnerv1.ResourceDaemonSet, Autoscaling: &stunnerv1.Autoscaling{MaxReplicas: 4},
		},
	} {
		if built := (manifest.Scaling{Template: &stunnerv1.Dataplane{Spec: spec}}).Build(owner); len(built) > 0 {
			t.Errorf("%s: %v", name, built)
		}
	}
}

// The documented manifests for users equal the objects that the operator generates.
func TestManifestsForUsersEqualThoseOfTheOperator(t *testing.T) {
	door := owner
	door.Namespace, door.Name = "stunner-system", "front-door"
	bounds := stunnerv1.Autoscaling{MinReplicas: new(int32(2)), MaxReplicas: 10}
	asksPrometheus := bounds
	asksPrometheus.Trigger = stunnerv1.TriggerPrometheus
	asksPrometheus.Prometheus = &stunnerv1.PrometheusTrigger{
		ServerAddress: "http://prometheus-operated.monitoring.svc:9090",
	}
	for file, a := range map[string]stunnerv1.Autoscaling{"external.yaml": bounds, "prometheus.yaml": asksPrometheus} {
		text, err := os.ReadFile(filepath.Join(byHand, file))
		if err != nil {
			t.Fatal(err)
		}
		written := map[string]any{}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &o.Object); err != nil {
				t.Fatal(err)
			}
			written[o.GetKind()] = o.Object["spec"]
		}
		built := map[string]any{}
		for _, o := range (manifest.Scaling{
			Template: &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{Autoscaling: &a}},
			Address:  "stunner-config-discovery.stunner-system.svc.cluster.local:13480", Secured: true,
		}).Build(door) {
			built[o.GetObjectKind().GroupVersionKind().Kind] = fields(t, o)["spec"]
		}
		if diff := cmp.Diff(written, built); diff != "" {
			t.Errorf("%s (-by hand +operator):\n%s", file, diff)
		}
	}
}

// fields returns the fields of an object as in YAML.
func fields(t *testing.T, o any) (read map[string]any) {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// The metrics in the query exist.
func TestQueryAsksForMetricsThatExist(t *testing.T) {
	a := stunnerv1.Autoscaling{
		MaxReplicas: 4, Trigger: stunnerv1.TriggerPrometheus,
		Prometheus: &stunnerv1.PrometheusTrigger{ServerAddress: "http://p"},
	}
	so := manifest.Scaling{
		Template: &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{Autoscaling: &a}},
	}.Build(owner)[0].(*unstructured.Unstructured)
	triggers, _, err := unstructured.NestedSlice(so.Object, "spec", "triggers")
	if err != nil {
		t.Fatal(err)
	}
	want := "sum(" + telemetry.AllocationsActive + `{namespace="quay",gateway="north"}) - sum(` + telemetry.AllocationsDraining + `{namespace="quay",gateway="north"})`
	if got := triggers[0].(map[string]any)["metadata"].(map[string]any)["query"]; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
