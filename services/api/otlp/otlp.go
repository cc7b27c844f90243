// Package otlp sends the OpenTelemetry data of a process to a collector by OTLP/HTTP, with the settings of the standard
// variables. It uses the messages of the protocol without the exporters of the SDK: these bring gRPC, which takes 4 MiB
// of memory in each process.
package otlp

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

	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// maxAnswer is the maximum number of bytes of an answer that are read.
const maxAnswer = 64 << 10

// Timeout bounds one delivery, unless a variable says otherwise.
const Timeout = 10 * time.Second

// Signal is a kind of OpenTelemetry data, as in the names of variables.
type Signal string

// The signals that services send.
const (
	Logs   Signal = "LOGS"
	Traces Signal = "TRACES"
)

// Process describes this process: the values of service.name, service.version and service.instance.id, unless variables
// say otherwise.
type Process struct{ Service, Version, Instance string }

// Exporter sends messages of one signal.
type Exporter struct {
	// Resource are the attributes of this process.
	Resource *resource.Resource

	client   *http.Client
	endpoint string
	headers  map[string]string
	gzip     bool
}

// settings are the variables of a signal.
type settings struct {
	signal Signal
	env    func(string) string
}

// value returns the value of the variable OTEL_EXPORTER_OTLP_signal_name, or else OTEL_EXPORTER_OTLP_name, and the name
// of the variable that is set.
func (s settings) value(name string) (value, of string) {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_" + string(s.signal) + "_", "OTEL_EXPORTER_OTLP_"} {
		if value := s.env(prefix + name); value != "" {
			return value, prefix + name
		}
	}
	return "", ""
}

// Open returns the exporter that the environment requests, or nil (OpenTelemetry specification, OTLP
// exporter). An error names the variable.
func Open(signal Signal, env func(string) string, from Process) (*Exporter, error) {
	s := settings{signal, env}
	endpoint, of := s.value("ENDPOINT")
	if endpoint == "" || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_"+string(signal)+"_EXPORTER") == "none" {
		return nil, nil
	}
	if protocol, of := s.value("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("%s %q: only http/protobuf is supported: use it, and port 4318 as a rule", of, protocol)
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s: %q is no URL http://HOST:PORT or https://HOST:PORT", of, endpoint)
	}
	e := &Exporter{endpoint: endpoint}
	if of == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		e.endpoint = u.JoinPath("v1", strings.ToLower(string(signal))).String()
	}
	compression, of := s.value("COMPRESSION")
	if e.gzip = compression == "gzip"; !e.gzip && compression != "" && compression != "none" {
		return nil, fmt.Errorf("%s: %q is not supported: use gzip or none", of, compression)
	}
	headers, of := s.value("HEADERS")
	if e.headers, err = pairs(headers); err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	timeout := Timeout
	if text, of := s.value("TIMEOUT"); text != "" {
		milliseconds, err := strconv.Atoi(text)
		if err != nil || milliseconds <= 0 {
			return nil, fmt.Errorf("%s: %q is no positive number of milliseconds", of, text)
		}
		timeout = time.Duration(milliseconds) * time.Millisecond
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if transport.TLSClientConfig, err = s.tls(); err != nil {
		return nil, err
	}
	e.client = &http.Client{Transport: transport, Timeout: timeout}
	if e.Resource, err = resourceOf(env, from); err != nil {
		return nil, err
	}
	return e, nil
}

// tls returns the configuration of TLS with the certificates that variables name.
func (s settings) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if file, of := s.value("CERTIFICATE"); file != "" {
		bundle, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", of, err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM", of, file)
		}
	}
	certificate, of := s.value("CLIENT_CERTIFICATE")
	key, ofKey := s.value("CLIENT_KEY")
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
func resourceOf(env func(string) string, from Process) (*resource.Resource, error) {
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
		{"service.name", from.Service}, {"service.version", from.Version}, {"service.instance.id", from.Instance},
	} {
		r.Attributes = append(r.Attributes, Text(own[0], cmp.Or(attributes[own[0]], own[1])))
		delete(attributes, own[0])
	}
	for key, value := range attributes {
		r.Attributes = append(r.Attributes, Text(key, value))
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

// Send sends one export request of the signal. The error is the reason why the collector has not accepted it.
func (e *Exporter) Send(ctx context.Context, export proto.Message) error {
	body, err := proto.Marshal(export)
	if err == nil && e.gzip {
		body, err = compress(body)
	}
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for key, value := range e.headers {
		request.Header.Set(key, value)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	if e.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := e.client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	err = errors.Join(err, answer.Body.Close())
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		err = fmt.Errorf("the collector answers %s", answer.Status)
	}
	return err
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

// Close closes idle connections to the collector.
func (e *Exporter) Close() { e.client.CloseIdleConnections() }

// Text returns an attribute. Invalid UTF-8 in value is replaced.
func Text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{
		StringValue: strings.ToValidUTF8(value, "\uFFFD"),
	}}}
}

// Number returns an attribute.
func Number(key string, n int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}}
}
