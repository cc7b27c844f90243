// Package v1alpha1 keeps the first version of group stunner.l7mp.io served, so that manifests that were written for it apply. An object
// means what its v1 twin means, field by field; the API server converts it by changing the version, and code reads v1 only. The types
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
// +kubebuilder:deprecatedversion:warning="write apiVersion: stunner.l7mp.io/v1 for GatewayConfig; the fields are the same"
type GatewayConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the Gateways of the class share.
	Spec v1.GatewayConfigSpec `json:"spec,omitempty"`
	// Status says whether the operator can use this object.
	Status v1.Status `json:"status,omitempty"`
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
