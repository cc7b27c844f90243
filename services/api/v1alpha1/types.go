// Package v1alpha1 keeps the first version of group stunner.l7mp.io served, so that manifests that were written for it apply. An object
// means what its v1 twin means, field by field; the API server converts it by changing the version, and code reads v1 only. What v1 has no
// field for it takes, and tells in the deprecation warning. The types
// are here for the generator of the CRDs.
//
// +groupName=stunner.l7mp.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// GatewayConfig is v1.GatewayConfig.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gwconf,categories=stunner
// +kubebuilder:deprecatedversion:warning="write apiVersion: stunner.l7mp.io/v1 for GatewayConfig; stunnerConfig, metricsEndpoint, healthCheckEndpoint, minPort and maxPort have no effect, the other fields are the same"
type GatewayConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the Gateways of the class share.
	Spec GatewayConfigSpec `json:"spec,omitempty"`
	// Status says whether the operator can use this object.
	Status v1.Status `json:"status,omitempty"`
}

// GatewayConfigSpec is v1.GatewayConfigSpec, and fields that have lost their meaning since.
type GatewayConfigSpec struct {
	v1.GatewayConfigSpec `json:",inline"`

	// StunnerConfig has no effect and is not stored. The ConfigMap of a Gateway is called like the Gateway.
	//
	// +optional
	StunnerConfig *string `json:"stunnerConfig,omitempty"`

	// MetricsEndpoint has no effect and is not stored. Set enableMetricsEndpoint of the Dataplane.
	//
	// +optional
	MetricsEndpoint *string `json:"metricsEndpoint,omitempty"`

	// HealthCheckEndpoint has no effect and is not stored. Set disableHealthCheck of the Dataplane.
	//
	// +optional
	HealthCheckEndpoint *string `json:"healthCheckEndpoint,omitempty"`

	// MinPort has no effect and is not stored. Ports of backends stand in UDPRoutes.
	//
	// +optional
	MinPort *int32 `json:"minPort,omitempty"`

	// MaxPort has no effect and is not stored. Ports of backends stand in UDPRoutes.
	//
	// +optional
	MaxPort *int32 `json:"maxPort,omitempty"`
}

// Dataplane is v1.Dataplane.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dps,categories=stunner
// +kubebuilder:deprecatedversion:warning="write apiVersion: stunner.l7mp.io/v1 for Dataplane; the fields are the same"
type Dataplane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the template.
	Spec v1.DataplaneSpec `json:"spec,omitempty"`
	// Status says whether the operator can use this object.
	Status v1.Status `json:"status,omitempty"`
}

// StaticService is v1.StaticService.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ssvc,categories=stunner
// +kubebuilder:deprecatedversion:warning="write apiVersion: stunner.l7mp.io/v1 for StaticService; the fields are the same"
type StaticService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec lists the prefixes.
	Spec v1.StaticServiceSpec `json:"spec"`
	// Status says whether the operator can use this object.
	Status v1.Status `json:"status,omitempty"`
}
