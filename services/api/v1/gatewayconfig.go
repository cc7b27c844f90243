package v1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Defaults of a GatewayConfig. A test compares them with the defaults of the CRD.
const (
	DefaultDataplane = "default"
	DefaultRealm     = "stunner.l7mp.io"
	DefaultAuthType  = AuthPlaintext
	DefaultLogLevel  = "all:INFO"
)

// DefaultDeniedBackends returns the default of deniedBackends: the Services of namespace kube-system.
func DefaultDeniedBackends() []DeniedBackend {
	return []DeniedBackend{{Namespace: metav1.NamespaceSystem}}
}

// AuthType is the authentication of TURN clients. The three mechanisms have six names, all of which are in use.
//
// +kubebuilder:validation:Enum=plaintext;static;longterm;ephemeral;timewindowed;none
type AuthType string

// The mechanisms: a static user name and password; ephemeral credentials, which contain their expiry; and none, with
// which only STUN binding requests are served.
const (
	AuthPlaintext    AuthType = "plaintext"
	AuthStatic       AuthType = "static"
	AuthLongterm     AuthType = "longterm"
	AuthEphemeral    AuthType = "ephemeral"
	AuthTimewindowed AuthType = "timewindowed"
	AuthNone         AuthType = "none"
)

// GatewayConfig holds the common settings of the Gateways of a GatewayClass: authentication, Dataplane, quotas and log
// level. The GatewayClass references it in spec.parametersRef.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gwconf,categories=stunner
// +kubebuilder:printcolumn:name="Realm",type=string,JSONPath=`.spec.realm`
// +kubebuilder:printcolumn:name="Dataplane",type=string,JSONPath=`.spec.dataplane`
// +kubebuilder:printcolumn:name="Auth",type=string,JSONPath=`.spec.authType`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Used by",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GatewayConfig struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec holds the common settings of the Gateways of a GatewayClass.
	// +optional
	Spec GatewayConfigSpec `json:"spec,omitempty"`

	// Status reports whether the operator can use the object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// GatewayConfigSpec holds the common settings of the Gateways of a GatewayClass.
