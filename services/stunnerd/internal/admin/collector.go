// Package admin is the dataplane seen by operators: probes, status, metrics, sessions and refusals over HTTP.
package admin

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Collector turns the counters of the media path into metrics when somebody asks, so that a packet costs an atomic add and
// nothing else.
type Collector struct {
	Meter    *meter.Meter
	Sessions *session.Table
	// Age is the time since the running config was confirmed, in seconds, and Revision names it; both may be nil.
	Age      func() float64
	Revision func() string
}

var descs = descriptions(
	telemetry.AllocationsActive, telemetry.AllocationsDraining,
	telemetry.BytesReceived, telemetry.BytesSent, telemetry.Connections,
	telemetry.ListenerConnections, telemetry.ListenerConnectionsTotal, telemetry.ListenerPackets, telemetry.ListenerBytes,
	telemetry.ClusterPackets, telemetry.ClusterBytes,
	telemetry.Refused, telemetry.Dropped, telemetry.ConfigApplied, telemetry.ConfigRejected, telemetry.ConfigUnknownFields,
	telemetry.ConfigInfo, telemetry.ConfigAge,
)

func descriptions(names ...string) map[string]*prometheus.Desc {
	d := make(map[string]*prometheus.Desc, len(names))
	for _, n := range names {
		d[n] = telemetry.Desc(n)
	}
	return d
}

// Describe is part of prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	out := samples{ch}
	allocations, draining := float64(c.Sessions.Len()), 0.0
	if c.Sessions.Draining() {
		draining = allocations
	}
	out.gauge(telemetry.AllocationsActive, allocations)
	out.gauge(telemetry.AllocationsDraining, draining)
	out.counter(telemetry.Connections, c.Meter.Sessions.Load())
	out.counter(telemetry.ConfigApplied, c.Meter.Applied.Load())
	out.reasons(telemetry.ConfigRejected, map[string]uint64{"invalid": c.Meter.Invalid.Load(), "unreadable": c.Meter.Unreadable.Load()})
	out.counter(telemetry.ConfigUnknownFields, c.Meter.UnknownFields.Load())
	c.listeners(out)
	for name, t := range c.Meter.Clusters() {
		out.traffic(telemetry.ClusterPackets, telemetry.ClusterBytes, name, t)
	}
	out.reasons(telemetry.Refused, c.Meter.Refusals())
	out.reasons(telemetry.Dropped, c.Meter.Drops())
	if c.Age != nil {
		out.gauge(telemetry.ConfigAge, c.Age())
		out.gauge(telemetry.ConfigInfo, 1, c.Revision())
	}
}

// listeners exports every listener and, without a label, the sums over all of them.
func (c *Collector) listeners(out samples) {
	var received, sent uint64
	for name, l := range c.Meter.Listeners() {
		received += l.Rx.Bytes.Load()
		sent += l.Tx.Bytes.Load()
		out.gauge(telemetry.ListenerConnections, float64(l.Open.Load()), name)
		out.counter(telemetry.ListenerConnectionsTotal, l.Opened.Load(), name)
		out.traffic(telemetry.ListenerPackets, telemetry.ListenerBytes, name, &l.Traffic)
	}
	out.counter(telemetry.BytesReceived, received)
	out.counter(telemetry.BytesSent, sent)
}

// samples writes metrics by name.
type samples struct{ ch chan<- prometheus.Metric }

func (s samples) gauge(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(descs[name], prometheus.GaugeValue, v, labels...)
}

func (s samples) counter(name string, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(descs[name], prometheus.CounterValue, float64(v), labels...)
}

func (s samples) traffic(packets, bytes, name string, t *meter.Traffic) {
	for direction, f := range map[string]*meter.Flow{"rx": &t.Rx, "tx": &t.Tx} {
		s.counter(packets, f.Packets.Load(), name, direction)
		s.counter(bytes, f.Bytes.Load(), name, direction)
	}
}

func (s samples) reasons(name string, counts map[string]uint64) {
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		s.counter(name, counts[reason], reason)
	}
}
