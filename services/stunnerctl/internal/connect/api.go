package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Bounds of an answer of the operator.
const (
	answerLimit   = 64 << 20
	answerTimeout = 15 * time.Second // the operator waits at most 6 s for the pods, and 2 s for other replicas
	dialTimeout   = 5 * time.Second
	tokenLimit    = 64 << 10
)

// api is the inspection API at one address.
type api struct {
	base   *url.URL
	client *http.Client
}

func (a *api) Ask(ctx context.Context, r Request) (list inspection.List, err error) {
	err = a.do(ctx, cmp.Or(r.Method, http.MethodGet), r.URL(), &list)
	return list, err
}

func (a *api) Get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, into)
}

func (a *api) Close() error {
	a.client.CloseIdleConnections()
	return nil
}

func (a *api) do(ctx context.Context, method, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	target := *a.base
	relative, err := url.Parse(path)
	if err != nil {
		return fmt.Errorf("ask the operator: %w", err)
	}
	request, err := http.NewRequestWithContext(
		ctx,
		method,
		target.JoinPath(relative.EscapedPath()).String(),
		http.NoBody,
	)
	if err != nil {
		return fmt.Errorf("ask the operator: %w", err)
	}
	request.URL.RawQuery = relative.RawQuery
	request.Header.Set("Accept", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the operator: %w", withRemedy(err))
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerLimit+1))
	switch {
	case err != nil:
		return fmt.Errorf("ask the operator: read its answer: %w", err)
	case len(body) > answerLimit:
		return fmt.Errorf(
			"ask the operator: the answer exceeds %d MiB: use a filter or a smaller --limit",
			answerLimit>>20,
		)
	case response.StatusCode != http.StatusOK:
		return &Error{Status: response.StatusCode, Message: messageOf(body, response.StatusCode)}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("ask the operator: its answer is not that of the inspection API: %w", err)
	}
	return nil
}

// messageOf returns the message of an answer with an error.
func messageOf(body []byte, status int) string {
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
		return answer.Message
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	if status == http.StatusNotFound {
		return "no such Gateway, or the operator is of a release without the inspection API"
	}
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return cmp.Or(text, "no message")
}

func withRemedy(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return &Unreached{Err: err, Remedy: "use --ca-file with the CA certificates of the operator, which are in the " +
			"ConfigMap stunner-discovery-ca of its namespace"}
	case errors.As(err, &name):
		return &Unreached{Err: err, Remedy: "use a name of the certificate in --operator"}
	}
	return err
}

// newTransport returns a transport for requests to the operator.
func newTransport(security *tls.Config) *http.Transport {
	security.MinVersion = tls.VersionTLS12
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        security,
		TLSHandshakeTimeout:    dialTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        30 * time.Second,
	}
}

// newClient returns a client that follows no redirects, because a redirect could send the token to another host.
func newClient(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// withToken adds a bearer token, which is read for each request because tokens are rotated.
type withToken struct {
	token func() (string, error)
	next  http.RoundTripper
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := w.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return w.next.RoundTrip(r)
}

func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, tokenLimit))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \r\n\t") {
		return "", fmt.Errorf("read token %s: the file must contain one token", file)
	}
	return token, nil
}

// atURL is an operator at a URL.
type atURL struct{ api }

func openURL(o Options) (Source, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fmt.Errorf("--operator %q: use https://HOST:PORT", o.URL)
	}
	token := func() (string, error) { return o.Token, nil }
	if o.TokenFile != "" {
		token = func() (string, error) { return readToken(o.TokenFile) }
	}
	hasToken := o.TokenFile != "" || o.Token != ""
	if hasToken && base.Scheme == "http" && !IsLoopback(base.Hostname()) {
		return nil, fmt.Errorf("--operator %q: a token is sent over verified TLS only: use https", o.URL)
	}
	security := &tls.Config{}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		if security.RootCAs, err = poolOf(pem, o.CAFile); err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	return &atURL{api{base: base, client: newClient(withToken{token, newTransport(security)})}}, nil
}

func poolOf(pem []byte, from string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no PEM certificate in %s", from)
	}
	return pool, nil
}

// IsLoopback reports whether a host name or address belongs to this host.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func (u *atURL) String() string { return u.base.Redacted() }

var errNoObjects = errors.New("an operator's URL gives no Kubernetes objects: use a kubeconfig instead of --operator")

func (u *atURL) Gateways(context.Context, string) ([]types.NamespacedName, error) {
	return nil, fmt.Errorf("list Gateways: %w, or name a Gateway", errNoObjects)
}

func (u *atURL) Objects(context.Context, string, ...schema.GroupKind) (Objects, error) {
	return Objects{}, fmt.Errorf("read objects: %w", errNoObjects)
}

// HasNoObjects reports whether the source gives no Kubernetes objects.
func HasNoObjects(s Source) bool {
	_, ok := s.(*atURL)
	return ok
}
