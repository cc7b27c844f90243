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
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Cluster is a Store of Revocation objects in an API server. It speaks HTTP itself: this service is reachable from
// outside, and must not contain a client that can do more.
type Cluster struct {
	origin, tokenFile string
	client            *http.Client
}

const (
	// requestTimeout is the time for one request to the API server.
	requestTimeout = 10 * time.Second
	// maxAnswer is the maximum size of an answer of the API server in bytes, and pageSize the number of objects in it.
	maxAnswer = 16 << 20
	pageSize  = 500
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
	return &Cluster{origin: "https://" + u.Host, tokenFile: tokenFile, client: &http.Client{
		Transport: transport, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// List implements Store.
func (c *Cluster) List(ctx context.Context) (all []Revocation, err error) {
	query := url.Values{"labelSelector": {managedBy + "=" + manager}, "limit": {fmt.Sprint(pageSize)}}
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []manifest `json:"items"`
		}
		err := c.do(ctx, http.MethodGet, "/apis/"+apiVersion+"/revocations", query, nil, &page)
		if err != nil {
			return nil, fmt.Errorf("list revocations: %w", err)
		}
		for _, item := range page.Items {
			item.Kind = kind // items of a list may have none
			if r, ours := item.revocation(); ours {
				all = append(all, r)
			}
		}
		if page.Metadata.Continue == "" || len(all) > maxListed {
			return all, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// Put implements Store, with server-side apply.
func (c *Cluster) Put(ctx context.Context, r Revocation) error {
	query := url.Values{"fieldManager": {manager}, "force": {"true"}}
	err := c.do(ctx, http.MethodPatch, objectPath(r.Namespace, r.ID), query, r.manifest(), nil)
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
	err := c.do(ctx, http.MethodDelete, objectPath(namespace, id), nil, options, nil)
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

// Is reports whether the answer denies access. 404 for a list means that the kind does not exist.
func (e *statusError) Is(target error) bool {
	return target == ErrForbidden && (e.code == http.StatusForbidden || e.code == http.StatusUnauthorized)
}

// do sends a request with an optional JSON body, and decodes the answer if out is not nil.
func (c *Cluster) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	token, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.origin+path+"?"+query.Encode(), content)
	if err != nil {
		return err
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
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case answer.StatusCode >= http.StatusMultipleChoices:
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(data, &status)
		return &statusError{answer.StatusCode, status.Message}
	case out != nil:
		return json.Unmarshal(data, out)
	}
	return nil
}