type GatewayConfigSpec struct {
	// Dataplane is the name of the Dataplane whose pods serve the Gateways.
	//
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Dataplane string `json:"dataplane,omitempty"`

	// LogLevel is the log level of the dataplane for each scope, such as `all:INFO,turn:DEBUG`. Unset means `all:INFO`.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LogLevel string `json:"logLevel,omitempty"`

	// Realm is the authentication realm. Usually it is a DNS name. It must not contain quotes, backslashes or control
	// characters, because it is sent as a quoted string (RFC 8489 §14.9). The keys of credentials depend on the realm
	// (RFC 8489 §9.2.2): after a change, all clients must authenticate again.
	//
	// +optional
	// +kubebuilder:default="stunner.l7mp.io"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:Pattern=`^[^"\\\x00-\x1f\x7f-\x9f]+$`
	Realm string `json:"realm,omitempty"`

	// AuthType is the authentication of TURN clients. plaintext and static mean one static user name and password.
	// ephemeral, longterm and timewindowed mean ephemeral credentials, which contain their expiry. With none, the
	// Gateway only answers STUN binding requests. AuthType is ignored if authRef is set, because that Secret contains
	// the type.
	//
	// +optional
	// +kubebuilder:default=plaintext
	AuthType AuthType `json:"authType,omitempty"`

	// UserName is the user name for plaintext authentication: a string, or an object {name, namespace, key} that
	// references a key of a Secret. The key defaults to userName, the namespace to that of this object.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	UserName *SecretValue `json:"userName,omitempty"`

	// Password is the password for plaintext authentication: a string, or an object {name, namespace, key} that
	// references a key of a Secret. The key defaults to password, the namespace to that of this object. Prefer the
	// object: everyone who can read this GatewayConfig can read a string.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Password *SecretValue `json:"password,omitempty"`

	// SharedSecret is the key that signs ephemeral credentials: a string, or an object {name, namespace, key} that
	// references a key of a Secret. The key defaults to sharedSecret, the namespace to that of this object. Prefer the
	// object: everyone who can read this GatewayConfig can read a string.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	SharedSecret *SecretValue `json:"sharedSecret,omitempty"`

	// AuthLifetime is the lifetime of credentials from the auth service, in seconds. It is the default and the maximum
	// of ttl in a request to the auth service. Unset means 86400, one day.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	AuthLifetime *int32 `json:"authLifetime,omitempty"`

	// SessionGrace is how long a session may continue after its ephemeral credential has expired. Unset means 0s: the
	// session ends with the first refresh after the expiry. A new session always needs a valid credential.
	//
	// +optional
	SessionGrace *gatewayv1.Duration `json:"sessionGrace,omitempty"`

	// CredentialOverlap is how long a session may refresh with its original credential after userName, password,
	// sharedSecret or their Secret have changed. A new session needs the new credential at once. Unset means 10m, one
	// lifetime of an allocation. With 0s the next request of the session is refused.
	//
	// +optional
	CredentialOverlap *gatewayv1.Duration `json:"credentialOverlap,omitempty"`

	// AuthRef references a Secret that contains the type of authentication in the key `type`. The Secret also contains
	// either the keys `username` and `password`, or the key `secret`. AuthRef replaces authType, userName, password and
	// sharedSecret. The namespace defaults to that of this object.
	//
	// +optional
	// +kubebuilder:validation:XValidation:message="group must be empty or v1: authRef names a Secret",rule="!has(self.group) || size(self.group) == 0 || self.group == 'v1'"
	// +kubebuilder:validation:XValidation:message="kind must be Secret",rule="!has(self.kind) || self.kind == 'Secret'"
	AuthRef *gatewayv1.SecretObjectReference `json:"authRef,omitempty"`

	// RequireReferenceGrants requires a ReferenceGrant for a UDPRoute that references a backend in another namespace.
	// It also requires an entry in allowedPrefixes for a StaticService that overlaps the networks of the cluster, see
	// deniedPrefixes. Unset means false. A reference to a Secret of another namespace always requires a ReferenceGrant,
	// except with legacyGrants.
	//
	// +optional
	RequireReferenceGrants bool `json:"requireReferenceGrants,omitempty"`

	// LegacyGrants lets listeners use TLS Secrets of other namespaces without a ReferenceGrant. It is only for
	// migration from the existing system, because every Gateway of the class can then use every TLS Secret of the
	// cluster. Condition DeprecatedInput of each listener that uses such a Secret names the missing ReferenceGrant.
	// Only the GatewayConfig of the GatewayClass can set it. Unset means false.
	//
	// +optional
	LegacyGrants bool `json:"legacyGrants,omitempty"`

	// LoadBalancerServiceAnnotations are annotations for the Services of all Gateways of the class. An annotation of
	// the Gateway with the same name takes precedence.
	//
	// +optional
	LoadBalancerServiceAnnotations map[string]string `json:"loadBalancerServiceAnnotations,omitempty"`

	// UserQuota is the maximum number of concurrent allocations of one user in all dataplane pods of a Gateway. Pods that
	// do not reach each other count their own allocations only. 0 means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	UserQuota int32 `json:"userQuota,omitempty"`

	// SourceQuota is the maximum number of concurrent allocations of one client address in a dataplane pod. All IPv6
	// addresses of a /64 prefix count as one address. 0 means no limit. Allow enough for an office whose users share
	// one address: a browser has an allocation for each TURN URL and connection. The quota does not apply to addresses
	// of private networks and of the host of the pod.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	SourceQuota int32 `json:"sourceQuota,omitempty"`

	// SessionByteRate is the maximum payload of one allocation, in bytes per second in each direction. Excess packets
	// are dropped. 0 means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	SessionByteRate int64 `json:"sessionByteRate,omitempty"`

	// UserByteRate is the maximum payload of all allocations of one user in a dataplane pod, in bytes per second in
	// each direction. Excess packets are dropped. 0 means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UserByteRate int64 `json:"userByteRate,omitempty"`

	// DeniedBackends are Services that no route of the Gateways can reach. Unset means the Services of namespace
	// kube-system. An empty list denies none. The list does not apply to StaticServices, which deniedPrefixes and
	// clusterAccess restrict.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default={{namespace: "kube-system"}}
	// +kubebuilder:validation:MaxItems=64
	DeniedBackends []DeniedBackend `json:"deniedBackends,omitzero"`

	// DeniedPrefixes are CIDR prefixes that no StaticService may overlap, except in allowedPrefixes. Unset means none.
	// With requireReferenceGrants, unset means the pod networks of nodes, and the /24 or /64 blocks that contain the
	// addresses of the Services and pods of the cluster. To deny the networks of the cluster completely, list them
	// here. The prefixes in a GatewayConfig that a Gateway references are in force in addition to those of the
	// GatewayClass.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:message="each entry must be a CIDR prefix such as 192.0.2.0/24",rule="self.all(p, isCIDR(p))"
	DeniedPrefixes []CIDR `json:"deniedPrefixes,omitempty"`

	// AllowedPrefixes are CIDR prefixes that StaticServices may overlap although deniedPrefixes or
	// requireReferenceGrants deny them. Unset means none. Only the value in the GatewayConfig of the GatewayClass is
	// used. Addresses that clusterAccess denies stay excluded.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:message="each entry must be a CIDR prefix such as 192.0.2.0/24",rule="self.all(p, isCIDR(p))"
	AllowedPrefixes []CIDR `json:"allowedPrefixes,omitempty"`

	// ClusterAccess configures whether routes can reach the cluster itself. Deny excludes the addresses of nodes, and
	// the Service kubernetes of namespace default with the API servers behind it. It also excludes the addresses of
	// Services of namespace kube-system, and of the pods behind them, from StaticServices. Unset means Deny. Only the
	// value in the GatewayConfig of the GatewayClass is used. A pod on the host network stays reachable through its
	// Service.
	//
	// +optional
	ClusterAccess ClusterAccess `json:"clusterAccess,omitempty"`

	// AllowedAddresses are CIDR prefixes from which a Gateway may request its addresses. A Gateway requests an address
	// in spec.addresses, or with an annotation for a load balancer. Clients receive the addresses in spec.addresses.
	// Unset means that a Gateway may request no address. Only the value in the GatewayConfig of the GatewayClass is
	// used. With the file provider, a Gateway may request any address.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:message="each range must be a CIDR prefix such as 192.0.2.0/24",rule="self.all(p, isCIDR(p))"
	AllowedAddresses []CIDR `json:"allowedAddresses,omitempty"`

	// NodeAddresses configures which addresses of nodes clients receive for a Service of type NodePort. ExternalOnly
	// means the external addresses. ExternalOrInternal means the internal addresses if no node has an external one; it
	// is for clusters whose clients reach the internal addresses. Unset means ExternalOnly. Only the value in the
	// GatewayConfig of the GatewayClass is used.
	//
	// +optional
	NodeAddresses NodeAddresses `json:"nodeAddresses,omitempty"`

	// LoadBalancerProvider is the provider of the load balancers of the Gateways. Condition LoadBalancerLimited of a
	// Gateway reports the features that the Gateway needs and that the load balancers of this provider lack. none means
	// that no controller serves Services of type LoadBalancer. other means a provider that is not listed. If it is
	// unset, the operator detects the provider by spec.service.loadBalancerClass of the Dataplane, by the annotations
	// of the Service, or by spec.providerID of the nodes. Only the value in the GatewayConfig of the GatewayClass is
	// used.
	//
	// +optional
	LoadBalancerProvider LoadBalancerProvider `json:"loadBalancerProvider,omitempty"`

	// SigningKey configures the key that signs ephemeral credentials. PerGateway means a key for each Gateway, which is
	// derived from the shared secret and from the namespace and name of the Gateway. Shared means the shared secret
	// itself, which all Gateways of the class use. Unset means PerGateway for a Secret that the operator has generated.
	// For any other Secret it means Shared, because the owner of the Secret may sign credentials with it.
	//
	// +optional
	SigningKey SigningKey `json:"signingKey,omitempty"`

	// Budget limits the routes of a Gateway. A route that exceeds the limits is not served, and its status reports
	// this. Other routes are served. In a GatewayConfig that a Gateway references, only values below those of the
	// GatewayClass are used.
	//
	// +optional
	Budget *Budget `json:"budget,omitempty"`

	// STUNMode makes the Gateways plain STUN servers, whatever authType is. Clients receive their public address, and
	// nothing is relayed.
	//
	// +optional
	STUNMode bool `json:"stunMode,omitempty"`
}

