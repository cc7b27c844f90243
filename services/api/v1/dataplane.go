package v1

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Defaults of a Dataplane. A test compares them with the defaults of the CRD.
const (
	DefaultDataplaneResource             = ResourceDeployment
	DefaultTerminationGracePeriodSeconds = 3600
	DefaultOffloadEngine                 = OffloadNone
	DefaultMinReplicas                   = 1
	DefaultAllocationsPerReplica         = 500
	MaxAllocationsPerReplica             = 1_000_000 // more than the ports of a pod
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

// OffloadEngine is the kernel mechanism that forwards media without the dataplane process.
//
// +kubebuilder:validation:Enum=None;XDP;TC;Auto
type OffloadEngine string

// The engines. XDP includes TC. Auto is TC, except on the host network, where it is None.
const (
	OffloadNone OffloadEngine = "None"
	OffloadXDP  OffloadEngine = "XDP"
	OffloadTC   OffloadEngine = "TC"
	OffloadAuto OffloadEngine = "Auto"
)

// ScalingTrigger is the source of the number of allocations for autoscaling.
//
// +kubebuilder:validation:Enum=prometheus;external
type ScalingTrigger string

// The triggers: a Prometheus query, or the operator itself.
const (
	TriggerPrometheus ScalingTrigger = "prometheus"
	TriggerExternal   ScalingTrigger = "external"
)

// Dataplane is the template of the pods that serve Gateways. It is cluster-scoped, because it determines the pods in
// the namespaces of all Gateways. The Dataplane "default" is used by Gateways whose GatewayConfig names no Dataplane.
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

	// Spec is the template of the pods.
	// +optional
	Spec DataplaneSpec `json:"spec,omitempty"`

	// Status reports whether the operator can use the object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// DataplaneNamespaces selects the namespaces that may use a Dataplane.
//
// +kubebuilder:validation:XValidation:message="from Selector needs a selector",rule="!has(self.from) || self.from != 'Selector' || has(self.selector)"
type DataplaneNamespaces struct {
	// From is All, Selector for the namespaces that selector selects, or None. Unset means None.
	//
	// +optional
	From NamespacesFrom `json:"from,omitempty"`

	// Selector selects namespaces by their labels. It is used with from Selector only.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// NamespacesFrom selects namespaces.
//
// +kubebuilder:validation:Enum=All;Selector;None
type NamespacesFrom string

// The values of NamespacesFrom.
const (
	NamespacesFromAll      NamespacesFrom = "All"
	NamespacesFromSelector NamespacesFrom = "Selector"
	NamespacesFromNone     NamespacesFrom = "None"
)

// DataplaneSpec is the template of the pods that serve Gateways.
//
// +kubebuilder:validation:XValidation:message="autoscaling needs dataplaneResource Deployment: a DaemonSet has one pod per node",rule="!has(self.autoscaling) || !has(self.dataplaneResource) || self.dataplaneResource == 'Deployment'"
type DataplaneSpec struct {
	// DataplaneResource is the kind of the workload: Deployment, or DaemonSet for one pod per node.
	//
	// +optional
	// +kubebuilder:default=Deployment
	DataplaneResource DataplaneResource `json:"dataplaneResource,omitempty"`

	// WorkloadName is the name of the generated Deployment or DaemonSet. Unset means the name of the Gateway. A fixed
	// name is for autoscalers and dashboards that expect one. It suits a Dataplane that serves at most one Gateway in
	// each namespace.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	WorkloadName string `json:"workloadName,omitempty"`

	// AllowedNamespaces are the namespaces whose Gateways may use this Dataplane with a GatewayConfig in
	// spec.infrastructure.parametersRef. Unset means none. The GatewayConfig of a GatewayClass may always reference it.
	//
	// +optional
	AllowedNamespaces *DataplaneNamespaces `json:"allowedNamespaces,omitempty"`

	// Labels are added to the pods.
	//
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations are added to the pods.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Image is the container image. Unset means the dataplane image of the release of the operator.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`

	// ImagePullPolicy is the pull policy of the image. Unset means Always for the tag latest and IfNotPresent for other
	// tags.
	//
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// ImagePullSecrets are Secrets, in the namespace of the Gateway, to pull the image with.
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

	// Env are environment variables, in addition to those that the operator sets.
	//
	// +optional
	// +listType=atomic
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Resources are the compute resources of the container.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// ContainerSecurityContext is the security context of the container. Unset or empty means one that the restricted
	// Pod Security Standard admits.
	//
	// +optional
	ContainerSecurityContext *corev1.SecurityContext `json:"containerSecurityContext,omitempty"`

	// SecurityContext is the security context of the pod. Unset or empty means one that the restricted Pod Security
	// Standard admits.
	//
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`

	// Replicas is the number of pods. If it is unset or 1, the operator does not set the number, so that it can be
	// scaled by other means. It is ignored if autoscaling is set, and for a DaemonSet.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Replicas *int32 `json:"replicas,omitempty"`

	// Autoscaling scales the pods by the number of their allocations. It needs KEDA in the cluster. Without KEDA the
	// number of pods does not change.
	//
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// TerminationGracePeriodSeconds is how long a terminating pod may serve its calls. The pod accepts no new calls,
	// and ends when its last call ends.
	//
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=0
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`

	// HostNetwork runs the pods in the network namespace of the node.
	//
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`

	// RelayPortRange is the range of UDP ports of relays, for firewalls and security groups between the pods and media
	// servers. Each allocation takes one port of an address family. A port is not reused for one second. Unset means
	// the port range of the kernel of the node. A change restarts the pods.
	//
	// +optional
	RelayPortRange *RelayPortRange `json:"relayPortRange,omitempty"`

	// Affinity is the scheduling affinity of the pods.
	//
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// Tolerations are the tolerations of the pods.
	//
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// TopologySpreadConstraints spread the pods over zones and nodes.
	//
	// +optional
	// +listType=atomic
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// DisableHealthCheck removes the health endpoint and the probes of the pods.
	//
	// +optional
	DisableHealthCheck bool `json:"disableHealthCheck,omitempty"`

	// EnableMetricsEndpoint serves Prometheus metrics on port 8080 of the pods.
	//
	// +optional
	EnableMetricsEndpoint bool `json:"enableMetricsEndpoint,omitempty"`

	// OffloadEngine is the kernel mechanism that forwards media without the dataplane process. TC uses BPF programs at
	// the traffic control hooks of network interfaces. XDP means TC and, with hostNetwork, a BPF program in the driver
	// of the network card. Auto means TC, or None with hostNetwork. Except with None, the container stunner-daemon runs
	// as user 0 with the capabilities BPF and NET_ADMIN, which the namespace of the Gateway must allow: label it
	// pod-security.kubernetes.io/enforce: privileged. If the kernel or the rights do not suffice, media is forwarded as
	// with None, and /status of the pod shows the reason.
	//
	// +optional
	// +kubebuilder:default=None
	OffloadEngine OffloadEngine `json:"offloadEngine,omitempty"`

	// OffloadInterfaces are the network interfaces that the engine uses. Empty means all Ethernet interfaces of the pod,
	// or of the node with hostNetwork.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	OffloadInterfaces []string `json:"offloadInterfaces,omitempty"`

	// Service sets fields of the Services of the Gateways.
	//
	// +optional
	Service *ServiceOverlay `json:"service,omitempty"`

	// EnableNetworkPolicy generates a NetworkPolicy for the pods of each Gateway. It allows all sources to reach the
	// ports of the listeners, the UDP ports from 1024 on, where relayed media arrives, and the ports for health and
	// metrics. It allows the pods to send UDP to all destinations, because routes restrict the peers, and to open TCP
	// connections for DNS and config discovery only. A NetworkPolicy does not apply to pods on the host network.
	//
	// +optional
	EnableNetworkPolicy bool `json:"enableNetworkPolicy,omitempty"`

	// PodTemplatePatch is a strategic merge patch of the pod template, for settings without a field: sidecars, volumes,
	// a priority class. It is applied last. It must not change the labels that Services select by, nor remove the
	// container stunner-daemon. If a patch is invalid, the condition Accepted reports it, and the pods stay as they
	// are.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	PodTemplatePatch *runtime.RawExtension `json:"podTemplatePatch,omitempty"`
}

// RelayPortRange is a range of UDP ports. It should not contain the ports of listeners: a listener cannot open a port
// that a relay uses.
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

// ServiceOverlay sets fields of a generated Service. They have the same meaning as in a Kubernetes Service.
//
// +kubebuilder:validation:XValidation:message="ipFamilies must not name a family twice",rule="!has(self.ipFamilies) || size(self.ipFamilies) < 2 || self.ipFamilies[0] != self.ipFamilies[1]"
// +kubebuilder:validation:XValidation:message="two ipFamilies need ipFamilyPolicy PreferDualStack or RequireDualStack",rule="!has(self.ipFamilies) || size(self.ipFamilies) < 2 || has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack'"
type ServiceOverlay struct {
	// LoadBalancerClass is the class of the load balancer. Kubernetes does not allow a change. An existing Service
	// keeps its class until it is deleted, and the status of the Gateway reports the difference.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// IPFamilies are the address families of the cluster IPs. Kubernetes does not allow a change of the first family.
	// An existing Service with another first family keeps its families until it is deleted, and the status of the
	// Gateway reports the difference.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv4;IPv6
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`

	// IPFamilyPolicy is the dual-stack policy of the Service.
	//
	// +optional
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	IPFamilyPolicy *corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`

	// LoadBalancerSourceRanges are the prefixes of allowed clients, if the load balancer supports them. Empty means
	// all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:message="each source range must be a CIDR prefix such as 198.51.100.0/24",rule="self.all(p, isCIDR(p))"
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// AllocateLoadBalancerNodePorts configures whether node ports are allocated for a load balancer. Unset means the
	// default of Kubernetes, true.
	//
	// +optional
	AllocateLoadBalancerNodePorts *bool `json:"allocateLoadBalancerNodePorts,omitempty"`
}

// Autoscaling sets the number of pods of a Gateway, between two bounds, by the number of its allocations.
//
// +kubebuilder:validation:XValidation:message="maxReplicas must not be less than minReplicas: raise maxReplicas or lower minReplicas",rule="!has(self.minReplicas) || self.maxReplicas >= self.minReplicas"
// +kubebuilder:validation:XValidation:message="trigger prometheus needs prometheus.serverAddress: name the Prometheus to ask, or use trigger external",rule="!has(self.trigger) || self.trigger != 'prometheus' || has(self.prometheus)"
// +kubebuilder:validation:XValidation:message="prometheus needs trigger prometheus: set it, or remove prometheus",rule="!has(self.prometheus) || has(self.trigger) && self.trigger == 'prometheus'"
// +kubebuilder:validation:XValidation:message="behavior.scaleUp.stabilizationWindowSeconds must be from 0 to 3600",rule="!has(self.behavior) || !has(self.behavior.scaleUp) || !has(self.behavior.scaleUp.stabilizationWindowSeconds) || self.behavior.scaleUp.stabilizationWindowSeconds >= 0 && self.behavior.scaleUp.stabilizationWindowSeconds <= 3600"
// +kubebuilder:validation:XValidation:message="behavior.scaleDown.stabilizationWindowSeconds must be from 0 to 3600",rule="!has(self.behavior) || !has(self.behavior.scaleDown) || !has(self.behavior.scaleDown.stabilizationWindowSeconds) || self.behavior.scaleDown.stabilizationWindowSeconds >= 0 && self.behavior.scaleDown.stabilizationWindowSeconds <= 3600"
type Autoscaling struct {
	// MinReplicas is the lower bound. It is at least 1, because without a pod no client can make the first allocation.
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

	// AllocationsPerReplica is the target number of allocations of one pod, at most 1000000.
	//
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	AllocationsPerReplica *int32 `json:"allocationsPerReplica,omitempty"`

	// Trigger is the source of the number of allocations for KEDA: external for the operator, prometheus for a
	// Prometheus that scrapes the dataplane.
	//
	// +optional
	// +kubebuilder:default=external
	Trigger ScalingTrigger `json:"trigger,omitempty"`

	// Prometheus configures the trigger prometheus.
	//
	// +optional
	Prometheus *PrometheusTrigger `json:"prometheus,omitempty"`

	// PollingInterval is how often KEDA requests the number of allocations, in seconds. Between requests, KEDA uses the
	// last answer. Unset means at each evaluation of the HorizontalPodAutoscaler, in most clusters every 15 seconds.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PollingInterval *int32 `json:"pollingInterval,omitempty"`

	// Behavior is the scaling behavior, as in a HorizontalPodAutoscaler. The default of scaleUp adds pods at once, and
	// at most doubles their number every 30 seconds. The default of scaleDown removes one pod every 5 minutes, after
	// fewer pods have been sufficient for 30 minutes.
	//
	// +optional
	Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior,omitempty"`
}

// PrometheusTrigger is a Prometheus that scrapes the dataplane pods.
//
// +kubebuilder:validation:XValidation:message="authModes needs authenticationRef: name the TriggerAuthentication that holds what is shown to Prometheus",rule="!has(self.authModes) || has(self.authenticationRef)"
type PrometheusTrigger struct {
	// ServerAddress is the URL of the HTTP API of Prometheus.
	//
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:message="serverAddress must be an http or https URL such as http://prometheus-operated.monitoring.svc:9090",rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != ''"
	// +kubebuilder:validation:XValidation:message="serverAddress must hold no credentials: use authenticationRef",rule="!self.contains('@')"
	ServerAddress string `json:"serverAddress"`

	// AuthModes are the authentication modes of the KEDA trigger.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=apiKey;basic;tls;bearer;custom;oauth
	AuthModes []string `json:"authModes,omitempty"`

	// AuthenticationRef references the KEDA object with the credentials.
	//
	// +optional
	AuthenticationRef *TriggerAuthenticationRef `json:"authenticationRef,omitempty"`
}

// TriggerAuthenticationRef references a KEDA object with the credentials of a trigger.
type TriggerAuthenticationRef struct {
	// Name is the name of the object, in the namespace of the Gateway or cluster-scoped.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Kind is TriggerAuthentication, or ClusterTriggerAuthentication for a cluster-scoped object.
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
