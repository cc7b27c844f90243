// Package inspection contains the JSON types of status, sessions, refusals, reachable peers and granted credentials.
// Dataplanes and auth services write them, the operator passes them on, and stunnerctl reads them.
//
// Fields are added, and never renamed. No type contains a secret. Unless a process was started with --show-users, user
// names and client addresses are hashes, which are comparable within one process only.
//
// Each subject has a file; filter.go has the parameters of lists, and media.go evaluates the packet counts of calls.
package inspection

import "encoding/json"

// Version is the version of List.
const Version = "v1"

// List is the answer of the operator: the answers of the pods of a Gateway.
type List struct {
	Version string `json:"version"`
	// Gateway is NAMESPACE/NAME.
	Gateway string `json:"gateway"`
	Items   []Item `json:"items"`
	// Incomplete lists the running pods and the replicas of the operator that did not answer, each as "NAME: REASON".
	Incomplete []string `json:"incomplete,omitempty"`
}

// Item is the answer of one pod.
type Item struct {
	Pod  string `json:"pod"`
	Kind Kind   `json:"kind"`
	// Status is the HTTP status code, or 0 if there was no answer.
	Status int `json:"status"`
	// Body is the answer, for example a SessionList. If Status is an error, it is an Error.
	Body json.RawMessage `json:"body,omitempty"`
	// Error says why there was no answer.
	Error string `json:"error,omitempty"`
}

// NotConnected is Item.Error of a running pod without a connection to config discovery over which it answers requests.
const NotConnected = "it runs without a connection to config discovery, or its release answers no requests"

// Error is the body of an answer with an error status.
type Error struct {
	Message string `json:"message"`
}

// Kind is the kind of a process that answers requests.
type Kind string

// The kinds.
const (
	Dataplane Kind = "dataplane"
	Auth      Kind = "auth"
)