// ClusterAccess configures whether routes can reach the cluster itself.
//
// +kubebuilder:validation:Enum=Deny;Allow
type ClusterAccess string

// The values of ClusterAccess.
const (
	ClusterAccessDeny  ClusterAccess = "Deny"
	ClusterAccessAllow ClusterAccess = "Allow"
)

// NodeAddresses configures which addresses of nodes clients receive.
//
// +kubebuilder:validation:Enum=ExternalOnly;ExternalOrInternal
type NodeAddresses string

// The values of NodeAddresses.
const (
	NodeAddressesExternalOnly       NodeAddresses = "ExternalOnly"
	NodeAddressesExternalOrInternal NodeAddresses = "ExternalOrInternal"
)

// LoadBalancerProvider is the provider of load balancers.
//
// +kubebuilder:validation:Enum=aws;gke;aks;digitalocean;hetzner;ovh;oci;metallb;cilium;klipper;kube-vip;none;other
type LoadBalancerProvider string

// The values of LoadBalancerProvider. Klipper is ServiceLB of K3s.
const (
	LoadBalancerAWS          LoadBalancerProvider = "aws"
	LoadBalancerGKE          LoadBalancerProvider = "gke"
	LoadBalancerAKS          LoadBalancerProvider = "aks"
	LoadBalancerDigitalOcean LoadBalancerProvider = "digitalocean"
	LoadBalancerHetzner      LoadBalancerProvider = "hetzner"
	LoadBalancerOVH          LoadBalancerProvider = "ovh"
	LoadBalancerOCI          LoadBalancerProvider = "oci"
	LoadBalancerMetalLB      LoadBalancerProvider = "metallb"
	LoadBalancerCilium       LoadBalancerProvider = "cilium"
	LoadBalancerKlipper      LoadBalancerProvider = "klipper"
	LoadBalancerKubeVIP      LoadBalancerProvider = "kube-vip"
	LoadBalancerNone         LoadBalancerProvider = "none"
	LoadBalancerOther        LoadBalancerProvider = "other"
)

