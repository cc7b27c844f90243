package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// auditPolicy logs every request, without its body. The first of what is logged of a request is its answer, or the beginning of it where
// that has no end, as of a watch.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// writes are the verbs that ask for a change.
var writes = []string{"create", "update", "patch", "delete", "deletecollection"}

// Entry is a request to the API server, and the code that it was answered.
type Entry struct {
	Time        time.Time // of its arrival
	Verb        string    // get, list, watch, create, update, patch, delete, …
	User        string
	Agent       string // what the client calls itself
	Group       string // empty for core
	Resource    string // plural; empty where the request is not for one
	Subresource string
	Namespace   string
	Name        string
	Code        int
	Path        string // with the query
}

// Write tells whether a change was asked for.
func (e Entry) Write() bool { return slices.Contains(writes, e.Verb) }

// event is the part of an audit event that is an Entry; see https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/.
type event struct {
	AuditID   string
	Verb      string
	User      struct{ Username string }
	UserAgent string
	ObjectRef struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	Response  struct{ Code int } `json:"responseStatus"`
	Received  time.Time          `json:"requestReceivedTimestamp"`
	URI       string             `json:"requestURI"`
}

// Audit returns the requests that have arrived since, in the order of their answers. A request is in it as soon as its client has read the
// answer to the end: the API server logs first.
func (c *Cluster) Audit(since time.Time) ([]Entry, error) {
	data, err := os.ReadFile(c.file("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	return entries(data, since)
}

func entries(log []byte, since time.Time) ([]Entry, error) {
	since = since.Truncate(time.Microsecond) // as the log's times are
	var found []Entry
	seen := map[string]bool{}
	for line := range bytes.Lines(log) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // is being written
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read audit log: %w: %s", err, line)
		}
		if seen[e.AuditID] || e.Received.Before(since) {
			continue
		}
		seen[e.AuditID] = true
		found = append(found, Entry{
			Time: e.Received, Verb: e.Verb, User: e.User.Username, Agent: e.UserAgent,
			Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
			Code: e.Response.Code, Path: e.URI,
		})
	}
	return found, nil
}
