package tracing

import (
	"bytes"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stunner-gateway/stunner/services/api/otlp"
)

// collect returns the environment of a process whose collector is a test server, and the requests that it has got. The
// collector refuses requests while refuse is set.
func collect(t *testing.T, refuse *atomic.Bool) (env func(string) string, got chan *collector.ExportTraceServiceRequest) {
	got = make(chan *collector.ExportTraceServiceRequest, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collector.ExportTraceServiceRequest)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		if refuse.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		got <- request
	}))
	t.Cleanup(server.Close)
	return func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL}[name]
	}, got
}

// Spans reach the collector with their ids, parent, links, attributes and status.
func TestCollector(t *testing.T) {
	env, got := collect(t, new(atomic.Bool))
	traces, err := Open(env, otlp.Process{Service: "auth", Version: "1", Instance: "pod"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	linked := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	ctx, parent := traces.Start(t.Context(), "parent", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithLinks(trace.Link{SpanContext: linked}))
	_, child := traces.Start(ctx, "child")
	child.SetAttributes(attribute.String("text", "a\xff"), attribute.Int("number", 7))
	child.SetStatus(codes.Error, "broken")
	child.End()
	parent.End()
	if err := traces.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	request := <-got
	if name := request.ResourceSpans[0].Resource.Attributes[0]; name.Key != "service.name" || name.Value.GetStringValue() != "auth" {
		t.Errorf("resource %v", request.ResourceSpans[0].Resource)
	}
	byName := map[string]*spans.Span{}
	for _, one := range request.ResourceSpans[0].ScopeSpans[0].Spans {
		byName[one.Name] = one
	}
	p, c := byName["parent"], byName["child"]
	if p == nil || c == nil {
		t.Fatalf("spans %v", byName)
	}
	id := func(b []byte) string { return hex.EncodeToString(b) }
	if id(c.ParentSpanId) != id(p.SpanId) || id(c.TraceId) != parent.SpanContext().TraceID().String() || len(p.ParentSpanId) != 0 {
		t.Errorf("parent %v, child %v", p, c)
	}
	if p.Kind != spans.Span_SPAN_KIND_SERVER || c.Kind != spans.Span_SPAN_KIND_INTERNAL {
		t.Errorf("kinds %v and %v", p.Kind, c.Kind)
	}
	if len(p.Links) != 1 || id(p.Links[0].SpanId) != "0200000000000000" || p.Links[0].Flags != 0x300 {
		t.Errorf("links %v", p.Links)
	}
	if c.Status.GetCode() != spans.Status_STATUS_CODE_ERROR || p.Status != nil || p.EndTimeUnixNano < p.StartTimeUnixNano {
		t.Errorf("parent %v, child %v", p, c)
	}
	if len(c.Attributes) != 2 || c.Attributes[0].Value.GetStringValue() != "a\uFFFD" || c.Attributes[1].Value.GetIntValue() != 7 {
		t.Errorf("attributes %v", c.Attributes)
	}
}

// A collector that refuses spans costs one line of the log. A second line follows when the collector accepts spans
// again.
func TestCollectorRefuses(t *testing.T) {
	var refuse atomic.Bool
	env, got := collect(t, &refuse)
	var log bytes.Buffer
	traces, err := Open(env, otlp.Process{}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		t.Helper()
		_, span := traces.Start(t.Context(), "span")
		span.End()
		if err := traces.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	refuse.Store(true)
	send()
	send()
	refuse.Store(false)
	send()
	if len(got) != 1 || strings.Count(log.String(), "cannot send traces") != 1 || strings.Count(log.String(), "sent again") != 1 {
		t.Errorf("%d requests, log %s", len(got), &log)
	}
	if err := traces.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Without a collector there are no traces, and an error names the variable.
func TestOpen(t *testing.T) {
	for endpoint, want := range map[string]string{"": "", "collector:4318": "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		traces, err := Open(func(name string) string {
			return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}[name]
		}, otlp.Process{}, slog.New(slog.DiscardHandler))
		if traces != nil || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", endpoint, traces, err)
		}
	}
}
