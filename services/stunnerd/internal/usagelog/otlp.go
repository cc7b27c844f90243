package usagelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdk "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// eventName is the name of the OpenTelemetry event of a usage record.
const eventName = "stunner.usage"

// deliverTimeout bounds one delivery, also its retries.
const deliverTimeout = 10 * time.Second

// otlp sends records to a collector. The SDK would queue them and drop those that it cannot send, so its records are
// collected, and exported in the goroutine that waits for the result.
type otlp struct {
	exporter sdk.Exporter
	provider *sdk.LoggerProvider
	logger   log.Logger
	records  *gathered
}

// gathered is a processor that gathers the records of one delivery.
type gathered struct{ list []sdk.Record }

func (c *gathered) OnEmit(_ context.Context, r *sdk.Record) error {
	c.list = append(c.list, r.Clone())
	return nil
}

func (*gathered) Enabled(context.Context, sdk.EnabledParameters) bool { return true }

func (*gathered) Shutdown(context.Context) error { return nil }

func (*gathered) ForceFlush(context.Context) error { return nil }

// openOTLP returns a sink with the settings of the standard variables.
func openOTLP(from Origin) (Sink, error) {
	ctx := context.Background()
	exporter, err := otlploghttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("open OTLP exporter of usage records: check the variables OTEL_EXPORTER_OTLP_…: %w", err)
	}
	own := resource.NewSchemaless(
		attribute.String("service.name", "stunnerd"), attribute.String("service.version", from.Version),
		attribute.String("service.instance.id", from.Instance))
	// The later one takes precedence: OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
	env, err := resource.New(ctx, resource.WithFromEnv())
	if err == nil {
		own, err = resource.Merge(own, env)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	records := new(gathered)
	provider := sdk.NewLoggerProvider(sdk.WithResource(own), sdk.WithProcessor(records),
		sdk.WithAttributeCountLimit(-1), sdk.WithAttributeValueLengthLimit(-1))
	return &otlp{exporter: exporter, provider: provider, records: records,
		logger: provider.Logger("github.com/stunner-gateway/stunner/services/stunnerd/usage")}, nil
}

// Deliver implements usage.Sink.
func (o *otlp) Deliver(ctx context.Context, records []usage.Record) error {
	ctx, stop := context.WithTimeout(ctx, deliverTimeout)
	defer stop()
	for i := range records {
		o.logger.Emit(ctx, logRecord(&records[i]))
	}
	err := o.exporter.Export(ctx, o.records.list)
	o.records.list = nil
	if err != nil {
		return fmt.Errorf("send usage records: %w", err)
	}
	return nil
}

// Close implements io.Closer.
func (o *otlp) Close() error {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	return errors.Join(o.provider.Shutdown(ctx), o.exporter.Shutdown(ctx))
}

// logRecord returns a record as OpenTelemetry event, with the fields of its JSON form as attributes.
func logRecord(r *usage.Record) (l log.Record) {
	l.SetEventName(eventName)
	l.SetTimestamp(r.Time)
	l.SetObservedTimestamp(r.Time)
	l.SetSeverity(log.SeverityInfo)
	l.AddAttributes(attribute.String("session", r.Session), attribute.String("part", r.Part), attribute.Bool("final", r.Final),
		attribute.String("listener", r.Listener), attribute.String("protocol", r.Protocol), attribute.String("start", text(r.Start)))
	for _, optional := range []attribute.KeyValue{
		attribute.String("gateway", r.Gateway), attribute.String("user", r.User), attribute.String("caveats", r.Caveats),
		attribute.String("reason", r.Reason),
	} {
		if optional.Value.AsString() != "" {
			l.AddAttributes(optional)
		}
	}
	if r.End != nil {
		l.AddAttributes(attribute.String("end", text(*r.End)))
	}
	l.AddAttributes(count("sent", r.Sent), count("received", r.Received))
	var routes []attribute.Value
	for _, one := range r.Routes {
		routes = append(routes, attribute.MapValue(attribute.String("route", one.Route),
			count("sent", one.Sent), count("received", one.Received)))
	}
	if len(routes) > 0 {
		l.AddAttributes(attribute.Slice("routes", routes...))
	}
	return l
}

func text(t time.Time) string { return t.Format(time.RFC3339Nano) }

func count(key string, c usage.Count) attribute.KeyValue {
	return attribute.Map(key, attribute.Int64("bytes", int64(c.Bytes)), attribute.Int64("packets", int64(c.Packets)))
}
