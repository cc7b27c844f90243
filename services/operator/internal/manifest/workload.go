package manifest

import (
	"cmp"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Workload is what a Dataplane template is filled in with.
type Workload struct {
	// Template is the Dataplane.
	Template *stunnerv1.Dataplane
	// Image is used when the template names none.
	Image string
	// ConfigOrigin is where the pods find their config.
	ConfigOrigin string
	// Secured gives the pods a token for config discovery, and the certificates by which they know it.
	Secured bool
}

// WorkloadName returns the name of the workload that a Dataplane gives a Gateway.
func WorkloadName(template *stunnerv1.Dataplane, gateway string) string {
	return cmp.Or(template.Spec.WorkloadName, gateway)
}

// Build returns the Deployment or the DaemonSet that runs the pods of a Gateway. The error is about the Dataplane's own patch.
func (w Workload) Build(o Owner) (resource.Object, error) {
	meta := o.meta(WorkloadName(w.Template, o.Name))
	pod, err := patched(w.pod(o), w.Template.Spec.PodTemplatePatch)
	if err != nil {
		return nil, err
	}
	if w.Template.Spec.DataplaneResource == stunnerv1.ResourceDaemonSet {
		return &appsv1.DaemonSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
			ObjectMeta: meta,
			Spec:       appsv1.DaemonSetSpec{Selector: selector(o), Template: pod},
		}, nil
	}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: meta,
		Spec:       appsv1.DeploymentSpec{Replicas: replicas(w.Template.Spec), Selector: selector(o), Template: pod},
	}, nil
}

// replicas is nil, which leaves the number to whoever owns it, unless a number was asked for and nobody scales. One is what a
// Deployment has anyway: set, it would undo every scaling by hand.
func replicas(spec stunnerv1.DataplaneSpec) *int32 {
	if spec.Replicas == nil || *spec.Replicas == 1 || spec.Autoscaling != nil {
		return nil
	}
	return new(*spec.Replicas)
}

// KeepsReplicas tells whether the number of pods that there is must stay when nobody says one any more. It would not by itself: a number that
// nobody says is 1 to Kubernetes.
func KeepsReplicas(template *stunnerv1.Dataplane) bool {
	return template.Spec.Replicas == nil || Scaled(template)
}

// selector is immutable in Kubernetes: a change of its form would make every existing workload unusable.
func selector(o Owner) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	labels := o.podLabels()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{labels[key]},
		})
	}
	return s
}
