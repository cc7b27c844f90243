package otlp

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Variables of the signal take precedence over the general variables, and an error names the variable.
func TestOpen(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		env  map[string]string
		want string // the endpoint, or a part of the error
	}{
		{nil, ""},
		{map[string]string{endpoint: "http://a:4318"}, "http://a:4318/v1/traces"},
		{map[string]string{endpoint: "http://a:4318/otlp/"}, "http://a:4318/otlp/v1/traces"},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/own", endpoint: "x"}, "http://a:4318/own"},
		{map[string]string{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://a:4318/own"}, ""},
		{map[string]string{endpoint: "http://a", "OTEL_TRACES_EXPORTER": "none"}, ""},
		{map[string]string{endpoint: "http://a", "OTEL_LOGS_EXPORTER": "none"}, "http://a/v1/traces"},
		{map[string]string{endpoint: "http://a", "OTEL_SDK_DISABLED": "TRUE"}, ""},
		{map[string]string{endpoint: "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
			"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, "http://a/v1/traces"},
		{map[string]string{endpoint: "127.0.0.1:4318"}, endpoint},
		{map[string]string{endpoint: "unix:///run/collector"}, endpoint},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "OTEL_EXPORTER_OTLP_COMPRESSION"},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_HEADERS": "key"}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"},
		{map[string]string{endpoint: "http://a", "OTEL_RESOURCE_ATTRIBUTES": "a=%zz"}, "OTEL_RESOURCE_ATTRIBUTES"},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere"}, "OTEL_EXPORTER_OTLP_CERTIFICATE"},
		{map[string]string{endpoint: "http://a", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/nowhere"}, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and"},
	} {
		e, err := Open(Traces, func(name string) string { return c.env[name] }, Process{})
		switch {
		case err != nil && (c.want == "" || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%v: error %q, want %q", c.env, err, c.want)
		case err == nil && e == nil && c.want != "", e != nil && e.endpoint != c.want:
			t.Errorf("%v: %+v, want %q", c.env, e, c.want)
		}
	}
}

// Messages reach a collector with TLS, with the headers and the resource of the variables. A refusal, and an answer
// that does not arrive in time, are errors.
func TestSend(t *testing.T) {
	answer := http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got := new(collector.ExportTraceServiceRequest)
		if err != nil || proto.Unmarshal(body, got) != nil || len(got.ResourceSpans) != 1 || r.Header.Get("Api-Key") != "a,b" {
			t.Errorf("%v: %v, header %q", err, got, r.Header)
		}
		if answer == 0 {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(answer)
	}))
	defer server.Close()
	root := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(root, certificate(server.Certificate()), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE": root,
		"OTEL_EXPORTER_OTLP_HEADERS": " api-key=a%2Cb , other=1", "OTEL_EXPORTER_OTLP_TIMEOUT": "10000",
		"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.version=2", "OTEL_SERVICE_NAME": "own",
	}
	open := func() *Exporter {
		t.Helper()
		e, err := Open(Traces, func(name string) string { return env[name] }, Process{"auth", "1", "pod-1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	}
	e := open()
	found := map[string]string{}
	for _, kv := range e.Resource.Attributes {
		found[kv.Key] = kv.Value.GetStringValue()
	}
	want := map[string]string{
		"service.name": "own", "service.version": "2", "service.instance.id": "pod-1", "deployment.environment": "test",
	}
	if !maps.Equal(found, want) {
		t.Errorf("resource %v, want %v", found, want)
	}
	message := &collector.ExportTraceServiceRequest{ResourceSpans: []*trace.ResourceSpans{{Resource: e.Resource}}}
	if err := e.Send(t.Context(), message); err != nil {
		t.Error(err)
	}
	answer = http.StatusServiceUnavailable
	if err := e.Send(t.Context(), message); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("error %v of a refusal", err)
	}
	answer = 0
	env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "50"
	began := time.Now()
	if err := open().Send(t.Context(), message); err == nil || time.Since(began) > Timeout {
		t.Errorf("error %v after %v", err, time.Since(began))
	}
}

func certificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
