package manifest

import (
	"fmt"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// KEDA is the API group and version of KEDA.
var KEDA = schema.GroupVersion{Group: "keda.sh", Version: "v1alpha1"}

// The kinds of KEDA that the operator creates.
const (
	KindScaledObject          = "ScaledObject"
	KindTriggerAuthentication = "TriggerAuthentication"
)

// Scaling builds the autoscaling objects of a Gateway.
type Scaling struct {
	// Template is the Dataplane.
	Template *stunnerv1.Dataplane
	// Address is the address HOST:PORT of the operator's external scaler.
	Address string
	// Secured makes KEDA connect over TLS and verify the certificate of the operator with the CA certificates in the
	// Gateway's ConfigMap.
	Secured bool
}

// Scaled reports whether KEDA sets the number of pods.
func Scaled(template *stunnerv1.Dataplane) bool {
	return template.Spec.Autoscaling != nil && template.Spec.DataplaneResource != stunnerv1.ResourceDaemonSet
}

// CheckScaling validates spec.autoscaling of a Dataplane. The CRD has the same rules, but an older version of the CRD
// may be installed.
func CheckScaling(template *stunnerv1.Dataplane) error {
	a := template.Spec.Autoscaling
	if a == nil {
		return nil
	}
	const most = stunnerv1.MaxAllocationsPerReplica
	switch {
	case a.Trigger == stunnerv1.TriggerPrometheus && (a.Prometheus == nil || a.Prometheus.ServerAddress == ""):
		return fmt.Errorf("prometheus.serverAddress is missing: trigger prometheus needs it")
	case a.AllocationsPerReplica != nil && (*a.AllocationsPerReplica < 1 || *a.AllocationsPerReplica > most):
		return finding.Errorf(fmt.Sprintf("use a number from 1 to %d", most), "allocationsPerReplica is %d", *a.AllocationsPerReplica)
	case a.MaxReplicas < minPods(a):
		return fmt.Errorf("maxReplicas %d is less than minReplicas %d", a.MaxReplicas, minPods(a))
	}
	return nil
}

// Build returns the ScaledObject, and a TriggerAuthentication if KEDA needs one. It returns nothing if the Dataplane
// has no autoscaling. The Dataplane must have passed CheckScaling.
func (s Scaling) Build(o Owner) (objects []resource.Object) {
	if !Scaled(s.Template) {
		return nil
	}
	name := WorkloadName(s.Template, o.Name)
	if s.authenticates() {
		objects = append(objects, kedaObject(&triggerAuthentication{
			TypeMeta: kedaType(KindTriggerAuthentication), ObjectMeta: o.meta(name),
			Spec: triggerAuthenticationSpec{
				ConfigMapTargetRef: []authTarget{{Parameter: "caCert", Name: o.Name, Key: DiscoveryCAKey}},
			},
		}))
	}
	return append(objects, kedaObject(&scaledObject{
		TypeMeta: kedaType(KindScaledObject), ObjectMeta: o.meta(name), Spec: s.spec(o, name),
	}))
}

// authenticates reports whether KEDA needs the CA certificates of the operator, because it connects to the operator
// over TLS.
func (s Scaling) authenticates() bool {
	return s.Secured && s.Template.Spec.Autoscaling.Trigger != stunnerv1.TriggerPrometheus
}

func (s Scaling) spec(o Owner, name string) scaledObjectSpec {
	a := s.Template.Spec.Autoscaling
	t := s.operatorTrigger(o, name)
	if a.Trigger == stunnerv1.TriggerPrometheus {
		t = prometheusTrigger(o, a)
	}
	// without UseCachedMetrics, KEDA ignores pollingInterval for metrics requests
	t.UseCachedMetrics = a.PollingInterval != nil
	return scaledObjectSpec{
		ScaleTargetRef:  scaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		MinReplicaCount: minPods(a),
		MaxReplicaCount: a.MaxReplicas,
		PollingInterval: a.PollingInterval,
		// If the number of allocations is unknown, the number of pods must not decrease.
		Fallback: fallback{FailureThreshold: 3, Replicas: minPods(a), Behavior: "currentReplicasIfHigher"},
		Advanced: advanced{Autoscaler: autoscaler{Behavior: behavior(a.Behavior)}},
		Triggers: []trigger{t},
	}
}

// minPods returns the minimum number of pods for the ScaledObject. The minimum is at least 1: without a pod, no client
// can connect, so there would be no load that causes scaling up.
func minPods(a *stunnerv1.Autoscaling) int32 {
	if a.MinReplicas == nil {
		return stunnerv1.DefaultMinReplicas
	}
	return max(*a.MinReplicas, 1)
}

func target(a *stunnerv1.Autoscaling) string {
	if a.AllocationsPerReplica == nil {
		return strconv.Itoa(stunnerv1.DefaultAllocationsPerReplica)
	}
	return strconv.Itoa(int(*a.AllocationsPerReplica))
}

// behavior returns the scaling behavior, with a default for each direction (up, down) that spec does not set. Scaling
// down is slow by default, because calls on a removed pod end after the termination grace period.
func behavior(spec *autoscalingv2.HorizontalPodAutoscalerBehavior) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(0)),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 30},
			},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(1800)),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 300},
			},
		},
	}
	if spec != nil && spec.ScaleUp != nil {
		b.ScaleUp = spec.ScaleUp
	}
	if spec != nil && spec.ScaleDown != nil {
		b.ScaleDown = spec.ScaleDown
	}
	return b
}

