// Package v1alpha1 holds the first version of the API group stunner.l7mp.io, so that existing manifests can still be
// applied. The fields mean the same as in v1. The API server converts objects by changing the version, and the code
// reads v1 only. Fields that v1 does not have are accepted and have no effect; the deprecation warning names them. Only
// the generator of the CRDs uses the types.
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
// +kubebuilder:deprecatedversion:warning="write apiVersion: stunner.l7mp.io/v1 for GatewayConfig; stunnerConfig, metricsEndpoint, healthCheckEndpoint, minPort and maxPort have no effect (relayPortRange of a Dataplane sets the ports of relays), the other fields are the same"
type GatewayConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec holds the common settings of the Gateways of a GatewayClass.
	Spec GatewayConfigSpec `json:"spec,omitempty"`
	// Status reports whether the operator can use the object.
	Status v1.Status `json:"status,omitempty"`
}

// GatewayConfigSpec is v1.GatewayConfigSpec with the fields that v1 removed.
type GatewayConfigSpec struct {
	v1.GatewayConfigSpec `json:",inline"`

	// StunnerConfig has no effect and is not stored. The ConfigMap of a Gateway has the name of the Gateway.
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

	// MinPort has no effect and is not stored. UDPRoutes set the ports of backends.
	//
	// +optional
	MinPort *int32 `json:"minPort,omitempty"`

	// MaxPort has no effect and is not stored. UDPRoutes set the ports of backends.
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

	// Spec is the template of the pods.
	Spec v1.DataplaneSpec `json:"spec,omitempty"`
	// Status reports whether the operator can use the object.
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
	// Status reports whether the operator can use the object.
	Status v1.Status `json:"status,omitempty"`
}
