package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// auditPolicy logs every request without its body. Of a watch it logs the start of the response, of any other request
// the complete response.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// writes are the verbs of changes.
var writes = []string{"create", "update", "patch", "delete", "deletecollection"}

// Entry is a request to the API server with the status code of its response.
type Entry struct {
	Time        time.Time // time of arrival
	Verb        string    // get, list, watch, create, update, patch, delete, …
	User        string
	Agent       string // User-Agent of the client
	Group       string // empty for the core group
	Resource    string // plural; empty if the request is not for a resource
	Subresource string
	Namespace   string
	Name        string
	Code        int
	Path        string // path with query
}

// Write reports whether the request is a write.
func (e Entry) Write() bool { return slices.Contains(writes, e.Verb) }

// event is the part of an audit event that becomes an Entry; see
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/.
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

// Audit returns the requests that have arrived since a time, in the order of their responses. The log contains a
// request before its client has read the complete response, because the API server logs first.
func (c *Cluster) Audit(since time.Time) ([]Entry, error) {
	file, err := os.Open(c.file("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	defer file.Close()
	return c.audit.read(file, since)
}

// auditLog caches the entries that were read before, because parsing the log of a whole test run takes seconds.
type auditLog struct {
	mu      sync.Mutex
	size    int64 // number of parsed bytes
	seen    map[string]bool
	entries []Entry
}

// read parses the new part of the log, and returns the entries since a time.
func (l *auditLog) read(log io.ReadSeeker, since time.Time) ([]Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := log.Seek(l.size, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	data, err := io.ReadAll(log)
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // an incomplete line is still being written
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read audit log: %w: %s", err, line)
		}
		l.size += int64(len(line))
		if l.seen[e.AuditID] {
			continue
		}
		l.seen[e.AuditID] = true
		l.entries = append(l.entries, Entry{
			Time: e.Received, Verb: e.Verb, User: e.User.Username, Agent: e.UserAgent,
			Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
			Code: e.Response.Code, Path: e.URI,
		})
	}
	since = since.Truncate(time.Microsecond) // the log has microseconds
	var found []Entry
	for _, e := range l.entries {
		if !e.Time.Before(since) {
			found = append(found, e)
		}
	}
	return found, nil
}
