package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// The spans of all requests have reached the collector when the service has ended.
func TestTraces(t *testing.T) {
	spans := make(chan string, 64)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collector.ExportTraceServiceRequest)
		if err != nil || proto.Unmarshal(body, request) != nil {
			t.Errorf("%v: no spans", err)
		}
		for _, one := range request.ResourceSpans[0].ScopeSpans[0].Spans {
			spans <- one.Name
		}
	}))
	defer sink.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.URL)
	s := start(t, "-c", configFile(t))
	defer http.DefaultClient.CloseIdleConnections()
	for range 3 {
		answer, err := http.Post(s.public+"/v1/ice-servers", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	s.stop()
	close(spans)
	found := map[string]int{}
	for name := range spans {
		found[name]++
	}
	if found["POST /v1/ice-servers"] != 3 || found["identify caller"] != 3 {
		t.Errorf("spans %v", found)
	}
}

// A variable that is wrong does not keep the service from answering.
func TestWrongVariableOfTraces(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	s := start(t, "-c", configFile(t))
	defer http.DefaultClient.CloseIdleConnections()
	// The service reads its config after the start.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		answer, err := http.Post(s.public+"/v1/ice-servers", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusCreated {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(answer.Status)
		}
	}
	s.stop()
}