// operatorTrigger returns a KEDA trigger for the operator's external scaler, whose metric is the number of allocations
// that dataplanes report, without allocations of draining dataplanes.
func (s Scaling) operatorTrigger(o Owner, name string) trigger {
	t := trigger{Type: "external", Metadata: map[string]string{
		"scalerAddress": s.Address, "namespace": o.Namespace, "gateway": o.Name,
		"allocationsPerReplica": target(s.Template.Spec.Autoscaling),
	}}
	if s.authenticates() {
		t.Metadata["enableTLS"] = "true"
		t.AuthenticationRef = &authenticationRef{Name: name, Kind: KindTriggerAuthentication}
	}
	return t
}

// prometheusTrigger returns a KEDA trigger for a Prometheus query. Allocations of draining pods are not counted,
// because additional pods would not take over these allocations. A query without samples is an error rather than 0, so
// that no pod with calls is removed.
func prometheusTrigger(o Owner, a *stunnerv1.Autoscaling) trigger {
	of := fmt.Sprintf("{namespace=%q,gateway=%q}", o.Namespace, o.Name)
	t := trigger{Type: "prometheus", Metadata: map[string]string{
		"serverAddress":    a.Prometheus.ServerAddress,
		"query":            "sum(stunner_allocations_active" + of + ") - sum(stunner_allocations_draining" + of + ")",
		"threshold":        target(a),
		"ignoreNullValues": "false",
	}}
	if len(a.Prometheus.AuthModes) > 0 {
		t.Metadata["authModes"] = strings.Join(a.Prometheus.AuthModes, ",")
	}
	if ref := a.Prometheus.AuthenticationRef; ref != nil {
		t.AuthenticationRef = &authenticationRef{Name: ref.Name, Kind: ref.Kind}
	}
	return t
}

// The types below are the parts of the KEDA API that the operator writes. The types of KEDA itself are not imported,
// because their module depends on webhooks and a cluster client. A test compares the two.
type (
	scaledObject struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              scaledObjectSpec `json:"spec"`
	}
	scaledObjectSpec struct {
		ScaleTargetRef  scaleTarget `json:"scaleTargetRef"`
		MinReplicaCount int32       `json:"minReplicaCount"`
		MaxReplicaCount int32       `json:"maxReplicaCount"`
		PollingInterval *int32      `json:"pollingInterval,omitempty"`
		Fallback        fallback    `json:"fallback"`
		Advanced        advanced    `json:"advanced"`
		Triggers        []trigger   `json:"triggers"`
	}
	scaleTarget struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
	}
	fallback struct {
		FailureThreshold int32  `json:"failureThreshold"`
		Replicas         int32  `json:"replicas"`
		Behavior         string `json:"behavior"`
	}
	advanced struct {
		Autoscaler autoscaler `json:"horizontalPodAutoscalerConfig"`
	}
	autoscaler struct {
		Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
	}
	trigger struct {
		Type              string             `json:"type"`
		UseCachedMetrics  bool               `json:"useCachedMetrics,omitempty"`
		Metadata          map[string]string  `json:"metadata"`
		AuthenticationRef *authenticationRef `json:"authenticationRef,omitempty"`
	}
	authenticationRef struct {
		Name string `json:"name"`
		Kind string `json:"kind,omitempty"`
	}

	triggerAuthentication struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              triggerAuthenticationSpec `json:"spec"`
	}
	triggerAuthenticationSpec struct {
		ConfigMapTargetRef []authTarget `json:"configMapTargetRef"`
	}
	authTarget struct {
		Parameter string `json:"parameter"`
		Name      string `json:"name"`
		Key       string `json:"key"`
	}
)

func kedaType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: KEDA.String(), Kind: kind}
}

// kedaObject converts a KEDA object from its Go type in this file to an unstructured object.
func kedaObject(described any) *unstructured.Unstructured {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(described)
	if err != nil {
		panic(fmt.Sprintf("convert %T: %v", described, err)) // impossible: the fields are JSON types
	}
	return &unstructured.Unstructured{Object: fields}
}
