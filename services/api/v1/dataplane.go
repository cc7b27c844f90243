package v1

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What a Dataplane says by saying nothing. A test compares them with what the CRD fills in.
const (
	DefaultDataplaneResource             = ResourceDeployment
	DefaultTerminationGracePeriodSeconds = 3600
	DefaultOffloadEngine                 = OffloadNone
	DefaultMinReplicas                   = 1
	DefaultAllocationsPerReplica         = 500
	MaxAllocationsPerReplica             = 1_000_000 // more than a pod has ports
	DefaultScalingTrigger                = TriggerExternal
	DefaultTriggerAuthentication         = "TriggerAuthentication"
)

// DataplaneResource is the kind of the workload that runs the dataplane pods.
//
// +kubebuilder:validation:Enum=Deployment;DaemonSet
type DataplaneResource string

// The kinds of workload.
const (
	ResourceDeployment DataplaneResource = "Deployment"
	ResourceDaemonSet  DataplaneResource = "DaemonSet"
)

// OffloadEngine is the part of the kernel that forwards media without the dataplane process.
//
// +kubebuilder:validation:Enum=None;XDP;TC;Auto
type OffloadEngine string

// The engines. Auto takes the fastest one that the node offers.
const (
	OffloadNone OffloadEngine = "None"
	OffloadXDP  OffloadEngine = "XDP"
	OffloadTC   OffloadEngine = "TC"
	OffloadAuto OffloadEngine = "Auto"
)

// ScalingTrigger is where the autoscaler learns the number of allocations.
//
// +kubebuilder:validation:Enum=prometheus;external
type ScalingTrigger string

// The triggers: a Prometheus query, or the operator itself.
const (
	TriggerPrometheus ScalingTrigger = "prometheus"
	TriggerExternal   ScalingTrigger = "external"
)

// Dataplane is the template of the pods that serve Gateways. It is cluster-scoped, because it decides what runs in the namespaces of
// others. The one named default serves every Gateway whose GatewayConfig names no other.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dps,categories=stunner
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.spec.dataplaneResource`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`,priority=1
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`,priority=1
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.autoscaling.maxReplicas`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Used by",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Dataplane struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the template.
	// +optional
	Spec DataplaneSpec `json:"spec,omitempty"`

	// Status says whether the operator can use this object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// DataplaneNamespaces says which namespaces may use a Dataplane.
