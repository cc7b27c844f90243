// Package tracing sends the spans of requests to an OpenTelemetry collector.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/stunner-gateway/stunner/services/api/otlp"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/stunner-gateway/stunner/services/auth"

// Traces has the Tracer of the process.
type Traces struct {
	trace.Tracer
	provider *sdk.TracerProvider
}

// Open returns the Traces that the standard variables of OpenTelemetry request, or nil. The SDK reads the variables of
// sampling and batches (OTEL_TRACES_SAMPLER, OTEL_BSP_…). Its processor drops spans that the collector does not accept,
// and delays no request.
func Open(env func(string) string, from otlp.Process, log *slog.Logger) (*Traces, error) {
	out, err := otlp.Open(otlp.Traces, env, from)
	if out == nil || err != nil {
		return nil, err
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(&exporter{Exporter: out, log: log}), sdk.WithResource(resource.Empty()))
	return &Traces{provider.Tracer(scope), provider}, nil
}

// Close sends the spans that have not been sent, until ctx ends.
func (t *Traces) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// exporter implements sdk.SpanExporter. It logs the first of consecutive failures.
type exporter struct {
	*otlp.Exporter
	log    *slog.Logger
	failed atomic.Bool
}

// ExportSpans implements sdk.SpanExporter. A failure is logged here, because the SDK reports errors to a handler of the
// whole process.
func (e *exporter) ExportSpans(ctx context.Context, list []sdk.ReadOnlySpan) error {
	out := make([]*spans.Span, len(list))
	for i, one := range list {
		out[i] = message(one)
	}
	err := e.Send(ctx, &collector.ExportTraceServiceRequest{ResourceSpans: []*spans.ResourceSpans{{
		Resource:   e.Resource,
		ScopeSpans: []*spans.ScopeSpans{{Scope: &common.InstrumentationScope{Name: scope}, Spans: out}},
	}}})
	if failed := err != nil; e.failed.Swap(failed) != failed {
		if failed {
			e.log.Warn("cannot send traces: spans are lost until the collector takes them", "error", err)
		} else {
			e.log.Info("traces are sent again")
		}
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.Close()
	return nil
}

// message returns a span as a message of OTLP. Events are left out: the service adds none.
func message(s sdk.ReadOnlySpan) *spans.Span {
	id, parent := s.SpanContext(), s.Parent()
	traceID, spanID := id.TraceID(), id.SpanID()
	m := &spans.Span{
		TraceId: traceID[:], SpanId: spanID[:], TraceState: id.TraceState().String(), Flags: flags(id),
		Name: s.Name(), Kind: spans.Span_SpanKind(s.SpanKind()), // OTLP and the API have the same numbers
		StartTimeUnixNano: uint64(s.StartTime().UnixNano()), EndTimeUnixNano: uint64(s.EndTime().UnixNano()),
		Attributes: attributes(s.Attributes()), DroppedAttributesCount: uint32(s.DroppedAttributes()),
	}
	if parent.HasSpanID() {
		above := parent.SpanID()
		m.ParentSpanId = above[:]
	}
	for _, link := range s.Links() {
		traceID, spanID := link.SpanContext.TraceID(), link.SpanContext.SpanID()
		m.Links = append(m.Links, &spans.Span_Link{
			TraceId: traceID[:], SpanId: spanID[:], TraceState: link.SpanContext.TraceState().String(), Flags: flags(link.SpanContext),
		})
	}
	if s.Status().Code == codes.Error {
		m.Status = &spans.Status{Code: spans.Status_STATUS_CODE_ERROR, Message: s.Status().Description}
	}
	return m
}

// flags returns the flags of a span context, and whether it came from another process (OTLP, SpanFlags).
func flags(c trace.SpanContext) uint32 {
	f := uint32(c.TraceFlags()) | uint32(spans.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if c.IsRemote() {
		f |= uint32(spans.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return f
}

// attributes returns attributes as messages. The service has attributes of texts and integers only.
func attributes(list []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, len(list))
	for i, kv := range list {
		if kv.Value.Type() == attribute.INT64 {
			out[i] = otlp.Number(string(kv.Key), kv.Value.AsInt64())
		} else {
			out[i] = otlp.Text(string(kv.Key), kv.Value.String())
		}
	}
	return out
}
