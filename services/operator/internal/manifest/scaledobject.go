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

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// KEDA is the group and version of the kinds of KEDA, which not every cluster knows.
var KEDA = schema.GroupVersion{Group: "keda.sh", Version: "v1alpha1"}

// The kinds of KEDA that are made for Gateways.
const (
	KindScaledObject          = "ScaledObject"
	KindTriggerAuthentication = "TriggerAuthentication"
)

// Scaling is what scales the workload of a Gateway.
type Scaling struct {
	// Template is the Dataplane.
	Template *stunnerv1.Dataplane
	// Address is where KEDA asks the operator, HOST:PORT.
	Address string
	// Secured makes KEDA ask over TLS, and know the operator by the CA in the Gateway's ConfigMap.
	Secured bool
}

// Scaled tells whether an autoscaler owns the number of a Dataplane's pods.
func Scaled(template *stunnerv1.Dataplane) bool {
	return template.Spec.Autoscaling != nil && template.Spec.DataplaneResource != stunnerv1.ResourceDaemonSet
}

// CheckScaling says what is wrong with the autoscaling of a Dataplane that an API server with an older schema has let through.
func CheckScaling(template *stunnerv1.Dataplane) error {
	a := template.Spec.Autoscaling
	if a == nil {
		return nil
	}
	switch {
	case a.Trigger == stunnerv1.TriggerPrometheus && (a.Prometheus == nil || a.Prometheus.ServerAddress == ""):
		return fmt.Errorf("prometheus.serverAddress is missing: trigger prometheus needs it")
	case a.AllocationsPerReplica != nil && (*a.AllocationsPerReplica < 1 || *a.AllocationsPerReplica > stunnerv1.MaxAllocationsPerReplica):
		return fmt.Errorf("allocationsPerReplica is %d: use a number from 1 to %d", *a.AllocationsPerReplica, stunnerv1.MaxAllocationsPerReplica)
	case a.MaxReplicas < least(a):
		return fmt.Errorf("maxReplicas %d is less than minReplicas %d", a.MaxReplicas, least(a))
	}
	return nil
}

// Build returns what KEDA needs to scale the pods of a Gateway; nothing when nobody is to scale them. The Dataplane has passed CheckScaling.
func (s Scaling) Build(o Owner) (objects []resource.Object) {
	if !Scaled(s.Template) {
		return nil
	}
	name := WorkloadName(s.Template, o.Name)
	if s.authenticates() {
		objects = append(objects, kedaObject(&triggerAuthentication{
			TypeMeta: kedaType(KindTriggerAuthentication), ObjectMeta: o.meta(name),
			Spec: triggerAuthenticationSpec{ConfigMapTargetRef: []authTarget{{Parameter: "caCert", Name: o.Name, Key: DiscoveryCAKey}}},
		}))
	}
	return append(objects, kedaObject(&scaledObject{TypeMeta: kedaType(KindScaledObject), ObjectMeta: o.meta(name), Spec: s.spec(o, name)}))
}

// authenticates tells whether KEDA has to know the operator by its CA.
func (s Scaling) authenticates() bool {
	return s.Secured && s.Template.Spec.Autoscaling.Trigger != stunnerv1.TriggerPrometheus
}

func (s Scaling) spec(o Owner, name string) scaledObjectSpec {
	a := s.Template.Spec.Autoscaling
	t := s.operatorTrigger(o, name)
	if a.Trigger == stunnerv1.TriggerPrometheus {
		t = prometheusTrigger(o, a)
	}
	t.UseCachedMetrics = a.PollingInterval != nil // by itself KEDA asks when it is asked, and an interval means nothing to it
	return scaledObjectSpec{
		ScaleTargetRef:  scaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		MinReplicaCount: least(a),
		MaxReplicaCount: a.MaxReplicas,
		PollingInterval: a.PollingInterval,
		// When nobody can say how many calls there are, none is ended blindly.
		Fallback: fallback{FailureThreshold: 3, Replicas: least(a), Behavior: "currentReplicasIfHigher"},
		Advanced: advanced{Autoscaler: autoscaler{Behavior: behavior(a.Behavior)}},
		Triggers: []trigger{t},
	}
}

// least is never 0: without a pod there is nobody to take the first call.
func least(a *stunnerv1.Autoscaling) int32 {
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

// behavior is what a Dataplane says of each direction, or else what ends no calls: a pod that goes serves its calls to their end, but for its
// grace period at most.
func behavior(wish *autoscalingv2.HorizontalPodAutoscalerBehavior) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(0)),
			Policies:                   []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 30}},
		},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(1800)),
			Policies:                   []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 300}},
		},
	}
	if wish != nil && wish.ScaleUp != nil {
		b.ScaleUp = wish.ScaleUp
	}
	if wish != nil && wish.ScaleDown != nil {
		b.ScaleDown = wish.ScaleDown
	}
	return b
}

// operatorTrigger has KEDA ask the operator, which knows what dataplanes report.
func (s Scaling) operatorTrigger(o Owner, name string) trigger {
	t := trigger{Type: "external", Metadata: map[string]string{
		"scalerAddress": s.Address, "namespace": o.Namespace, "gateway": o.Name, "allocationsPerReplica": target(s.Template.Spec.Autoscaling),
	}}
	if s.authenticates() {
		t.Metadata["enableTLS"] = "true"
		t.AuthenticationRef = &authenticationRef{Name: name, Kind: KindTriggerAuthentication}
	}
	return t
}

// prometheusTrigger has KEDA ask a Prometheus. Of pods that drain nothing counts: they take no calls, and more pods would not help them. No samples
// are a fault, not an empty house.
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

// What is written of KEDA's kinds. KEDA's own types come with its webhooks and with a client of the cluster, which nothing pure may reach: a test
// compares the two.
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

// kedaObject is the object that one of the structs above describes.
func kedaObject(described any) *unstructured.Unstructured {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(described)
	if err != nil {
		panic(fmt.Sprintf("convert %T: %v", described, err)) // its fields are known to be ones that can be
	}
	return &unstructured.Unstructured{Object: fields}
}
