// Package config defines the dataplane config: the document that the operator renders, config discovery transports and
// stunnerd runs.
//
// Its JSON form, version "v1", is a wire contract with dataplanes and operators of other releases and vendors: fields
// are added, never renamed. A config is processed in three steps: Parse (bytes to value, with defaults), Validate (each
// error names its field), and Expand (replaces placeholders such as $STUNNER_ADDR, whose values only the running
// process has, and validates the result).
//
// The package is pure: it reads no files, environment variables or clock.
package config

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Version is the version of the document that this package writes.
const Version = "v1"

// Defaults of the document.
const (
	DefaultName        = "default-stunnerd"
	DefaultLogLevel    = "all:INFO"
	DefaultRealm       = "stunner.l7mp.io"
	DefaultPort        = 3478
	DefaultAddress     = "0.0.0.0"
	DefaultHealthcheck = "http://:8086"
	DefaultOffload     = "None"
	// DefaultCredentialOverlap is one allocation lifetime, in seconds, in which every client refreshes at least once.
	DefaultCredentialOverlap = 600
)

// AddressPlaceholder is the placeholder of the relay address, which the process that runs the config expands.
const AddressPlaceholder = "$STUNNER_ADDR"

// NodeAddressPlaceholder is the placeholder of the external address of the node that the process runs on. A discovery
// server replaces it if it has the address. Otherwise Expand handles it like AddressPlaceholder.
const NodeAddressPlaceholder = "__node_address_placeholder"

// Config is the config of the stunnerd processes of one Gateway.
type Config struct {
	Version   string     `json:"version"`
	Admin     Admin      `json:"admin"`
	Auth      Auth       `json:"auth"`
	Listeners []Listener `json:"listeners,omitempty"`
	Clusters  []Cluster  `json:"clusters,omitempty"`
}

// Admin holds the settings of the process.
type Admin struct {
	// Name identifies the config: NAMESPACE/GATEWAY.
	Name string `json:"name"`
	// LogLevel is a list SCOPE:LEVEL[,SCOPE:LEVEL…]. The scope "all" applies to all other scopes.
	LogLevel string `json:"loglevel"`
	// MetricsEndpoint is the URL of the metrics, http://ADDR:PORT/PATH; empty means none.
	MetricsEndpoint string `json:"metrics_endpoint,omitempty"`
	// HealthcheckEndpoint is the URL of the probes. Nil means DefaultHealthcheck, empty means none.
	HealthcheckEndpoint *string `json:"healthcheck_endpoint,omitempty"`
	// UserQuota bounds the allocations of one user id; 0 means no bound.
	UserQuota int `json:"user_quota,omitempty"`
	// SourceQuota bounds the allocations of one client address, a /64 in IPv6; 0 means the default of the process. It
	// does not apply to addresses of private networks and of this host, which many clients may share.
	SourceQuota int `json:"source_quota,omitempty"`
	// SessionByteRate and UserByteRate bound the payload in bytes a second and direction, of one allocation and of all
	// allocations of one user id; 0 means no bound.
	SessionByteRate int64 `json:"session_byte_rate,omitempty"`
	UserByteRate    int64 `json:"user_byte_rate,omitempty"`
	// OffloadEngine is None, XDP, TC or Auto.
	OffloadEngine string `json:"offload_engine"`
	// OffloadInterfaces names the interfaces that the offload engine may use; empty means all.
	OffloadInterfaces []string `json:"offload_interfaces,omitempty"`
	// License is accepted and ignored: all features are enabled.
	License *License `json:"license_config,omitempty"`
}

// License is read for compatibility only.
type License struct {
	Key  string `json:"key,omitempty"`
	HMAC string `json:"hmac,omitempty"`
}

// AuthType is the authentication of clients.
type AuthType string

// The canonical authentication types. Parse turns the aliases plaintext, longterm and timewindowed into these.
const (
	AuthNone      AuthType = "none"
	AuthStatic    AuthType = "static"
	AuthEphemeral AuthType = "ephemeral"
)

// Keys of Auth.Credentials.
const (
	KeyUsername = "username"
	KeyPassword = "password"
	KeySecret   = "secret"
)

