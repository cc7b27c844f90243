package rest_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the service's clock in tests: one hour before a round number.
var now = time.Unix(1893456000-3600, 0)

// service is the handler with its OpenAPI contract.
type service struct {
	http.Handler
	directory *gateway.Directory
	fleet     *rest.Fleet
	registry  *prometheus.Registry
	metrics   *rest.Metrics
	logs      *bytes.Buffer
	contract  routers.Router
}

// gateways are the gateways of most tests, sorted: an ephemeral gateway, a static gateway, a gateway with STUN only,
// and a gateway without public address.
func gateways() []config.Config {
	udp := func(name, host string) config.Listener {
		return config.Listener{Name: name, Protocol: config.TURNUDP, PublicAddress: host, PublicPort: 3478, Port: 13478}
	}
	out := []config.Config{
		{
			Admin: config.Admin{Name: "media/bergen"},
			Auth: config.Auth{Type: config.AuthStatic, Credentials: map[string]credential.Secret{
				config.KeyUsername: "bergen", config.KeyPassword: "fish:market",
			}},
			Listeners: []config.Listener{udp("media/bergen/udp", "198.51.100.20")},
		},
		{
			Admin: config.Admin{Name: "media/oslo"},
			Auth: config.Auth{
				Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "s3cret"},
			},
			Listeners: []config.Listener{
				{Name: "media/oslo/tcp", Protocol: config.TURNTCP, PublicAddress: "203.0.113.7", PublicPort: 3478, Port: 13478},
				{Name: "media/oslo/dtls", Protocol: config.TURNDTLS, PublicAddress: "203.0.113.7", PublicPort: 5349, Port: 15349},
				udp("media/oslo/udp", "203.0.113.7"),
			},
		},
		{
			Admin: config.Admin{Name: "media/pending"},
			Auth: config.Auth{
				Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "s3cret"},
			},
			Listeners: []config.Listener{
				{Name: "media/pending/udp", Protocol: config.TURNUDP, Address: config.AddressPlaceholder, Port: 3478},
			},
		},
		{
			Admin: config.Admin{Name: "short/lived"},
			Auth: config.Auth{
				Type: config.AuthEphemeral, Lifetime: 600,
				Credentials: map[string]credential.Secret{config.KeySecret: "s3cret"},
			},
			Listeners: []config.Listener{udp("short/lived/udp", "203.0.113.8")},
		},
		{
			Admin:     config.Admin{Name: "stun/only"},
			Auth:      config.Auth{Type: config.AuthNone},
			Listeners: []config.Listener{udp("stun/only/udp", "203.0.113.9")},
		},
	}
	for i := range out {
		out[i].Version = config.Version
		out[i].Default()
	}
	return out
}

func newService(t testing.TB, policy *access.Policy, configs ...config.Config) *service {
	t.Helper()
	return newServiceWith(t, rest.Options{Policy: policy}, configs...)
}

// newServiceWith sets the common options of the tests.
func newServiceWith(t testing.TB, o rest.Options, configs ...config.Config) *service {
	t.Helper()
	levels, err := telemetry.ParseLevels("all:DEBUG")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{registry: prometheus.NewRegistry(), logs: &bytes.Buffer{}, contract: contract(t)}
	log := telemetry.NewLog(s.logs, "text", levels)
	s.directory = gateway.NewDirectory("", func() time.Time { return now }, slog.New(slog.DiscardHandler))
	for _, c := range configs {
		s.directory.Apply(discovery.Event{ID: c.Admin.Name, Config: c})
	}
	if o.Fleet == nil {
		o.Fleet = rest.NewFleet(rest.Clusters{All: gateway.Clusters{{Directory: s.directory}}})
	}
	s.fleet = o.Fleet
	s.metrics = rest.NewMetrics(s.registry, o.Fleet, cmp.Or(o.Policy, open()))
	o.Metrics, o.Log = s.metrics, telemetry.Scope(log, "rest")
	o.Audit = telemetry.Scope(log, "audit")
	o.DefaultTTL, o.MaxTTL = 24*time.Hour, 24*time.Hour
	if o.Now == nil {
		o.Now = func() time.Time { return now }
	}
	s.Handler = rest.New(o)
	return s
}

func open() *access.Policy { return &access.Policy{} }

func contract(t testing.TB) routers.Router {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../../../openapi/auth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return router
}

// do sends a request to the handler, and fails the test if the answer violates the contract.
func (s *service) do(t testing.TB, r *http.Request) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	answer := w.Result()
	s.check(t, r, answer, w.Body.Bytes())
	return answer
}

func (s *service) check(t testing.TB, r *http.Request, answer *http.Response, body []byte) {
	t.Helper()
	for name, want := range map[string]string{
		"Cache-Control": "no-store", "Pragma": "no-cache", "X-Content-Type-Options": "nosniff",
	} {
		if got := answer.Header.Get(name); got != want {
			t.Errorf("%s %s: header %s is %q, want %q", r.Method, r.URL.Path, name, got, want)
		}
	}
	s.checkReason(t, r, answer, body)
	route, params, err := s.contract.FindRoute(r)
	if err != nil {
		return // not a path of the contract; the test of the path checks the answer
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 answer.StatusCode,
		Header:                 answer.Header,
		Body:                   io.NopCloser(bytes.NewReader(body)),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("J-18 %s %s: the answer is not in the contract: %v", r.Method, r.URL, err)
	}
}

// checkReason fails the test if an answer is a problem whose reason is not in the table of refusals, with its status.
func (s *service) checkReason(t testing.TB, r *http.Request, answer *http.Response, body []byte) {
	t.Helper()
	if answer.Header.Get("Content-Type") != "application/problem+json" {
		return
	}
	var p rest.Problem
	if err := json.Unmarshal(body, &p); err != nil {
		t.Errorf("%s %s: %v: %s", r.Method, r.URL.Path, err, body)
	}
	for _, known := range rest.Refusals {
		if string(known.Reason) == p.Reason && known.Status == answer.StatusCode && known.Text == p.Detail {
			return
		}
	}
	t.Errorf("%s %s: no refusal is %d %s %s", r.Method, r.URL.Path, answer.StatusCode, p.Reason, p.Detail)
}

func (s *service) get(t testing.TB, target string) *http.Response {
	t.Helper()
	return s.do(t, httptest.NewRequest(http.MethodGet, target, nil))
}

func (s *service) post(t testing.TB, body string) *http.Response {
	t.Helper()
	return s.do(t, postRequest(body))
}

func postRequest(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/ice-servers", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// decode reads an answer of the wanted status.
func decode[T any](t testing.TB, answer *http.Response, status int) (v T) {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", answer.StatusCode, status, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return v
}

// wantProblem checks status, media type and the named parameter; "" means none.
func wantProblem(t testing.TB, answer *http.Response, status int, parameter string) rest.Problem {
	t.Helper()
	if got := answer.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q", got)
	}
	p := decode[rest.Problem](t, answer, status)
	if p.Status != status || p.Title != http.StatusText(status) || p.Detail == "" || p.Reason == "" {
		t.Errorf("problem %+v does not fit status %d", p, status)
	}
	got := ""
	if p.Errors != nil {
		got = (*p.Errors)[0].Parameter
		if (*p.Errors)[0].Message == "" {
			t.Errorf("parameter %q has no message", got)
		}
	}
	if got != parameter {
		t.Errorf("problem blames %q, want %q: %+v", got, parameter, p)
	}
	return p
}

func decodeText(t testing.TB, answer *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// metric returns the sum of all series of a metric.
func (s *service) metric(t testing.TB, name string) (sum float64) {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return sum
}
