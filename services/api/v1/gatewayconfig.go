package v1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// What a GatewayConfig says by saying nothing. A test compares them with what the CRD fills in.
const (
	DefaultDataplane = "default"
	DefaultRealm     = "stunner.l7mp.io"
	DefaultAuthType  = AuthPlaintext
	DefaultLogLevel  = "all:INFO"
)

// DefaultDeniedBackends is what a GatewayConfig denies that names nothing: the Services that run the cluster.
func DefaultDeniedBackends() []DeniedBackend {
	return []DeniedBackend{{Namespace: metav1.NamespaceSystem}}
}

// AuthType is how TURN clients authenticate. Three mechanisms have six names, because each name is in use somewhere.
//
// +kubebuilder:validation:Enum=plaintext;static;longterm;ephemeral;timewindowed;none
type AuthType string

// The mechanisms: one fixed user, users that carry their own expiry, and nobody at all, which leaves STUN binding requests.
const (
	AuthPlaintext    AuthType = "plaintext"
	AuthStatic       AuthType = "static"
	AuthLongterm     AuthType = "longterm"
	AuthEphemeral    AuthType = "ephemeral"
	AuthTimewindowed AuthType = "timewindowed"
	AuthNone         AuthType = "none"
)

// GatewayConfig holds what all Gateways of a GatewayClass share: authentication, the Dataplane that serves them, quota and
// log level. A GatewayClass names it in spec.parametersRef.
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

	// Spec is what the Gateways of the class share.
	// +optional
	Spec GatewayConfigSpec `json:"spec,omitempty"`

	// Status says whether the operator can use this object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// GatewayConfigSpec is what the Gateways of a class share.
