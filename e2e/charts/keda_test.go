package charts

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// The documented ScaledObject queries metrics that dataplanes export, treats missing data as an error, never removes
// the last pod, and removes pods slowly.
func TestAutoscaling_EndsNoCalls(t *testing.T) {
	objects := kustomize(t, "keda")
	if len(objects) != 1 {
		t.Fatalf("%d objects", len(objects))
	}
	text, err := yaml.Marshal(objects[0].Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		MinReplicaCount int
		Fallback        struct{ Behavior string }
		Advanced        struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior struct {
					ScaleDown struct {
						StabilizationWindowSeconds int
						Policies                   []struct{ Value int }
					}
				}
			}
		}
		Triggers []struct{ Metadata map[string]string }
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	down := spec.Advanced.HorizontalPodAutoscalerConfig.Behavior.ScaleDown
	if spec.MinReplicaCount < 1 || spec.Fallback.Behavior != "currentReplicasIfHigher" ||
		down.StabilizationWindowSeconds < 600 || len(down.Policies) != 1 || down.Policies[0].Value != 1 {
		t.Errorf("%+v", spec)
	}
	settings := spec.Triggers[0].Metadata
	if settings["ignoreNullValues"] != "false" {
		t.Error("an empty result of Prometheus counts as 0")
	}
	asked := map[string]bool{}
	for _, name := range regexp.MustCompile(`stunner_\w+`).FindAllString(settings["query"], -1) {
		asked[name] = slices.ContainsFunc(telemetry.Metrics, func(m telemetry.Metric) bool { return m.Name == name })
	}
	if want := map[string]bool{
		telemetry.AllocationsActive: true, telemetry.AllocationsDraining: true,
	}; !maps.Equal(asked, want) {
		t.Errorf("the query uses %v", asked)
	}
}
