package revoke

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Cluster is a Store of Revocation objects in an API server. It uses no Kubernetes client but makes the HTTP requests
// itself, because this service is reachable from outside and must not contain a client for other requests.
type Cluster struct {
	origin, tokenFile string
	client            *http.Client
	// maxBytes is the maximum size in bytes of the objects of a namespace in a list. It is maxListedNamespace outside
	// of tests.
	maxBytes int64

	// listing is held while oversized is in use.
	listing sync.Mutex
	// oversized are the revocations of namespaces whose objects exceed maxBytes. They are read again after
	// oversizedUntil.
	oversized      map[string][]Revocation
	oversizedUntil time.Time
}

const (
	// requestTimeout is the time for one request to the API server.
	requestTimeout = 10 * time.Second
	// maxAnswer is the maximum size in bytes of an answer of the API server that is not a list.
	maxAnswer = 4 << 20
	// pageSize is the number of objects in an answer.
	pageSize = 50
	// maxListedNamespace is the maximum size in bytes of the objects of a namespace in a list. listedPrice is added for
	// each of them: an object of this service has 1 kB, or 30 kB if it names 64 Gateways.
	maxListedNamespace = 48 << 20
	listedPrice        = 8 << 10
	// oversizedInterval is the time between two reads of a namespace whose objects exceed this limit.
	oversizedInterval = time.Minute
	// maxListed is the maximum number of objects of all namespaces that are read.
	maxListed = 100_000
)

// OpenCluster returns a Cluster for an API server, https://HOST:PORT. It reads the token at each request, because the
// kubelet replaces it.
func OpenCluster(origin, tokenFile, caFile string) (*Cluster, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("open API server: %q is no https://HOST:PORT", origin)
	}
	bundle, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("open API server: read CA certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("open API server: %s has no certificate in PEM", caFile)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // the token is for the API server only
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &Cluster{origin: "https://" + u.Host, tokenFile: tokenFile, maxBytes: maxListedNamespace, client: &http.Client{
		Transport: transport, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// List implements Store. A namespace whose objects exceed the maximum size is read only once in oversizedInterval, and
// not completely, because a user with the right to write Revocations there can create objects of any size with the
// label.
func (c *Cluster) List(ctx context.Context) (all []Revocation, err error) {
	c.listing.Lock()
	defer c.listing.Unlock()
	if now := time.Now(); now.After(c.oversizedUntil) {
		c.oversized, c.oversizedUntil = map[string][]Revocation{}, now.Add(oversizedInterval)
	}
	for {
		read := reading{maxBytes: c.maxBytes}
		if err := c.list(ctx, &read); err != nil {
			return nil, fmt.Errorf("list revocations: %w", err)
		}
		if read.oversized == "" {
			for _, part := range c.oversized {
				read.all = append(read.all, part...)
			}
			return read.all, nil
		}
		if _, again := c.oversized[read.oversized]; again {
			return nil, fmt.Errorf("list revocations: the API server ignores metadata.namespace!=%s", read.oversized)
		}
		c.oversized[read.oversized] = slices.DeleteFunc(read.all, func(r Revocation) bool {
			return r.Namespace != read.oversized
		})
	}
}

// reading is the part of a list that was read so far.
type reading struct {
	all      []Revocation
	maxBytes int64
	// used are the bytes of each namespace, with listedPrice for each object.
	used map[string]int64
	// oversized is a namespace whose objects exceed maxBytes. The reading ended at it.
	oversized string
}

// list reads the objects of all namespaces that are not oversized.
func (c *Cluster) list(ctx context.Context, read *reading) error {
	var others []string
	for _, namespace := range slices.Sorted(maps.Keys(c.oversized)) {
		others = append(others, "metadata.namespace!="+namespace)
	}
	query := url.Values{"labelSelector": {managedBy + "=" + manager}, "limit": {fmt.Sprint(pageSize)}}
	if len(others) > 0 {
		query.Set("fieldSelector", strings.Join(others, ","))
	}
	read.used = map[string]int64{}
	for {
		next := ""
		answer, err := c.send(ctx, http.MethodGet, "/apis/"+apiVersion+"/revocations", query, nil)
		if err == nil {
			next, err = read.page(answer.Body)
			err = errors.Join(err, answer.Body.Close())
		}
		if err != nil || next == "" || read.oversized != "" || len(read.all) > maxListed {
			return err
		}
		query.Set("continue", next)
	}
}

// page reads a page of the list, one object after the other, so that only one object is in memory. It returns where the
// next page begins.
func (r *reading) page(body io.Reader) (next string, err error) {
	d := json.NewDecoder(body)
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return "", errors.Join(err, errors.New("the answer is no list"))
	}
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return "", err
		}
		switch field {
		case "metadata":
			var metadata struct {
				Continue string `json:"continue"`
			}
			if err := d.Decode(&metadata); err != nil {
				return "", err
			}
			next = metadata.Continue
		case "items":
			if err := r.items(d); err != nil || r.oversized != "" {
				return "", err
			}
		default:
			if err := d.Decode(new(json.RawMessage)); err != nil {
				return "", err
			}
		}
	}
	_, err = d.Token() // reads the closing brace, or returns the error of an incomplete answer
	return next, err
}