type GatewayConfigSpec struct {
	// Dataplane is the name of the Dataplane whose pods serve the Gateways.
	//
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Dataplane string `json:"dataplane,omitempty"`

	// LogLevel is the log level of the dataplane, per scope: `all:INFO,turn:DEBUG`. Unset means `all:INFO`.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LogLevel string `json:"logLevel,omitempty"`

	// Realm is the authentication realm that clients are told. It goes onto the wire as a quoted string (RFC 8489 §14.9), so
	// quotes, backslashes and control characters have no place in it; a DNS name is the usual choice. Clients sign with
	// the realm: a change asks them all to authenticate anew.
	//
	// +optional
	// +kubebuilder:default="stunner.l7mp.io"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:Pattern=`^[^"\\\x00-\x1f\x7f-\x9f]+$`
	Realm string `json:"realm,omitempty"`

	// AuthType is how TURN clients authenticate: with one fixed user name and password (plaintext, static), with credentials
	// that carry their own expiry (ephemeral, longterm, timewindowed), or not at all (none), which leaves STUN binding requests
	// and no relaying. It is ignored when authRef is set: the Secret then names its own type.
	//
	// +optional
	// +kubebuilder:default=plaintext
	AuthType AuthType `json:"authType,omitempty"`

	// UserName is the user name of plaintext authentication: a string, or an object {name, namespace, key} that names a key of a
	// Secret. The key defaults to userName, the namespace to that of this object.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	UserName *SecretValue `json:"userName,omitempty"`

	// Password is the password of plaintext authentication: a string, or an object {name, namespace, key} that names a key of a
	// Secret. The key defaults to password, the namespace to that of this object. Prefer the object: a string can be read by
	// everyone who can read this GatewayConfig.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Password *SecretValue `json:"password,omitempty"`

	// SharedSecret is the key that signs ephemeral credentials: a string, or an object {name, namespace, key} that names a key
	// of a Secret. The key defaults to sharedSecret, the namespace to that of this object. Prefer the object: a string can be
	// read by everyone who can read this GatewayConfig.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	SharedSecret *SecretValue `json:"sharedSecret,omitempty"`

	// AuthLifetime is how long, in seconds, credentials from the auth service are good for: the default and the maximum of the
	// ttl that a caller may ask for. Unset means 86400, one day.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	AuthLifetime *int32 `json:"authLifetime,omitempty"`

	// SessionGrace is how long a session may outlive the ephemeral credential that began it. Unset means 0s: a call ends with the
	// first refresh after its credential has expired. A new call always needs a credential that is still good.
	//
	// +optional
	SessionGrace *gatewayv1.Duration `json:"sessionGrace,omitempty"`

	// CredentialOverlap is how long a session may refresh with the credential that it began with after userName, password, sharedSecret or their
	// Secret have changed. A new call needs the new credential at once. Unset means 10m, one lifetime of an allocation; 0s means not at all.
	//
	// +optional
	CredentialOverlap *gatewayv1.Duration `json:"credentialOverlap,omitempty"`

	// AuthRef names a Secret that holds all of the authentication: its type (key `type`), and `username` with `password`, or
	// `secret`. It replaces authType, userName, password and sharedSecret. The namespace defaults to that of this object.
	//
	// +optional
	// +kubebuilder:validation:XValidation:message="group must be empty or v1: authRef names a Secret",rule="!has(self.group) || size(self.group) == 0 || self.group == 'v1'"
	// +kubebuilder:validation:XValidation:message="kind must be Secret",rule="!has(self.kind) || self.kind == 'Secret'"
	AuthRef *gatewayv1.SecretObjectReference `json:"authRef,omitempty"`

	// RequireReferenceGrants makes references of UDPRoutes to backends in another namespace depend on a ReferenceGrant there. Unset means
	// false: they are free. A Secret of another namespace needs a ReferenceGrant whatever stands here.
	//
	// +optional
	RequireReferenceGrants bool `json:"requireReferenceGrants,omitempty"`

	// LoadBalancerServiceAnnotations go onto the Service of every Gateway of the class. An annotation of the Gateway itself wins
	// over one of the same name here.
	//
	// +optional
	LoadBalancerServiceAnnotations map[string]string `json:"loadBalancerServiceAnnotations,omitempty"`

	// UserQuota is how many allocations one user may hold in a dataplane pod at the same time. 0 means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	UserQuota int32 `json:"userQuota,omitempty"`

	// SourceQuota is how many allocations one client address, in IPv6 one /64, may hold in a dataplane pod at the same time. 0 means the
	// default of the dataplane. Addresses that may hide many clients, those of private networks and of the pod's host, have no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	SourceQuota int32 `json:"sourceQuota,omitempty"`

	// SessionByteRate is how many bytes of payload a second one allocation may carry, in each direction. What is more is dropped. 0 means
	// no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	SessionByteRate int64 `json:"sessionByteRate,omitempty"`

	// UserByteRate is how many bytes of payload a second all allocations of one user may carry in a dataplane pod, in each direction. What
	// is more is dropped. 0 means no limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	UserByteRate int64 `json:"userByteRate,omitempty"`

	// DeniedBackends are Services that no route of the Gateways may reach, whoever wrote it. Unset denies those of namespace kube-system;
	// an empty list denies none. What a StaticService reaches is for its prefixes and for clusterAccess to say.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:default={{namespace: "kube-system"}}
	// +kubebuilder:validation:MaxItems=64
	DeniedBackends []DeniedBackend `json:"deniedBackends,omitzero"`

	// ClusterAccess says whether routes may reach the cluster itself: addresses of nodes, Service kubernetes of namespace default with
	// the API servers behind it, and, by a StaticService, the addresses of Services of namespace kube-system and of the pods behind them.
	// Unset means Deny. Only the GatewayConfig of the GatewayClass counts. A pod on the host network stays reachable by its Service.
	//
	// +optional
	ClusterAccess ClusterAccess `json:"clusterAccess,omitempty"`

	// AllowedAddresses are ranges, as CIDR prefixes, from which a Gateway may request its address, in spec.addresses or by an annotation of
	// a load balancer. Unset means none. Only the GatewayConfig of the GatewayClass counts. Gateways of one host need none.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:message="each range must be a CIDR prefix such as 192.0.2.0/24",rule="self.all(p, isCIDR(p))"
	AllowedAddresses []CIDR `json:"allowedAddresses,omitempty"`

	// SigningKey says by which key ephemeral credentials are signed: PerGateway for one that is derived for each Gateway from the Secret and
	// from namespace and name of the Gateway, Shared for the shared secret itself, which all Gateways of the class have in common. Unset
	// means PerGateway for a Secret that the operator has generated, and Shared for any other, whose owner may sign credentials with it.
	//
	// +optional
	SigningKey SigningKey `json:"signingKey,omitempty"`

	// Budget is how much the routes of a Gateway may ask for. A route that does not fit waits, and says so; the others are served. Of a
	// GatewayConfig that a Gateway names itself a value counts where it is less than that of its class.
	//
	// +optional
	Budget *Budget `json:"budget,omitempty"`

	// STUNMode makes the Gateways plain STUN servers: clients learn their public address and nothing is relayed, whatever
	// authType says.
	//
	// +optional
	STUNMode bool `json:"stunMode,omitempty"`
}