// CIDR is a range of IP addresses, such as 192.0.2.0/24 or 2001:db8::/32.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=43
type CIDR string

// SigningKey configures the key that signs ephemeral credentials.
//
// +kubebuilder:validation:Enum=Shared;PerGateway
type SigningKey string

// The values of SigningKey.
const (
	SigningKeyShared     SigningKey = "Shared"
	SigningKeyPerGateway SigningKey = "PerGateway"
)

// Defaults of a Budget.
const (
	DefaultBudgetRoutes                = 2_000
	DefaultBudgetEndpointsPerRoute     = 16_384
	DefaultBudgetEndpoints             = 32_768
	DefaultBudgetEndpointsPerNamespace = 131_072
)

// Budget limits the routes of a Gateway. An endpoint is an address or a prefix with its ports: a StaticService of 10
// prefixes in a route with two ports counts as 20 endpoints. A backend without endpoints counts as one. If the routes
// of several namespaces exceed a limit, each namespace has an equal share. Within a namespace the oldest routes are
// served first.
type Budget struct {
	// Routes is the maximum number of UDPRoutes of a Gateway, from 1 to 10000. Unset or 0 means 2000.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Routes int32 `json:"routes,omitempty"`

	// EndpointsPerRoute is the maximum number of endpoints of one UDPRoute, from 1 to 100000. Unset or 0 means 16384.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	EndpointsPerRoute int32 `json:"endpointsPerRoute,omitempty"`

	// Endpoints is the maximum number of endpoints of all UDPRoutes of a Gateway, from 1 to 200000. Unset or 0 means
	// 32768.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=200000
	Endpoints int32 `json:"endpoints,omitempty"`

	// EndpointsPerNamespace is the maximum number of endpoints of all UDPRoutes of one namespace, at all Gateways of
	// all namespaces together, from 1 to 2000000. The routes at the oldest Gateways are served first. Unset or 0 means
	// 131072.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000000
	EndpointsPerNamespace int32 `json:"endpointsPerNamespace,omitempty"`
}

// WithDefaults returns a budget in which every limit is set.
func (b *Budget) WithDefaults() Budget {
	if b == nil {
		b = &Budget{}
	}
	return Budget{
		Routes:                cmp.Or(b.Routes, DefaultBudgetRoutes),
		EndpointsPerRoute:     cmp.Or(b.EndpointsPerRoute, DefaultBudgetEndpointsPerRoute),
		Endpoints:             cmp.Or(b.Endpoints, DefaultBudgetEndpoints),
		EndpointsPerNamespace: cmp.Or(b.EndpointsPerNamespace, DefaultBudgetEndpointsPerNamespace),
	}
}

// DeniedBackend selects Services by namespace, by labels, or by both.
//
// +kubebuilder:validation:XValidation:message="namespace or selector must be set",rule="has(self.__namespace__) || has(self.selector)"
type DeniedBackend struct {
	// Namespace is the namespace of the Services. Unset means all.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// Selector selects Services by their labels. Unset means all Services of the namespace.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// GatewayConfigList is a list of GatewayConfigs.
//
// +kubebuilder:object:root=true
type GatewayConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GatewayConfig `json:"items"`
}

// Status is the status of an object that the operator reads and that other objects reference.
type Status struct {
	// Conditions report whether the operator can use the object, and if not, why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
