// Package config is the dataplane config: the document that the operator renders, config discovery carries and stunnerd runs.
//
// Its JSON form, version "v1", is a wire contract with dataplanes and operators that are not ours; a field is added, never
// renamed. A config goes through three steps, in this order: Parse (bytes to value, defaults filled in), Validate (every
// error names its field), Expand (placeholders such as $STUNNER_ADDR, known to the running process only, and what they leave validated).
//
// The package is pure: it reads no file, no environment and no clock.
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
	// DefaultCredentialOverlap is one allocation lifetime, in seconds: every client refreshes at least once within it.
	DefaultCredentialOverlap = 600
)

// AddressPlaceholder stands for the relay address of the process that runs the config: the process expands it.
const AddressPlaceholder = "$STUNNER_ADDR"

// NodeAddressPlaceholder stands for the external address of the node that the process runs on. A discovery server that knows nodes may put
// the address in its place; where nobody has, Expand takes it for AddressPlaceholder.
const NodeAddressPlaceholder = "__node_address_placeholder"

// Config is one dataplane config: everything that one Gateway's stunnerd processes need to know.
type Config struct {
	Version   string     `json:"version"`
	Admin     Admin      `json:"admin"`
	Auth      Auth       `json:"auth"`
	Listeners []Listener `json:"listeners,omitempty"`
	Clusters  []Cluster  `json:"clusters,omitempty"`
}

// Admin holds the settings of the process.
type Admin struct {
	// Name is the identity of the config, NAMESPACE/GATEWAY.
	Name string `json:"name"`
	// LogLevel is a list SCOPE:LEVEL[,SCOPE:LEVEL…]; the scope "all" stands for every scope.
	LogLevel string `json:"loglevel"`
	// MetricsEndpoint is the URL http://ADDR:PORT/PATH on which metrics are served; empty means not at all.
	MetricsEndpoint string `json:"metrics_endpoint,omitempty"`
	// HealthcheckEndpoint is the URL on which the probes are served. Nil means DefaultHealthcheck, empty means not at all.
	HealthcheckEndpoint *string `json:"healthcheck_endpoint,omitempty"`
	// UserQuota bounds the allocations of one user id; 0 means no bound.
	UserQuota int `json:"user_quota,omitempty"`
	// SourceQuota bounds the allocations of one client address, a /64 in IPv6; 0 means the default of the process. Addresses that may hide
	// many clients, those of private networks and of this host, have no bound.
	SourceQuota int `json:"source_quota,omitempty"`
	// SessionByteRate and UserByteRate bound the payload, in bytes a second and each direction, of one allocation and of all allocations
	// of one user id; 0 means no bound.
	SessionByteRate int64 `json:"session_byte_rate,omitempty"`
	UserByteRate    int64 `json:"user_byte_rate,omitempty"`
	// OffloadEngine is None, XDP, TC or Auto.
	OffloadEngine string `json:"offload_engine"`
	// OffloadInterfaces names the interfaces that the offload engine may use; empty means all.
	OffloadInterfaces []string `json:"offload_interfaces,omitempty"`
	// License is accepted and ignored: every feature is on.
	License *License `json:"license_config,omitempty"`
}

// License is read for compatibility only.
type License struct {
	Key  string `json:"key,omitempty"`
	HMAC string `json:"hmac,omitempty"`
}

// AuthType says how clients authenticate.
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

// Auth says who may use the gateway.
type Auth struct {
	Type  AuthType `json:"type"`
	Realm string   `json:"realm"`
	// Credentials holds KeyUsername and KeyPassword for static, KeySecret for ephemeral authentication. With AuthEphemeral the static pair may
	// stand there too; then both kinds are accepted.
	Credentials map[string]credential.Secret `json:"credentials,omitempty"`
	// Lifetime is the default and the maximum time to live, in seconds, of a credential that the auth service hands out; 0 means
	// that the auth service decides. Dataplanes do not look at it.
	Lifetime int32 `json:"lifetime,omitempty"`
	// SessionGrace is how long, in seconds, a session may go on after the ephemeral credential that began it has expired; 0 means until
	// its next refresh. A new session always needs a credential that is good.
	SessionGrace int32 `json:"session_grace,omitempty"`
	// CredentialOverlap is how long, in seconds, a session may refresh with the credential that it began with after a config has replaced that
	// credential. Nil means DefaultCredentialOverlap, 0 means not at all: the next request of the session is refused.
	CredentialOverlap *int32 `json:"credential_overlap,omitempty"`
	// Former is a shared secret that signed credentials before Credentials did; nil for none. What it has signed is good for new sessions as
	// well, for as long as Former says. Dataplanes that do not know the field refuse such credentials.
	Former *FormerSecret `json:"former,omitempty"`
}

// FormerSecret is a shared secret that is on its way out.
type FormerSecret struct {
	Secret credential.Secret `json:"secret"`
	// Until is when it ends, in seconds since 1970.
	Until int64 `json:"until"`
}

// Overlap is CredentialOverlap as a duration, with the default filled in.
func (a Auth) Overlap() time.Duration {
	if a.CredentialOverlap == nil {
		return DefaultCredentialOverlap * time.Second
	}
	return time.Duration(*a.CredentialOverlap) * time.Second
}

// Listener is one socket that clients connect to.
type Listener struct {
	// Name is NAMESPACE/GATEWAY/LISTENER.
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	// PublicAddress and PublicPort are what clients are told to connect to. They are no peer of any client of the dataplane.
	PublicAddress string `json:"public_address,omitempty"`
	PublicPort    int    `json:"public_port,omitempty"`
	// ServiceAddresses are other addresses that lead to this listener, as IP:PORT or [IP]:PORT: those of the Kubernetes Services of the
	// Gateway. They are no peer of any client of the dataplane either. The order has no meaning.
	ServiceAddresses []string `json:"service_addresses,omitempty"`
	// Address is the relay address that clients are told of; sockets bind the wildcard address.
	Address string `json:"address"`
	// Port is the port that the socket binds, 1 to 65535.
	Port int `json:"port"`
	// Cert and Key are the base64 form of PEM, for TLS and DTLS.
	Cert string            `json:"cert,omitempty"`
	Key  credential.Secret `json:"key,omitempty"`
	// Certificates are shown to clients that ask for a server name of theirs, the first that fits; Cert to all others.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Routes names the clusters that clients of this listener may reach.
	Routes []string `json:"routes,omitempty"`
}

// Certificate is a certificate with its key, in the base64 form of PEM.
type Certificate struct {
	Cert string            `json:"cert"`
	Key  credential.Secret `json:"key"`
}

// ClusterType says how the endpoints of a cluster are to be read.
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
	// Endpoints are in the syntax of ParseEndpoint for Static, host names for StrictDNS.
	Endpoints []string `json:"endpoints,omitempty"`
	// Except are addresses that prefixes among the endpoints of a Static cluster do not open. An endpoint that is a single address is open
	// although it stands here. The order has no meaning. Dataplanes that do not know the field open the whole prefixes.
	Except []string `json:"except,omitempty"`
}