func (r *reading) items(d *json.Decoder) error {
	if start, err := d.Token(); err != nil || start == nil { // reads the opening bracket, or null
		return err
	}
	for d.More() {
		begun, item := d.InputOffset(), manifest{}
		if err := d.Decode(&item); err != nil {
			return err
		}
		namespace := item.Metadata.Namespace
		r.used[namespace] += d.InputOffset() - begun + listedPrice
		if r.used[namespace] > r.maxBytes {
			r.oversized = namespace
			return nil
		}
		item.Kind = kind // items of a list may lack the kind
		if revocation, ours := item.revocation(); ours {
			r.all = append(r.all, revocation)
		}
	}
	_, err := d.Token() // reads the closing bracket
	return err
}

// Put implements Store, with server-side apply.
func (c *Cluster) Put(ctx context.Context, r Revocation) error {
	query := url.Values{"fieldManager": {manager}, "force": {"true"}}
	err := c.do(ctx, http.MethodPatch, objectPath(r.Namespace, r.ID), query, r.manifest())
	if err != nil {
		return fmt.Errorf("write revocation: %w", err)
	}
	return nil
}

// Delete implements Store. The API server compares the version.
func (c *Cluster) Delete(ctx context.Context, namespace, id, version string) error {
	var options any
	if version != "" {
		options = map[string]any{"preconditions": map[string]string{"resourceVersion": version}}
	}
	err := c.do(ctx, http.MethodDelete, objectPath(namespace, id), nil, options)
	var failed *statusError
	gone := errors.As(err, &failed) && failed.code == http.StatusNotFound
	changed := version != "" && errors.As(err, &failed) && failed.code == http.StatusConflict
	if err != nil && !gone && !changed {
		return fmt.Errorf("delete revocation: %w", err)
	}
	return nil
}

func objectPath(namespace, id string) string {
	return "/apis/" + apiVersion + "/namespaces/" + url.PathEscape(namespace) + "/revocations/" + url.PathEscape(id)
}

// statusError is an answer of the API server that is an error.
type statusError struct {
	code    int
	message string
}

// Error implements error.
func (e *statusError) Error() string {
	return fmt.Sprintf("API server answers %d: %.300s", e.code, e.message)
}

// isStatus reports whether an error is an answer of the API server. After such an error, another request may succeed at
// once.
func isStatus(err error) bool { return errors.As(err, new(*statusError)) }

// Is reports whether the answer denies access. 404 for a list means that the kind does not exist.
func (e *statusError) Is(target error) bool {
	return target == ErrForbidden && (e.code == http.StatusForbidden || e.code == http.StatusUnauthorized)
}

// do sends a request with an optional JSON body, and discards the answer.
func (c *Cluster) do(ctx context.Context, method, path string, query url.Values, body any) error {
	answer, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	return errors.Join(err, answer.Body.Close())
}

// send sends a request with an optional JSON body, and returns an answer with a success status. The caller closes its
// body.
func (c *Cluster) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	token, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.origin+path+"?"+query.Encode(), content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	switch {
	case method == http.MethodPatch:
		r.Header.Set("Content-Type", "application/apply-patch+yaml") // JSON is YAML
	case body != nil:
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	defer answer.Body.Close()
	var status struct {
		Message string `json:"message"`
	}
	_ = json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&status)
	return nil, &statusError{answer.StatusCode, status.Message}
}
