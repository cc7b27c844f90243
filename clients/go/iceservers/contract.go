package iceservers

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"
)

// Request is the body of POST /v1/ice-servers. Fields that are zero are left out.
type Request struct {
	// TTL is the lifetime of the credentials in seconds. Default and maximum belong to the gateway.
	TTL int64 `json:"ttl,omitempty"`
	// Username is the user id in the user name, for callers whose policy lets them choose it.
	Username string `json:"username,omitempty"`
	// Gateways are the wanted gateways, at most 100; all that the caller may use if it is empty.
	Gateways []GatewayRef `json:"gateways,omitempty"`
	// Region is the region whose gateways come first, for a service with several clusters.
	Region string `json:"region,omitempty"`
	// Scope limits what the credentials are good for.
	Scope *CredentialScope `json:"scope,omitempty"`
	// Transport becomes ICEServers.ICETransportPolicy: all or relay.
	Transport string `json:"transport,omitempty"`
	// DTLS includes TURN over DTLS, which browsers do not support.
	DTLS bool `json:"dtls,omitempty"`
	// STUN adds stun: URLs of gateways with a TURN-UDP listener.
	STUN bool `json:"stun,omitempty"`
}

// GatewayRef names a gateway, or one of its listeners.
type GatewayRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Listener is the name of a listener; every listener of the gateway if it is empty.
	Listener string `json:"listener,omitempty"`
}

// CredentialScope limits what credentials are good for. Limits that are zero are left out.
type CredentialScope struct {
	// Routes are the UDPRoutes whose peers can be reached, as NAMESPACE/NAME.
	Routes []string `json:"routes,omitempty"`
	// Allocations is the number of allocations of the user id at a time.
	Allocations int64 `json:"allocations,omitempty"`
	// BytesPerSecond is payload a second in each direction, of all allocations with the credential.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// Bytes is payload of both directions, of all allocations with the credential.
	Bytes int64 `json:"bytes,omitempty"`
	// NotBefore is the time from which on the credential is valid, in seconds since 1970.
	NotBefore int64 `json:"notBefore,omitempty"`
}

// ICEServers is an answer of the service. Its JSON is a valid argument of new RTCPeerConnection(…) in a browser.
type ICEServers struct {
	ICEServers []ICEServer `json:"iceServers"`
	// ICETransportPolicy is all or relay.
	ICETransportPolicy string `json:"iceTransportPolicy"`
	// ExpiresAt is when the first of the credentials stops working, by the clock of the service; nil if none expires.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	// TTL is the seconds from the answer to ExpiresAt; nil if none expires.
	TTL *int64 `json:"ttl,omitempty"`
}

// ICEServer holds the URLs of a gateway and the credential for them, which is empty for stun: URLs.
type ICEServer struct {
	URLs       []string `json:"urls"`
	Username   string   `json:"username,omitempty"`
	Credential Secret   `json:"credential,omitempty"`
}

// ParameterError is a parameter of a Request that the service refuses, and why.
type ParameterError struct {
	Parameter string `json:"parameter"`
	Message   string `json:"message"`
}

// problem is the body of an error (RFC 9457).
type problem struct {
	Title  string           `json:"title"`
	Detail string           `json:"detail"`
	Reason string           `json:"reason"`
	Errors []ParameterError `json:"errors"`
}

// Secret is a string that must not be shown. Printing it prints <redacted>; JSON contains the value.
type Secret string

const redacted = "<redacted>"

// String returns <redacted>, or nothing for an empty Secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format prints the Secret for all verbs of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// GoString returns the quoted String.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// LogValue is the Secret in logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