// ClusterAccess says whether the cluster itself may be reached.
//
// +kubebuilder:validation:Enum=Deny;Allow
type ClusterAccess string

// The kinds of access.
const (
	ClusterAccessDeny  ClusterAccess = "Deny"
	ClusterAccessAllow ClusterAccess = "Allow"
)

// CIDR is a range of IP addresses, such as 192.0.2.0/24 or 2001:db8::/32.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=43
type CIDR string

// SigningKey says by which key ephemeral credentials are signed.
//
// +kubebuilder:validation:Enum=Shared;PerGateway
type SigningKey string

// The keys.
const (
	SigningKeyShared     SigningKey = "Shared"
	SigningKeyPerGateway SigningKey = "PerGateway"
)

// What a Budget allows that says nothing, or 0.
const (
	DefaultBudgetRoutes                = 2_000
	DefaultBudgetEndpointsPerRoute     = 16_384
	DefaultBudgetEndpoints             = 32_768
	DefaultBudgetEndpointsPerNamespace = 131_072
)

// Budget is how much the routes of a Gateway may ask for. An endpoint is an address or a prefix, with its ports: a StaticService of 10 prefixes that a
// route names with two ports is 20 endpoints. A backend without endpoints counts as one. Where the routes of several namespaces do not fit, each
// namespace has an equal share, and within a namespace the oldest routes come first.
type Budget struct {
	// Routes is how many UDPRoutes a Gateway serves, from 1 to 10000. Unset or 0 means 2000.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Routes int32 `json:"routes,omitempty"`

	// EndpointsPerRoute is how many endpoints one UDPRoute leads to, from 1 to 100000. Unset or 0 means 16384.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	EndpointsPerRoute int32 `json:"endpointsPerRoute,omitempty"`

	// Endpoints is how many endpoints all UDPRoutes of a Gateway lead to, from 1 to 200000. Unset or 0 means 32768.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=200000
	Endpoints int32 `json:"endpoints,omitempty"`

	// EndpointsPerNamespace is how many endpoints all Gateways of a namespace lead to, from 1 to 2000000. The oldest Gateways come first. Unset or 0
	// means 131072.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000000
	EndpointsPerNamespace int32 `json:"endpointsPerNamespace,omitempty"`
}

// WithDefaults returns a budget in which every bound is set.
func (b *Budget) WithDefaults() Budget {
	if b == nil {
		b = &Budget{}
	}
	return Budget{
		Routes: cmp.Or(b.Routes, DefaultBudgetRoutes), EndpointsPerRoute: cmp.Or(b.EndpointsPerRoute, DefaultBudgetEndpointsPerRoute),
		Endpoints: cmp.Or(b.Endpoints, DefaultBudgetEndpoints), EndpointsPerNamespace: cmp.Or(b.EndpointsPerNamespace, DefaultBudgetEndpointsPerNamespace),
	}
}

// DeniedBackend describes Services: those of a namespace, those with certain labels, or those for which both hold.
//
// +kubebuilder:validation:XValidation:message="namespace or selector must be set",rule="has(self.__namespace__) || has(self.selector)"
type DeniedBackend struct {
	// Namespace is the namespace of the Services. Unset means all.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// Selector is about the labels of the Services. Unset means all Services of the namespace.
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

// Status is what the operator says about an object that it reads but does not act on by itself.
type Status struct {
	// Conditions say whether the operator can use the object, and if not, why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
