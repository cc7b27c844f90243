package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StaticService is a backend outside of Kubernetes: the hosts of a list of IP prefixes. A UDPRoute references it to let
// clients reach hosts outside the cluster, or, with 0.0.0.0/0 and ::/0, every host.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ssvc,categories=stunner
// +kubebuilder:printcolumn:name="Prefixes",type=string,JSONPath=`.spec.prefixes`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Used by",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type StaticService struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec lists the prefixes.
	// +required
	Spec StaticServiceSpec `json:"spec"`

	// Status reports whether the operator can use the object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// StaticServiceSpec lists the prefixes of a StaticService.
type StaticServiceSpec struct {
	// Prefixes are the IPv4 and IPv6 prefixes of the backend, such as `198.51.100.0/24`. An address without a prefix
	// length is a single host. With an empty list the backend has no addresses.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:message="each prefix must be an IP address or a CIDR prefix such as 198.51.100.0/24",rule="self.all(p, isIP(p) || isCIDR(p))"
	Prefixes []string `json:"prefixes"`
}

// StaticServiceList is a list of StaticServices.
//
// +kubebuilder:object:root=true
type StaticServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StaticService `json:"items"`
}
