package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Fleet is what a provider has found out about the dataplanes of the Gateway with its name, from what they report. It is an object so that it
// reaches a View like any other, and no API server knows it. It changes seldom: what changes with every report is not in it.
type Fleet struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	FleetState
}

// FleetState is all that counts of a Fleet. The zero value has nothing to say: all is well, or nobody reports.
type FleetState struct {
	// Pod is one of the dataplanes when all of them have turned the config down, or serve it in part only, and Problem is what it says.
	Pod, Problem string
	// Behind is the number of dataplanes when none runs what is published, for longer than the way there takes.
	Behind int
	// Draining is the number of dataplanes that take no new clients and serve the ones that they have.
	Draining int
}

// DeepCopyObject is part of runtime.Object.
func (f *Fleet) DeepCopyObject() runtime.Object {
	return &Fleet{TypeMeta: f.TypeMeta, ObjectMeta: *f.ObjectMeta.DeepCopy(), FleetState: f.FleetState}
}

// Fleet returns what is known of the dataplanes of a Gateway.
func (v *View) Fleet(gateway types.NamespacedName) FleetState {
	if f := find(v, v.fleets, aFleet, gateway); f != nil {
		return f.FleetState
	}
	return FleetState{}
}