//
// +kubebuilder:validation:XValidation:message="from Selector needs a selector",rule="!has(self.from) || self.from != 'Selector' || has(self.selector)"
type DataplaneNamespaces struct {
	// From is All, Selector for the namespaces that selector selects, or None. Unset means None.
	//
	// +optional
	From NamespacesFrom `json:"from,omitempty"`

	// Selector is about the labels of namespaces. It counts with from Selector only.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// NamespacesFrom says which namespaces are meant.
//
// +kubebuilder:validation:Enum=All;Selector;None
type NamespacesFrom string

// The namespaces: all, those that a selector selects, or none.
const (
	NamespacesFromAll      NamespacesFrom = "All"
	NamespacesFromSelector NamespacesFrom = "Selector"
	NamespacesFromNone     NamespacesFrom = "None"
)

// DataplaneSpec is the template of the pods that serve Gateways.
//
// +kubebuilder:validation:XValidation:message="autoscaling needs dataplaneResource Deployment: a DaemonSet has one pod per node",rule="!has(self.autoscaling) || !has(self.dataplaneResource) || self.dataplaneResource == 'Deployment'"
// +kubebuilder:validation:XValidation:message="replicas needs dataplaneResource Deployment: a DaemonSet has one pod per node",rule="!has(self.replicas) || !has(self.dataplaneResource) || self.dataplaneResource == 'Deployment'"
type DataplaneSpec struct {
	// DataplaneResource is the kind of the workload: Deployment, or DaemonSet for one pod per node.
	//
	// +optional
	// +kubebuilder:default=Deployment
	DataplaneResource DataplaneResource `json:"dataplaneResource,omitempty"`

	// WorkloadName is the name of the generated Deployment or DaemonSet. Unset means the name of the Gateway. A fixed name is for
	// autoscalers and dashboards that expect one; it fits a Dataplane that serves at most one Gateway per namespace.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	WorkloadName string `json:"workloadName,omitempty"`

	// AllowedNamespaces are the namespaces whose own GatewayConfigs, those that Gateways name in spec.infrastructure.parametersRef, may
	// name this Dataplane. Unset means none. The GatewayConfig of a GatewayClass may always name it.
	//
	// +optional
	AllowedNamespaces *DataplaneNamespaces `json:"allowedNamespaces,omitempty"`

	// Labels go onto the pods, beside those that the operator needs.
	//
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations go onto the pods, beside those that the operator needs.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Image is the container image. Unset means the dataplane image of the operator's own release.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`

	// ImagePullPolicy is when the image is pulled. Unset means Always for the tag latest and IfNotPresent for any other.
	//
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// ImagePullSecrets name the Secrets, in the namespace of the Gateway, with which the image is pulled.
	//
	// +optional
	// +listType=atomic
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// Command replaces the entry point of the image.
	//
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`

	// Args are the arguments of the command.
	//
	// +optional
	// +listType=atomic
	Args []string `json:"args,omitempty"`

	// EnvFrom are sources of environment variables, in the namespace of the Gateway.
	//
	// +optional
	// +listType=atomic
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// Env are environment variables, beside those that the operator sets.
	//
	// +optional
	// +listType=atomic
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Resources are the compute resources of the container.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// ContainerSecurityContext is the security context of the container. Unset means one that the restricted Pod Security Standard
	// admits.
	//
	// +optional
	ContainerSecurityContext *corev1.SecurityContext `json:"containerSecurityContext,omitempty"`

	// SecurityContext is the security context of the pod.
	//
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// Replicas is the number of pods. Unset, and 1, leave the number to whoever scales the workload. It is not in force while autoscaling is
	// set.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Replicas *int32 `json:"replicas,omitempty"`

	// Autoscaling scales the pods on their live allocations. It needs KEDA in the cluster; until that is there the number of pods stays.
	//
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// TerminationGracePeriodSeconds is how long a pod that was told to stop may go on serving the calls that it has. It takes no new
	// ones, and ends with the last of them.
	//
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=0
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`

	// HostNetwork puts the pods into the network namespace of their node.
	//
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`

	// RelayPortRange are the UDP ports that relays may have, for firewalls and security groups between the pods and media servers. Each
	// allocation takes one port of an address family, and a port rests for a second after its use. Unset leaves the choice to the kernel of the
	// node. A change restarts the pods.
	//
	// +optional
	RelayPortRange *RelayPortRange `json:"relayPortRange,omitempty"`

	// Affinity says on which nodes the pods may run.
	//
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// Tolerations say which taints the pods bear.
	//
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// TopologySpreadConstraints say how the pods spread over zones and nodes.
	//
	// +optional
	// +listType=atomic
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// DisableHealthCheck leaves out the health endpoint and the probes of the pods.
	//
	// +optional
	DisableHealthCheck bool `json:"disableHealthCheck,omitempty"`

	// EnableMetricsEndpoint serves Prometheus metrics on port 8080 of the pods.
	//
	// +optional
	EnableMetricsEndpoint bool `json:"enableMetricsEndpoint,omitempty"`

	// OffloadEngine is the part of the kernel that forwards media without the dataplane process. This release has none: what is asked for is
	// warned of, and media is forwarded as with None.
	//
	// +optional
	// +kubebuilder:default=None
	OffloadEngine OffloadEngine `json:"offloadEngine,omitempty"`

	// OffloadInterfaces are the network interfaces to which the engine attaches. Empty means all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	OffloadInterfaces []string `json:"offloadInterfaces,omitempty"`

	// Service is what the Services of the Gateways have beside ports and annotations.
	//
	// +optional
	Service *ServiceOverlay `json:"service,omitempty"`

	// EnableNetworkPolicy makes a NetworkPolicy for the pods of each Gateway. Whoever is there may reach the ports of its listeners, the
	// ports from 1024 on over UDP, where relayed media arrives, and the ports for health and metrics. The pods may send UDP to everybody,
	// because what they may relay is for the routes to say, and open TCP connections for DNS and config discovery only. Pods in the
	// network of their node are beyond the reach of a NetworkPolicy.
	//
	// +optional
	EnableNetworkPolicy bool `json:"enableNetworkPolicy,omitempty"`

	// PodTemplatePatch is a strategic merge patch of the pod template, for what has no field of its own: sidecars, volumes, a priority
	// class. It is applied last. The labels that Services select by and the container stunner-daemon must stay. A patch that cannot be
	// used is told in the condition Accepted, and everything stays as it is.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	PodTemplatePatch *runtime.RawExtension `json:"podTemplatePatch,omitempty"`
}

// RelayPortRange is a range of UDP ports. The ports of listeners should not be in it: a listener cannot open a port that a relay has.
//
// +kubebuilder:validation:XValidation:message="maxPort must not be less than minPort: raise maxPort or lower minPort",rule="self.maxPort >= self.minPort"
type RelayPortRange struct {
	// MinPort is the first port of the range.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	MinPort int32 `json:"minPort"`

	// MaxPort is the last port of the range.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	MaxPort int32 `json:"maxPort"`
}

// ServiceOverlay is what a Service has beside what a Gateway says of it. The fields are those of a Kubernetes Service.
//
// +kubebuilder:validation:XValidation:message="ipFamilies must not name a family twice",rule="!has(self.ipFamilies) || size(self.ipFamilies) < 2 || self.ipFamilies[0] != self.ipFamilies[1]"
// +kubebuilder:validation:XValidation:message="two ipFamilies need ipFamilyPolicy PreferDualStack or RequireDualStack",rule="!has(self.ipFamilies) || size(self.ipFamilies) < 2 || has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack'"
type ServiceOverlay struct {
	// LoadBalancerClass names the controller that makes the load balancer. Kubernetes lets nobody change it: a Service that has another
	// class keeps it until it is deleted, and the Gateway says so.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// IPFamilies are the address families of the cluster IPs, the first one first. Kubernetes lets nobody change the first one: a Service
	// that has another keeps its families until it is deleted, and the Gateway says so.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv4;IPv6
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`

	// IPFamilyPolicy is how many families the Service wants.
	//
	// +optional
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	IPFamilyPolicy *corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`

	// LoadBalancerSourceRanges are the prefixes from which clients may come, where the load balancer can tell. Empty means all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:message="each source range must be a CIDR prefix such as 198.51.100.0/24",rule="self.all(p, isCIDR(p))"
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// AllocateLoadBalancerNodePorts is whether a load balancer gets node ports. Unset means what Kubernetes does: it gets them.
	//
	// +optional
	AllocateLoadBalancerNodePorts *bool `json:"allocateLoadBalancerNodePorts,omitempty"`
}

// Autoscaling says how many pods serve a Gateway, between two bounds, by the number of its live allocations.
//
// +kubebuilder:validation:XValidation:message="maxReplicas must not be less than minReplicas: raise maxReplicas or lower minReplicas",rule="!has(self.minReplicas) || self.maxReplicas >= self.minReplicas"
// +kubebuilder:validation:XValidation:message="trigger prometheus needs prometheus.serverAddress: name the Prometheus to ask, or use trigger external",rule="!has(self.trigger) || self.trigger != 'prometheus' || has(self.prometheus)"
// +kubebuilder:validation:XValidation:message="prometheus needs trigger prometheus: set it, or remove prometheus",rule="!has(self.prometheus) || has(self.trigger) && self.trigger == 'prometheus'"
// +kubebuilder:validation:XValidation:message="behavior.scaleUp.stabilizationWindowSeconds must be from 0 to 3600",rule="!has(self.behavior) || !has(self.behavior.scaleUp) || !has(self.behavior.scaleUp.stabilizationWindowSeconds) || self.behavior.scaleUp.stabilizationWindowSeconds >= 0 && self.behavior.scaleUp.stabilizationWindowSeconds <= 3600"
// +kubebuilder:validation:XValidation:message="behavior.scaleDown.stabilizationWindowSeconds must be from 0 to 3600",rule="!has(self.behavior) || !has(self.behavior.scaleDown) || !has(self.behavior.scaleDown.stabilizationWindowSeconds) || self.behavior.scaleDown.stabilizationWindowSeconds >= 0 && self.behavior.scaleDown.stabilizationWindowSeconds <= 3600"
type Autoscaling struct {
	// MinReplicas is the lower bound. It is at least 1: without a pod there is nobody to take the first call.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// MaxReplicas is the upper bound.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	MaxReplicas int32 `json:"maxReplicas"`

	// AllocationsPerReplica is how many live allocations one pod is meant to hold, at most 1000000.
	//
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	AllocationsPerReplica *int32 `json:"allocationsPerReplica,omitempty"`

	// Trigger is where KEDA learns the number of allocations: external asks the operator, prometheus asks a Prometheus that
	// scrapes the dataplane.
	//
	// +optional
	// +kubebuilder:default=external
	Trigger ScalingTrigger `json:"trigger,omitempty"`

	// Prometheus is whom trigger prometheus asks.
	//
	// +optional
	Prometheus *PrometheusTrigger `json:"prometheus,omitempty"`

	// PollingInterval is how often KEDA asks for the number, in seconds; meanwhile the last answer counts. Unset means that it asks whenever
	// the number of pods is judged, which is every 15 seconds in most clusters.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PollingInterval *int32 `json:"pollingInterval,omitempty"`

	// Behavior is how fast the number of pods may change, as a HorizontalPodAutoscaler has it. What is unset of scaleUp and scaleDown is
	// what ends no calls: up at once, at most to the double every 30 seconds, and down by one pod every 5 minutes, when fewer have been enough for 30.
	//
	// +optional
	Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior,omitempty"`
}

// PrometheusTrigger is a Prometheus that scrapes the dataplane pods.
//
// +kubebuilder:validation:XValidation:message="authModes needs authenticationRef: name the TriggerAuthentication that holds what is shown to Prometheus",rule="!has(self.authModes) || has(self.authenticationRef)"
type PrometheusTrigger struct {
	// ServerAddress is the URL of its HTTP API.
	//
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:message="serverAddress must be an http or https URL such as http://prometheus-operated.monitoring.svc:9090",rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != ''"
	// +kubebuilder:validation:XValidation:message="serverAddress must hold no credentials: use authenticationRef",rule="!self.contains('@')"
	ServerAddress string `json:"serverAddress"`

	// AuthModes are the words of KEDA for what is shown to Prometheus.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=apiKey;basic;tls;bearer;custom;oauth
	AuthModes []string `json:"authModes,omitempty"`

	// AuthenticationRef names the object of KEDA that holds it.
	//
	// +optional
	AuthenticationRef *TriggerAuthenticationRef `json:"authenticationRef,omitempty"`
}

// TriggerAuthenticationRef names an object of KEDA that says how a trigger proves who it is.
type TriggerAuthenticationRef struct {
	// Name is that of an object in the namespace of the Gateway, or in none.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Kind is TriggerAuthentication, or ClusterTriggerAuthentication for one that all namespaces share.
	//
	// +optional
	// +kubebuilder:default=TriggerAuthentication
	// +kubebuilder:validation:Enum=TriggerAuthentication;ClusterTriggerAuthentication
	Kind string `json:"kind,omitempty"`
}

// DataplaneList is a list of Dataplanes.
//
// +kubebuilder:object:root=true
type DataplaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Dataplane `json:"items"`
}
