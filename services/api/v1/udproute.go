package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The kinds of a BackendRef.
const (
	KindService       gatewayv1.Kind = "Service"
	KindStaticService gatewayv1.Kind = "StaticService"
)

// UDPRoute lists the backends that TURN clients of the Gateways in parentRefs can reach. Other peers are not reachable.
// Unlike in the UDPRoute of the Gateway API, a backend without a port means all ports, and port ranges are possible.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=stunner
// +kubebuilder:printcolumn:name="Gateways",type=string,JSONPath=`.spec.parentRefs[*].name`
// +kubebuilder:printcolumn:name="Backends",type=string,JSONPath=`.spec.rules[*].backendRefs[*].name`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="ResolvedRefs")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type UDPRoute struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec lists the Gateways and the backends of the route.
	// +required
	Spec UDPRouteSpec `json:"spec"`

	// Status reports for each parent whether it accepted the route.
	// +optional
	Status UDPRouteStatus `json:"status,omitempty"`
}

// UDPRouteSpec lists the Gateways and the backends of a route.
type UDPRouteSpec struct {
	gatewayv1.CommonRouteSpec `json:",inline"`

	// Rules list the backends. Clients can reach the backends of every rule.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Rules []UDPRouteRule `json:"rules"`
}

// UDPRouteRule is a group of backends.
type UDPRouteRule struct {
	// BackendRefs reference the backends.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	BackendRefs []BackendRef `json:"backendRefs"`
}

// BackendRef references a Service or a StaticService, and the ports that clients can reach.
//
// +kubebuilder:validation:XValidation:message="kind Service has an empty group, kind StaticService has group stunner.l7mp.io",rule="(has(self.kind) ? self.kind : 'Service') == 'StaticService' ? (has(self.group) && self.group == 'stunner.l7mp.io') : (!has(self.group) || size(self.group) == 0)"
// +kubebuilder:validation:XValidation:message="endPort needs port, the first port of the range",rule="!has(self.endPort) || has(self.port)"
// +kubebuilder:validation:XValidation:message="endPort must not be less than port",rule="!has(self.endPort) || !has(self.port) || self.endPort >= self.port"
type BackendRef struct {
	// Group is empty for a Service and stunner.l7mp.io for a StaticService.
	//
	// +optional
	// +kubebuilder:default=""
	Group *gatewayv1.Group `json:"group,omitempty"`

	// Kind is Service or StaticService.
	//
	// +optional
	// +kubebuilder:default=Service
	// +kubebuilder:validation:Enum=Service;StaticService
	Kind *gatewayv1.Kind `json:"kind,omitempty"`

	// Name is the name of the backend.
	//
	// +required
	Name gatewayv1.ObjectName `json:"name"`

	// Namespace is the namespace of the backend. It defaults to the namespace of the route.
	//
	// +optional
	Namespace *gatewayv1.Namespace `json:"namespace,omitempty"`

	// Port is the only port that clients can reach, or with endPort the first port of a range. Without port, clients
	// can reach all ports. At the addresses of pods it is a port of the pods. At the cluster IP of a Service it is a
	// port of the Service.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// EndPort is the last port of the range that starts at port.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	EndPort *int32 `json:"endPort,omitempty"`
}

// UDPRouteStatus reports for each parent whether it accepted the route.
type UDPRouteStatus struct {
	gatewayv1.RouteStatus `json:",inline"`
}

// UDPRouteList is a list of UDPRoutes.
//
// +kubebuilder:object:root=true
type UDPRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UDPRoute `json:"items"`
}
