package usagelog

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logs "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

const (
	// eventName is the name of the OpenTelemetry event of a usage record.
	eventName = "stunner.usage"
	// scopeName is the name of the instrumentation scope.
	scopeName = "github.com/stunner-gateway/stunner/services/stunnerd/usage"
	// maxAnswer is the part of an answer in bytes that is read.
	maxAnswer = 64 << 10
)

// otlp sends records to a collector by OTLP/HTTP. It uses the messages of the protocol without the SDK: the SDK drops
// records that it cannot send, and its exporter brings gRPC, which takes 4 MiB of memory in each process.
type otlp struct {
	client   *http.Client
	endpoint string
	headers  map[string]string
	gzip     bool
	resource *resource.Resource
	scope    *common.InstrumentationScope
}

// logsVariable returns the value of the variable OTEL_EXPORTER_OTLP_LOGS_name, or else OTEL_EXPORTER_OTLP_name, and the
// name of the one that is set.
func logsVariable(env func(string) string, name string) (value, of string) {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_LOGS_", "OTEL_EXPORTER_OTLP_"} {
		if value := env(prefix + name); value != "" {
			return value, prefix + name
		}
	}
	return "", ""
}

// openOTLP returns a sink with the settings of the standard variables (OpenTelemetry specification, OTLP exporter).
func openOTLP(env func(string) string, from Origin) (Sink, error) {
	o := &otlp{scope: &common.InstrumentationScope{Name: scopeName}}
	endpoint, of := logsVariable(env, "ENDPOINT")
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s: %q is no URL http://HOST:PORT or https://HOST:PORT", of, endpoint)
	}
	if o.endpoint = endpoint; of != "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" {
		o.endpoint = u.JoinPath("v1/logs").String()
	}
	compression, of := logsVariable(env, "COMPRESSION")
	if o.gzip = compression == "gzip"; !o.gzip && compression != "" && compression != "none" {
		return nil, fmt.Errorf("%s: %q is not supported: use gzip or none", of, compression)
	}
	headers, of := logsVariable(env, "HEADERS")
	if o.headers, err = pairs(headers); err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	timeout := deliverTimeout
	if text, of := logsVariable(env, "TIMEOUT"); text != "" {
		milliseconds, err := strconv.Atoi(text)
		if err != nil || milliseconds <= 0 {
			return nil, fmt.Errorf("%s: %q is no positive number of milliseconds", of, text)
		}
		timeout = time.Duration(milliseconds) * time.Millisecond
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if transport.TLSClientConfig, err = tlsConfig(env); err != nil {
		return nil, err
	}
	o.client = &http.Client{Transport: transport, Timeout: timeout}
	if o.resource, err = resourceOf(env, from); err != nil {
		return nil, err
	}
	return o, nil
}

// tlsConfig returns the configuration of TLS with the certificates that variables name.
func tlsConfig(env func(string) string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if file, of := logsVariable(env, "CERTIFICATE"); file != "" {
		bundle, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of, err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM", of, file)
		}
	}
	certificate, of := logsVariable(env, "CLIENT_CERTIFICATE")
	key, ofKey := logsVariable(env, "CLIENT_KEY")
	if certificate == "" && key == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", cmp.Or(of, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
			cmp.Or(ofKey, "OTEL_EXPORTER_OTLP_CLIENT_KEY"), err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// resourceOf returns the attributes of this process. Variables take precedence.
func resourceOf(env func(string) string, from Origin) (*resource.Resource, error) {
	const variable = "OTEL_RESOURCE_ATTRIBUTES"
	attributes, err := pairs(env(variable))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	if name := env("OTEL_SERVICE_NAME"); name != "" {
		attributes["service.name"] = name
	}
	r := &resource.Resource{}
	for _, own := range [][2]string{
		{"service.name", "stunnerd"}, {"service.version", from.Version}, {"service.instance.id", from.Instance},
	} {
		r.Attributes = append(r.Attributes, text(own[0], cmp.Or(attributes[own[0]], own[1])))
		delete(attributes, own[0])
	}
	for key, value := range attributes {
		r.Attributes = append(r.Attributes, text(key, value))
	}
	return r, nil
}

// pairs parses KEY=VALUE,… with values in percent-encoding, as in W3C Baggage.
func pairs(list string) (map[string]string, error) {
	found := map[string]string{}
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		key, value, ok := strings.Cut(one, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			return nil, fmt.Errorf("entry %d of the list is no KEY=VALUE with a value in percent-encoding", len(found)+1)
		}
		found[key] = decoded
	}
	return found, nil
}

// Deliver implements usage.Sink.
func (o *otlp) Deliver(ctx context.Context, records []usage.Record) error {
	list := make([]*logs.LogRecord, len(records))
	for i := range records {
		list[i] = logRecord(&records[i])
	}
	body, err := proto.Marshal(&collector.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: o.resource, ScopeLogs: []*logs.ScopeLogs{{Scope: o.scope, LogRecords: list}},
	}}})
	if err == nil && o.gzip {
		body, err = compress(body)
	}
	if err != nil {
		return fmt.Errorf("encode usage records: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, o.endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send usage records: %w", err)
	}
	for key, value := range o.headers {
		request.Header.Set(key, value)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	if o.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := o.client.Do(request)
	if err != nil {
		return fmt.Errorf("send usage records: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	err = errors.Join(err, answer.Body.Close())
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		err = fmt.Errorf("the collector answers %s", answer.Status)
	}
	if err != nil {
		return fmt.Errorf("send usage records: %w", err)
	}
	return nil
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

// Close implements io.Closer.
func (o *otlp) Close() error {
	o.client.CloseIdleConnections()
	return nil
}

// logRecord returns a record as OpenTelemetry event, with the fields of its JSON form as attributes.
func logRecord(r *usage.Record) *logs.LogRecord {
	at := uint64(r.Time.UnixNano())
	l := &logs.LogRecord{
		EventName: eventName, TimeUnixNano: at, ObservedTimeUnixNano: at,
		SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO,
		Attributes: []*common.KeyValue{
			text("session", r.Session), text("part", r.Part),
			{Key: "final", Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: r.Final}}},
			text("listener", r.Listener), text("protocol", r.Protocol), text("start", r.Start.Format(time.RFC3339Nano)),
		},
	}
	for _, optional := range [][2]string{
		{"gateway", r.Gateway}, {"user", r.User}, {"caveats", r.Caveats}, {"reason", r.Reason},
	} {
		if optional[1] != "" {
			l.Attributes = append(l.Attributes, text(optional[0], optional[1]))
		}
	}
	if r.End != nil {
		l.Attributes = append(l.Attributes, text("end", r.End.Format(time.RFC3339Nano)))
	}
	l.Attributes = append(l.Attributes, count("sent", r.Sent), count("received", r.Received))
	var routes []*common.AnyValue
	for _, one := range r.Routes {
		routes = append(routes, group(text("route", one.Route), count("sent", one.Sent), count("received", one.Received)))
	}
	if len(routes) > 0 {
		l.Attributes = append(l.Attributes, &common.KeyValue{Key: "routes", Value: &common.AnyValue{
			Value: &common.AnyValue_ArrayValue{ArrayValue: &common.ArrayValue{Values: routes}},
		}})
	}
	return l
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{
		StringValue: strings.ToValidUTF8(value, "\uFFFD"),
	}}}
}

func number(key string, n uint64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(n)}}}
}

func group(list ...*common.KeyValue) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_KvlistValue{KvlistValue: &common.KeyValueList{Values: list}}}
}

func count(key string, c usage.Count) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: group(number("bytes", c.Bytes), number("packets", c.Packets))}
}
