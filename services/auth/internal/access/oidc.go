package access

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
)

// fetcher fetches the JWK set of an issuer: from its URL, or from the URL that OpenID Connect Discovery names. It
// follows no redirects. It replaces the body of each answer with status 200 by its usable keys, and records the result
// of each fetch.
type fetcher struct {
	next  http.RoundTripper
	reads *keyReads
	// caFile and tokenFile are read at each fetch, because mounted files change.
	caFile, tokenFile string
	// issuer is the issuer whose discovery document names the JWK set. It is empty if the URL leads to the JWK set
	// itself.
	issuer string
	hosts  []string
}

func newFetcher(c Config) *fetcher {
	return &fetcher{next: http.DefaultTransport, reads: &keyReads{}, caFile: c.CAFile, tokenFile: c.TokenFile}
}

func newDiscovery(c Config) *fetcher {
	f := newFetcher(c)
	f.issuer, f.hosts = c.Issuer, c.JWKSHosts
	return f
}

// discoveryURL returns the URL of the discovery document (OpenID Connect Discovery 1.0 §4).
func discoveryURL(issuer string) string {
	return strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
}

func (f *fetcher) client() *http.Client {
	return &http.Client{
		Timeout:       fetchTimeout,
		Transport:     f,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// RoundTrip returns the usable keys of the JWK set in the body of an answer with status 200. It returns an error for a
// set that is too large or has no usable key, and for a discovery document that cannot be used.
func (f *fetcher) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.keySet(r)
	switch {
	case err == nil && resp.StatusCode == http.StatusOK:
		defer resp.Body.Close()
		var set []byte
		if set, err = readSetBody(resp.Body); err == nil {
			resp.Body = io.NopCloser(bytes.NewReader(set))
		}
		f.reads.done(err)
	case err == nil:
		f.reads.done(fmt.Errorf("fetch key set: status %d", resp.StatusCode))
	default:
		f.reads.done(err)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// keySet returns the answer with the JWK set.
func (f *fetcher) keySet(r *http.Request) (*http.Response, error) {
	next, err := f.transport()
	if err != nil {
		return nil, err
	}
	first, err := f.authorized(r)
	if err != nil {
		return nil, err
	}
	resp, err := next.RoundTrip(first)
	if err != nil || f.issuer == "" || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	raw, err := readBody(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read discovery document: %w", err)
	}
	target, err := f.jwksURI(raw, r.URL.Host)
	if err != nil {
		return nil, err
	}
	second := r.Clone(r.Context())
	second.URL, second.Host = target, ""
	if target.Host == r.URL.Host { // the token of the pod is for the issuer only
		if second, err = f.authorized(second); err != nil {
			return nil, err
		}
	}
	return next.RoundTrip(second)
}

// jwksURI returns the URL of the JWK set in a discovery document. The host of the URL must be the host of the issuer,
// or a host that the policy lists: the keys decide who may sign tokens.
func (f *fetcher) jwksURI(raw []byte, host string) (*url.URL, error) {
	var document struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("parse discovery document: %w", err)
	}
	if document.Issuer != f.issuer {
		return nil, errors.New("parse discovery document: its issuer is not that of the policy (OpenID Connect Discovery §4.3)")
	}
	if err := checkURL(document.JWKSURI); err != nil {
		return nil, fmt.Errorf("parse discovery document: jwks_uri: %w", err)
	}
	target, err := url.Parse(document.JWKSURI)
	if err != nil {
		return nil, fmt.Errorf("parse discovery document: jwks_uri: %w", err)
	}
	if target.Host != host && !slices.Contains(f.hosts, target.Host) {
		return nil, fmt.Errorf("parse discovery document: jwks_uri is on host %q, which is neither that of the issuer nor "+
			"in jwksHosts: add it there if the issuer keeps its keys on it", target.Host)
	}
	return target, nil
}

// authorized returns a copy of a request with the token of the pod.
func (f *fetcher) authorized(r *http.Request) (*http.Request, error) {
	if f.tokenFile == "" {
		return r, nil
	}
	token, err := readSet(f.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("read tokenFile: %w", err)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return r, nil
}

// transport returns the transport of one fetch.
func (f *fetcher) transport() (http.RoundTripper, error) {
	if f.caFile == "" {
		return f.next, nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return nil, fmt.Errorf("read caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read caFile: %s has no certificate in PEM", f.caFile)
	}
	return &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true, // the certificates are read again at the next fetch
	}, nil
}

func readBody(body io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(body, maxSet+1))
	if err == nil && len(raw) > maxSet {
		err = fmt.Errorf("it is larger than %d bytes", maxSet)
	}
	return raw, err
}

func readSetBody(body io.Reader) ([]byte, error) {
	raw, err := readBody(body)
	if err != nil {
		return nil, fmt.Errorf("read key set: %w", err)
	}
	return usableKeys(raw)
}