// Auth configures the authentication of clients.
type Auth struct {
	Type  AuthType `json:"type"`
	Realm string   `json:"realm"`
	// Credentials holds KeyUsername and KeyPassword for AuthStatic, and KeySecret for AuthEphemeral. With AuthEphemeral
	// it may also hold a static pair; both kinds are then valid.
	Credentials map[string]credential.Secret `json:"credentials,omitempty"`
	// Lifetime is the default and maximum time to live, in seconds, of credentials from the auth service; 0 leaves it
	// to the auth service. Dataplanes ignore it.
	Lifetime int32 `json:"lifetime,omitempty"`
	// SessionGrace is how long, in seconds, a session may continue after its ephemeral credential has expired; 0 means
	// until the next refresh. A new session always needs a valid credential.
	SessionGrace int32 `json:"session_grace,omitempty"`
	// CredentialOverlap is how long, in seconds, a session may refresh with its original credential after a config has
	// replaced that credential. Nil means DefaultCredentialOverlap. With 0 the next request of the session is refused.
	CredentialOverlap *int32 `json:"credential_overlap,omitempty"`
	// Former is a previous shared secret, nil for none. Credentials that it has signed are valid for new sessions too,
	// until Former.Until. Dataplanes that do not define the field refuse such credentials.
	Former *FormerSecret `json:"former,omitempty"`
}

// FormerSecret is a shared secret that is being replaced.
type FormerSecret struct {
	Secret credential.Secret `json:"secret"`
	// Until is the end of its validity, in seconds since 1970.
	Until int64 `json:"until"`
}

// Overlap returns CredentialOverlap, or its default, as a duration.
func (a Auth) Overlap() time.Duration {
	if a.CredentialOverlap == nil {
		return DefaultCredentialOverlap * time.Second
	}
	return time.Duration(*a.CredentialOverlap) * time.Second
}

// Listener is a socket that clients connect to.
type Listener struct {
	// Name is NAMESPACE/GATEWAY/LISTENER.
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	// PublicAddress and PublicPort are sent to clients as the address of the listener. Clients cannot use them as a
	// peer.
	PublicAddress string `json:"public_address,omitempty"`
	PublicPort    int    `json:"public_port,omitempty"`
	// ServiceAddresses are other addresses of this listener, as IP:PORT or [IP]:PORT: those of the Kubernetes Services
	// of the Gateway. Clients cannot use them as a peer. Their order has no meaning.
	ServiceAddresses []string `json:"service_addresses,omitempty"`
	// Address is the relay address that is sent to clients. Sockets bind the wildcard address.
	Address string `json:"address"`
	// Port is the port of the socket, 1 to 65535.
	Port int `json:"port"`
	// Cert and Key are the base64 form of PEM, for TLS and DTLS.
	Cert string            `json:"cert,omitempty"`
	Key  credential.Secret `json:"key,omitempty"`
	// Certificates are for clients that request one of their server names (SNI); the first that matches is used. Cert
	// is for all other clients.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Routes are the names of the clusters that clients of this listener may reach.
	Routes []string `json:"routes,omitempty"`
}

// Certificate is a certificate with its key, in the base64 form of PEM.
type Certificate struct {
	Cert string            `json:"cert"`
	Key  credential.Secret `json:"key"`
}

// ClusterType is the type of the endpoints of a cluster.
type ClusterType string

// The cluster types.
const (
	Static    ClusterType = "STATIC"
	StrictDNS ClusterType = "STRICT_DNS"
)

// Cluster is a set of peers.
type Cluster struct {
	// Name is NAMESPACE/ROUTE.
	Name string      `json:"name"`
	Type ClusterType `json:"type"`
	// Protocol is UDP.
	Protocol string `json:"protocol"`
	// Endpoints have the syntax of ParseEndpoint for Static, and are host names for StrictDNS.
	Endpoints []string `json:"endpoints,omitempty"`
	// Except are addresses that are excluded from the prefixes among the endpoints of a Static cluster. An endpoint
	// that is a single address is not excluded. The order has no meaning. Dataplanes that do not define the field allow
	// the whole prefixes.
	Except []string `json:"except,omitempty"`
}
