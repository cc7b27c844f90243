package rest

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// methodOf returns the method of a request, or "_OTHER" if no path has it: a client may send any text.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "_OTHER"
}

// startSpan starts the span of a request, if the service sends traces. The span of a trusted proxy is its parent (W3C
// Trace Context). The span of any other client is a link, because a client must not decide which requests are sampled.
func (s server) startSpan(r *http.Request) (*http.Request, trace.Span) {
	if s.Tracer == nil {
		return r, nil
	}
	ctx := r.Context()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	carrier := propagation.HeaderCarrier(r.Header)
	above := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	switch {
	case !above.IsValid():
	case callOf(ctx).viaProxy:
		ctx = trace.ContextWithRemoteSpanContext(ctx, above)
	default:
		options = append(options, trace.WithLinks(trace.Link{SpanContext: above}))
	}
	ctx, span := s.Tracer.Start(ctx, methodOf(r), options...)
	return r.WithContext(ctx), span
}

// endSpan ends the span of a request with its outcome, in the names of the semantic conventions for HTTP. A span has no
// part of the query, of headers or of the body, because they may contain keys and tokens.
func (s server) endSpan(ctx context.Context, span trace.Span, r *http.Request, status int) {
	if span == nil {
		return
	}
	defer span.End()
	if !span.IsRecording() {
		return
	}
	method := methodOf(r)
	if route := chi.RouteContext(ctx).RoutePattern(); route != "" {
		span.SetName(method + " " + route)
		span.SetAttributes(attribute.String("http.route", route))
	}
	span.SetAttributes(
		attribute.String("http.request.method", method), attribute.Int("http.response.status_code", status),
		attribute.String("stunner.request.id", requestOf(ctx)),
	)
	if f := callOf(ctx).outcome.failure; f != nil {
		span.SetAttributes(attribute.String("error.type", string(f.Reason)))
	}
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// stage starts the span of a part of a request that may wait for another service, and returns the function that ends it.
func (s server) stage(ctx context.Context, name string) (context.Context, func()) {
	if s.Tracer == nil {
		return ctx, func() {}
	}
	ctx, span := s.Tracer.Start(ctx, name)
	return ctx, func() { span.End() }
}
