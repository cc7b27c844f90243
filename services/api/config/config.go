// Package config defines the dataplane config: the document that the operator renders, config discovery transports and
// stunnerd runs.
//
// Its JSON form, version "v1", is a wire contract with dataplanes and operators of other releases and vendors: fields
// are added, and never renamed. A config is processed in three steps. Parse converts bytes to a value with defaults.
// Validate returns errors that name the fields. Expand replaces placeholders such as $STUNNER_ADDR, whose values only
// the running process has, and validates the result.
//
// The package does no I/O: it does not read files, environment variables or the clock.
//
// # Files
//
//	config.go      the fields of a config
//	protocol.go    the protocols of listeners and their properties
//	default.go     defaults, and the spellings that are accepted
//	validate.go    validation
//	endpoint.go    port ranges, and endpoints of clusters
//	uri.go         turn: URIs
//	parse.go       reading a document, and its limits
//	expand.go      placeholders in texts
//	number.go      placeholders in place of numbers
//	standalone.go  placeholders in the credentials of a file
//	listener.go    external addresses and certificates of a listener
//	certname.go    names of a certificate
//	balancer.go    load balancers in front of a listener
//	canonical.go   canonical form, revision, redaction, credential authorities
//	forauth.go     the reduced config for auth services
//	pack.go        the compressed form that a Secret contains
//	diff.go        differences between configs, for logs and statuses
//	parts.go       a config as a list of parts with hashes
//	delta.go       differences between configs, for readers that have the previous config
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
	// DefaultCredentialOverlap is the default of Auth.CredentialOverlap. It equals the default lifetime of an
	// allocation, in which every client refreshes at least once.
	DefaultCredentialOverlap = 600
)

// AddressPlaceholder is the placeholder of the relay address. The process that runs the config replaces it.
const AddressPlaceholder = "$STUNNER_ADDR"

// NodeAddressPlaceholder is the placeholder of the external address of the node on which the process runs. A discovery
// server replaces it if the server has that address. Otherwise Expand replaces it like AddressPlaceholder.
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
	// MetricsEndpoint is the URL of the metrics, http://ADDR:PORT/PATH, or an address, see EndpointURL. Empty means
	// that metrics are not served.
	MetricsEndpoint string `json:"metrics_endpoint,omitempty"`
	// HealthcheckEndpoint is the URL of the probes, or an address. Nil means DefaultHealthcheck. An empty URL means
	// that probes are not served.
	HealthcheckEndpoint *string `json:"healthcheck_endpoint,omitempty"`
	// UserQuota is the maximum number of allocations of one user id in all pods of the Gateway; 0 means no maximum.
	UserQuota int `json:"user_quota,omitempty"`
	// SourceQuota is the maximum number of allocations of one client address (a /64 in IPv6); 0 means no maximum. It
	// does not apply to addresses of private networks and of this host, which many clients may share.
	SourceQuota int `json:"source_quota,omitempty"`
	// SessionByteRate is the maximum payload rate of one allocation, in bytes a second for each direction; 0 means no
	// maximum.
	SessionByteRate int64 `json:"session_byte_rate,omitempty"`
	// UserByteRate is the maximum payload rate of all allocations of one user id together, in bytes a second for each
	// direction; 0 means no maximum.
	UserByteRate int64 `json:"user_byte_rate,omitempty"`
	// OffloadEngine is None, XDP, TC or Auto.
	OffloadEngine string `json:"offload_engine"`
	// OffloadInterfaces names the interfaces that the offload engine may use; empty means all.
	OffloadInterfaces []string `json:"offload_interfaces,omitempty"`
	// ClientAddresses reports whether every pod sees the addresses and ports of clients over UDP. Only then does a
	// draining pod move its sessions to other pods, because they find a session by the address of its client.
	ClientAddresses bool `json:"client_addresses,omitempty"`
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
	// Credentials contains KeyUsername and KeyPassword for AuthStatic, and KeySecret for AuthEphemeral. With
	// AuthEphemeral it may also contain KeyUsername and KeyPassword; then both kinds of credentials are valid.
	Credentials map[string]credential.Secret `json:"credentials,omitempty"`
	// Lifetime is the default and maximum time to live of credentials from the auth service, in seconds; 0 means the
	// settings of the auth service. Dataplanes ignore it.
	Lifetime int32 `json:"lifetime,omitempty"`
	// SessionGrace is how long, in seconds, a session may continue after its ephemeral credential has expired; 0 means
	// until the next refresh. A new session always needs a valid credential.
	SessionGrace int32 `json:"session_grace,omitempty"`
	// CredentialOverlap is how long, in seconds, a session may refresh with its original credential after a config has
	// replaced that credential. Nil means DefaultCredentialOverlap. With 0 the next request of the session is refused.
	CredentialOverlap *int32 `json:"credential_overlap,omitempty"`
	// Former is a previous shared secret, or nil. Credentials that were signed with it are valid until Former.Until,
	// for new sessions too. Dataplanes that do not define the field refuse such credentials.
	Former *FormerSecret `json:"former,omitempty"`
	// Revocations are the ephemeral credentials that are refused before they expire, at most MaxRevocations. Their
	// order has no meaning. Dataplanes that do not define the field accept these credentials.
	Revocations []credential.Revocation `json:"revocations,omitempty"`
}

