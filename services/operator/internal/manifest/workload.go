package manifest

import (
	"cmp"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Workload builds the Deployment or DaemonSet of a Gateway.
type Workload struct {
	// Template is the Dataplane.
	Template *stunnerv1.Dataplane
	// Image is the image for a Dataplane without spec.image.
	Image string
	// ConfigOrigin is the URL of config discovery.
	ConfigOrigin string
	// Secured makes the pods authenticate to config discovery with a token and verify its certificate.
	Secured bool
	// Unprivileged omits the capabilities of in-kernel forwarding.
	Unprivileged bool
	// Ports are the ports of the health check and metrics endpoints.
	Ports ProcessPorts
}

// WorkloadName returns the name of the Deployment or DaemonSet of a Gateway: spec.workloadName, or else the name of the
// Gateway.
func WorkloadName(template *stunnerv1.Dataplane, gateway string) string {
	return cmp.Or(template.Spec.WorkloadName, gateway)
}

// Build returns the Deployment or DaemonSet of a Gateway. It returns an error if spec.podTemplatePatch is invalid.
func (w Workload) Build(o Owner) (resource.Object, error) {
	meta := o.meta(WorkloadName(w.Template, o.Name))
	pod, err := patched(w.pod(o), w.Template.Spec.PodTemplatePatch)
	if err != nil {
		return nil, err
	}
	if isDaemonSet(w.Template.Spec) {
		return &appsv1.DaemonSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
			ObjectMeta: meta,
			Spec:       appsv1.DaemonSetSpec{Selector: selector(o), Template: pod},
		}, nil
	}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{
			Replicas: replicas(w.Template.Spec), Selector: selector(o), Template: pod, Strategy: strategy(w.Template.Spec),
		},
	}, nil
}

func isDaemonSet(spec stunnerv1.DataplaneSpec) bool {
	return spec.DataplaneResource == stunnerv1.ResourceDaemonSet
}

// strategy returns the update strategy of a Deployment. With host network, a pod ends before the next one starts, as in
// an update of a DaemonSet: an additional pod would find no node without a pod of the Gateway. Otherwise the strategy
// is the default of Kubernetes.
func strategy(spec stunnerv1.DataplaneSpec) appsv1.DeploymentStrategy {
	if !spec.HostNetwork {
		return appsv1.DeploymentStrategy{}
	}
	return appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
		},
	}
}

// replicas returns spec.replicas of the Deployment, or nil if the operator must not set the field. With autoscaling, it
// returns nil, so that the autoscaler can own the field. It also returns nil instead of 1, which is the default of
// Kubernetes, so that manual scaling is not reverted.
func replicas(spec stunnerv1.DataplaneSpec) *int32 {
	if spec.Replicas == nil || *spec.Replicas == 1 || spec.Autoscaling != nil {
		return nil
	}
	return new(*spec.Replicas)
}

// KeepsReplicas reports whether the number of pods must not change when the operator stops setting spec.replicas of the
// Deployment. Without special treatment, server-side apply would remove the field, and Kubernetes would reset it to 1.
func KeepsReplicas(template *stunnerv1.Dataplane) bool {
	return template.Spec.Replicas == nil || Scaled(template)
}

// selector returns the label selector for the pods of a Gateway. It must never change, because Kubernetes does not
// allow changing the selector of a workload.
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
