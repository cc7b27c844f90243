package usagelog

import (
	"context"
	"fmt"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logs "go.opentelemetry.io/proto/slim/otlp/logs/v1"

	"github.com/stunner-gateway/stunner/services/api/otlp"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// eventName is the name of the OpenTelemetry event of a usage record.
const eventName = "stunner.usage"

// scope is the instrumentation scope of usage records.
var scope = &common.InstrumentationScope{Name: "github.com/stunner-gateway/stunner/services/stunnerd/usage"}

// events sends records as OpenTelemetry events. It does not use the logs of the SDK, which drop records that they
// cannot send.
type events struct{ *otlp.Exporter }

// Deliver implements usage.Sink.
func (e events) Deliver(ctx context.Context, records []usage.Record) error {
	list := make([]*logs.LogRecord, len(records))
	for i := range records {
		list[i] = logRecord(&records[i])
	}
	err := e.Send(ctx, &collector.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: e.Resource, ScopeLogs: []*logs.ScopeLogs{{Scope: scope, LogRecords: list}},
	}}})
	if err != nil {
		return fmt.Errorf("send usage records: %w", err)
	}
	return nil
}

// Close implements io.Closer.
func (e events) Close() error {
	e.Exporter.Close()
	return nil
}

// logRecord returns a record as OpenTelemetry event, with the fields of its JSON form as attributes.
func logRecord(r *usage.Record) *logs.LogRecord {
	at := uint64(r.Time.UnixNano())
	l := &logs.LogRecord{
		EventName: eventName, TimeUnixNano: at, ObservedTimeUnixNano: at,
		SeverityNumber: logs.SeverityNumber_SEVERITY_NUMBER_INFO,
		Attributes: []*common.KeyValue{
			otlp.Text("session", r.Session), otlp.Text("part", r.Part),
			{Key: "final", Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: r.Final}}},
			otlp.Text("listener", r.Listener), otlp.Text("protocol", r.Protocol), otlp.Text("start", r.Start.Format(time.RFC3339Nano)),
		},
	}
	for _, optional := range [][2]string{
		{"gateway", r.Gateway}, {"user", r.User}, {"caveats", r.Caveats}, {"reason", r.Reason},
	} {
		if optional[1] != "" {
			l.Attributes = append(l.Attributes, otlp.Text(optional[0], optional[1]))
		}
	}
	if r.End != nil {
		l.Attributes = append(l.Attributes, otlp.Text("end", r.End.Format(time.RFC3339Nano)))
	}
	l.Attributes = append(l.Attributes, count("sent", r.Sent), count("received", r.Received))
	var routes []*common.AnyValue
	for _, one := range r.Routes {
		routes = append(routes, group(otlp.Text("route", one.Route), count("sent", one.Sent), count("received", one.Received)))
	}
	if len(routes) > 0 {
		l.Attributes = append(l.Attributes, &common.KeyValue{Key: "routes", Value: &common.AnyValue{
			Value: &common.AnyValue_ArrayValue{ArrayValue: &common.ArrayValue{Values: routes}},
		}})
	}
	return l
}

func group(list ...*common.KeyValue) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_KvlistValue{KvlistValue: &common.KeyValueList{Values: list}}}
}

func count(key string, c usage.Count) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: group(otlp.Number("bytes", int64(c.Bytes)), otlp.Number("packets", int64(c.Packets)))}
}