// FormerSecret is a shared secret that is being replaced.
type FormerSecret struct {
	Secret credential.Secret `json:"secret"`
	// Until is when the secret becomes invalid, in seconds since 1970.
	Until int64 `json:"until"`
}

// Overlap returns CredentialOverlap, or its default, as a duration.
func (a Auth) Overlap() time.Duration {
	if a.CredentialOverlap == nil {
		return DefaultCredentialOverlap * time.Second
	}
	return time.Duration(*a.CredentialOverlap) * time.Second
}

// Listener is a port to which clients connect.
type Listener struct {
	// Name is NAMESPACE/GATEWAY/LISTENER.
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	// PublicAddress is the IP address or host name of the listener that clients receive. Clients cannot use it as a
	// peer.
	PublicAddress string `json:"public_address,omitempty"`
	// PublicAddresses are all IP addresses and host names that clients receive, in this order. PublicAddress is the
	// first of them, and all have the port PublicPort. The list may be empty if there is only one.
	PublicAddresses []string `json:"public_addresses,omitempty"`
	// PublicHost is a host name of the certificate that clients of a secure listener receive instead of the public
	// addresses, because the certificate is not valid for any of these. Clients cannot use its addresses as peers. Auth
	// services that do not define the field give clients the public addresses.
	PublicHost string `json:"public_host,omitempty"`
	// PublicPort is the port of the listener that clients receive.
	PublicPort int `json:"public_port,omitempty"`
	// ServiceAddresses are other addresses of this listener, as IP:PORT or [IP]:PORT: the addresses of the Kubernetes
	// Services of the Gateway. Clients cannot use them as peers. Their order has no meaning.
	ServiceAddresses []string `json:"service_addresses,omitempty"`
	// TLSAtBalancer reports whether a load balancer in front of a TURN-TCP listener ends TLS. Clients then receive
	// turns: URIs. Auth services that do not define the field give them turn: URIs.
	TLSAtBalancer bool `json:"tls_at_load_balancer,omitempty"`
	// ProxyProtocol are the prefixes of the load balancers in front of a TURN-TCP or TURN-TLS listener, at most
	// MaxProxyPrefixes, each ADDRESS or ADDRESS/LENGTH. A connection from one of them must begin with a header of the
	// PROXY protocol, which has the address of the client. Their order has no meaning. Dataplanes that do not define
	// the field close connections that begin with such a header.
	ProxyProtocol []string `json:"proxy_protocol,omitempty"`
	// Address is the relay address that clients receive. The socket of the listener binds the wildcard address.
	Address string `json:"address"`
	// Port is the port of the socket, 1 to 65535.
	Port int `json:"port"`
	// Cert is the certificate for TLS and DTLS, as base64 of PEM.
	Cert string `json:"cert,omitempty"`
	// Key is the private key of Cert, as base64 of PEM.
	Key credential.Secret `json:"key,omitempty"`
	// Certificates are for clients that request one of their server names (SNI). The first that matches is used. If
	// none matches, Cert is used.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Routes are the names of the clusters that clients of this listener may reach.
	Routes []string `json:"routes,omitempty"`
}

// Certificate is a certificate with its private key, each as base64 of PEM.
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
	// Endpoints are in the syntax of ParseEndpoint for Static, and host names for StrictDNS.
	Endpoints []string `json:"endpoints,omitempty"`
	// Except are addresses that the prefixes among the endpoints of a Static cluster do not include. An endpoint that
	// is a single address is not affected. The order has no meaning. Dataplanes that do not define the field allow the
	// whole prefixes.
	Except []string `json:"except,omitempty"`
}
