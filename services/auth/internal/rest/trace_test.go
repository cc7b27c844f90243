package rest_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

const (
	above     = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	aboveSpan = "b7ad6b7169203331"
)

// traced returns a service that traces requests, and the spans that have ended.
func traced(t *testing.T) (*service, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) })
	s := newServiceWith(t, rest.Options{
		Policy: open(), Tracer: provider.Tracer("test"),
		Rates: rest.Rates{Proxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	}, gateways()...)
	return s, recorder
}

// A request has a span with its route, status and reason, and a child of each stage. No span has the query, a header or
// a user.
func TestSpans(t *testing.T) {
	for _, c := range []struct {
		name, method, path, body string
		want                     map[attribute.Key]string
	}{
		{"POST /v1/ice-servers", http.MethodPost, "/v1/ice-servers", `{"username":"ann-secret"}`,
			map[attribute.Key]string{"http.response.status_code": "201", "http.request.method": "POST"}},
		{"GET /ice", http.MethodGet, "/ice?service=turn&username=ann-secret&key=key-secret", "",
			map[attribute.Key]string{"http.response.status_code": "200", "http.route": "/ice"}},
		{"POST /v1/ice-servers", http.MethodPost, "/v1/ice-servers", `{"ttl":-1,"username":"ann-secret"}`,
			map[attribute.Key]string{"http.response.status_code": "400", "error.type": "parameter_invalid"}},
		{"GET", http.MethodGet, "/ann-secret", "", map[attribute.Key]string{"error.type": "path_unknown", "http.route": ""}},
		{"_OTHER", "ANN-SECRET", "/", "", map[attribute.Key]string{"http.request.method": "_OTHER"}},
	} {
		s, spans := traced(t)
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("User-Agent", "agent-secret")
		s.do(t, r)
		ended := spans.Ended()
		if len(ended) == 0 {
			t.Fatalf("%s: no span", c.name)
		}
		root := ended[len(ended)-1]
		found := map[attribute.Key]string{}
		for _, one := range ended {
			if one != root && one.Parent().SpanID() != root.SpanContext().SpanID() {
				t.Errorf("span %s is no child of the span of the request", one.Name())
			}
			for _, kv := range one.Attributes() {
				found[kv.Key] = kv.Value.String()
			}
		}
		if !strings.HasPrefix(root.Name(), c.name) || root.SpanKind() != trace.SpanKindServer {
			t.Errorf("span %s of kind %s, want %s", root.Name(), root.SpanKind(), c.name)
		}
		for key, want := range c.want {
			if found[key] != want {
				t.Errorf("%s: attribute %s is %q, want %q: %v", c.name, key, found[key], want, found)
			}
		}
		for key, value := range found {
			if strings.Contains(strings.ToLower(value+root.Name()), "secret") {
				t.Errorf("%s: attribute %s is %q", c.name, key, value)
			}
		}
	}
}

// The span of a trusted proxy is the parent of the span of the request. The span of another client is a link, so that a
// client decides neither the id of a trace nor whether it is sampled. A header that is no trace context changes
// nothing.
func TestParentOfSpan(t *testing.T) {
	for _, c := range []struct {
		from, header string
		parent, link bool
	}{
		{"192.0.2.1:1", above, true, false},
		{"198.51.100.1:1", above, false, true},
		{"192.0.2.1:1", "", false, false},
		{"192.0.2.1:1", "00-0-0-01", false, false},
		{"192.0.2.1:1", strings.Repeat("00-", 10_000), false, false},
	} {
		s, spans := traced(t)
		r := httptest.NewRequest(http.MethodPost, "/v1/ice-servers", nil)
		r.RemoteAddr = c.from
		r.Header.Set("Traceparent", c.header)
		s.do(t, r)
		ended := spans.Ended()
		root := ended[len(ended)-1]
		parent := root.Parent().SpanID().String() == aboveSpan
		link := len(root.Links()) == 1 && root.Links()[0].SpanContext.SpanID().String() == aboveSpan
		if parent != c.parent || link != c.link {
			t.Errorf("%s, %.60q: parent %v, link %v, want %v, %v", c.from, c.header, parent, link, c.parent, c.link)
		}
	}
}
