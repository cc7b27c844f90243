package kube

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// If an autoscaler sets the number of pods through the scale subresource, this number stays, also when the operator
// writes the Deployment or restarts, and although the Dataplane has a number. The operator and the autoscaler do not
// revert each other. A condition of the Gateway reports this. A later change of the number in the Dataplane takes
// effect once.
func TestReplicasOfAnAutoscalerStay(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	scale := func(number int) {
		s.Helper()
		s.patch("deployment/front-door", types.MergePatchType, fmt.Sprintf(`{"spec":{"replicas":%d}}`, number), "scale")
		s.processed()
		s.sees("deployment/front-door", ".spec.replicas", fmt.Sprint(number))
	}
	const note = `spec.replicas is not in force, because field manager "`
	s.reshape(`{"replicas":2}`)
	s.sees("deployment/front-door", ".spec.replicas", "2")
	numbers := s.follow("deployment/front-door", ".spec.replicas")

	scale(5)
	s.says("gateway/front-door", "Accepted", note)
	scale(2) // the number of the Dataplane, which the autoscaler has set by itself
	scale(6)
	s.stop()
	s.start()
	s.processed()
	s.sees("deployment/front-door", ".spec.replicas", "6")
	s.says("gateway/front-door", "Accepted", note)

	s.reshape(`{"replicas":3}`)
	s.sees("deployment/front-door", ".spec.replicas", "3")
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`, "")
	scale(7)
	s.reshape(`{"replicas":null}`)
	s.sees("deployment/front-door", `.metadata.annotations.stunner\.l7mp\.io/replicas`, "unset")
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`, "")
	s.sees("deployment/front-door", ".spec.replicas", "7")
	s.reshape(`{"replicas":3}`)
	if got, want := numbers("3"), "2 5 2 6 3 7 3"; got != want {
		t.Errorf("spec.replicas had the values %s, want %s", got, want)
	}
}
