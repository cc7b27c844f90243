// Package admin serves probes, status, metrics, sessions and refusals of the dataplane over HTTP.
//
// # Files
//
//	collector.go                       metrics
//	endpoints.go                       paths and probes
//	status.go sessions.go refusals.go  the answers
//	media.go                           packet counts of sessions, and reachable peers
//	inspector.go                       requests of the operator
//
// The state of open listeners is read in services/stunnerd/internal/server/inspect.go and
// services/stunnerd/internal/gate/inspect.go.
package admin

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Collector converts the counters of the media path to metrics at each scrape, so that the cost for a packet is only an
// atomic addition.
type Collector struct {
	Meter    *meter.Meter
	Sessions *session.Table
	// Capacity returns the maximum number of sessions of the process.
	Capacity func() int
	// Offload returns how media is forwarded in the kernel.
	Offload func() inspection.OffloadStatus
	// Forwarding returns how datagrams are forwarded between pods, or nil if none are forwarded.
	Forwarding func() *inspection.ForwardingStatus
	// Journal returns the state of the session journal, or nil if there is none.
	Journal func() *inspection.JournalStatus
	// Usage returns the numbers of usage records.
	Usage func() usage.Status
	// Config returns the state of the running config.
	Config func() Config
}

// Config is the state of the running config.
type Config struct {
	Revision  string
	Age       float64 // seconds since the last contact with its source
	Problem   string  // why the last config was rejected or is only partly in force; "" if neither
	Listeners []config.Listener
}

var descs = descriptions(
	telemetry.AllocationsActive, telemetry.AllocationsTotal, telemetry.AllocationsCapacity,
	telemetry.AllocationsDraining, telemetry.QuotaUsed,
	telemetry.BytesReceived, telemetry.BytesSent, telemetry.Connections,
	telemetry.ListenerConnections, telemetry.ListenerConnectionsTotal, telemetry.ListenerPackets,
	telemetry.ListenerBytes,
	telemetry.ClusterPackets, telemetry.ClusterBytes, telemetry.MediaCalls, telemetry.PeerICMPErrors,
	telemetry.AllocationsUnused,
	telemetry.Refused, telemetry.Dropped, telemetry.KernelDropped, telemetry.IgnoredAttributes,
	telemetry.OffloadPackets, telemetry.OffloadInfo,
	telemetry.ForwardedPackets, telemetry.ForwardRefused, telemetry.ForwardPeers, telemetry.ForwardProblem, telemetry.Panics,
	telemetry.QuotaDecisions,
	telemetry.SessionsHandedOver, telemetry.SessionsTakenOver, telemetry.PeersMoved, telemetry.PeersNotMoved,
	telemetry.SessionsAdopted, telemetry.SessionsNotAdopted,
	telemetry.SessionsRescued, telemetry.SessionsGivenUp, telemetry.SessionCopies,
	telemetry.SessionsRestored, telemetry.SessionsDropped, telemetry.JournalErrors, telemetry.JournalRefused,
	telemetry.JournalProblem, telemetry.UsageRecords, telemetry.UsageRecordsLost, telemetry.UsageRecordsWaiting,
	telemetry.HTTPRefused,
	telemetry.ConfigApplied, telemetry.ConfigRejected, telemetry.ConfigUnknownFields,
	telemetry.ConfigInfo, telemetry.ConfigAge, telemetry.ConfigProblem, telemetry.CertificateExpiry,
)

func descriptions(names ...string) map[string]*prometheus.Desc {
	d := make(map[string]*prometheus.Desc, len(names))
	for _, n := range names {
		d[n] = telemetry.Desc(n)
	}
	return d
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.Meter.Refresh()
	out := samples{ch}
	allocations, draining := float64(c.Sessions.Len()), 0.0
	if c.Sessions.Draining() {
		draining = allocations
	}
	out.gauge(telemetry.AllocationsActive, allocations)
	out.gauge(telemetry.AllocationsDraining, draining)
	out.counter(telemetry.AllocationsTotal, c.Sessions.Added())
	out.gauge(telemetry.AllocationsCapacity, float64(c.Capacity()))
	user, source := c.Sessions.QuotaUsed()
	out.gauge(telemetry.QuotaUsed, user, "user")
	out.gauge(telemetry.QuotaUsed, source, "source")
	out.counter(telemetry.Connections, c.Meter.Sessions.Load())
	out.counter(telemetry.ConfigApplied, c.Meter.Applied.Load())
	out.always(telemetry.ConfigRejected, meter.Configs, c.Meter.Declined(meter.Configs))
	out.always(telemetry.HTTPRefused, meter.HTTP, c.Meter.Declined(meter.HTTP))
	out.counter(telemetry.ConfigUnknownFields, c.Meter.UnknownFields.Load())
	c.listeners(out)
	for name, t := range c.Meter.Clusters() {
		out.traffic(telemetry.ClusterPackets, telemetry.ClusterBytes, name, t)
	}
	media := mediaOf(c.Sessions, time.Now())
	for _, r := range media.Routes {
		out.gauge(telemetry.MediaCalls, float64(r.Sending-r.Silent), r.Cluster, "answered")
		out.gauge(telemetry.MediaCalls, float64(r.Silent), r.Cluster, "silent")
	}
	out.counter(telemetry.PeerICMPErrors, c.Meter.ICMPErrors.Load())
	out.counter(telemetry.AllocationsUnused, media.Ended)
	out.reasons(telemetry.Refused, c.Meter.Refusals())
	out.reasons(telemetry.Dropped, c.Meter.Drops())
	out.counter(telemetry.KernelDropped, c.Meter.ListenerDrops.Load(), "listener")
	out.counter(telemetry.KernelDropped, c.Meter.RelayDrops.Load(), "relay")
	out.counter(telemetry.IgnoredAttributes, c.Meter.IgnoredFamilies.Load(), "requested_address_family")
	out.counter(telemetry.IgnoredAttributes, c.Meter.IgnoredOthers.Load(), "other")
	out.counter(telemetry.OffloadPackets, c.Meter.Offloaded.Rx.Packets.Load(), "rx")
	out.counter(telemetry.OffloadPackets, c.Meter.Offloaded.Tx.Packets.Load(), "tx")
	kernel := c.Offload()
	// Prometheus treats an empty label as a missing label.
	out.gauge(telemetry.OffloadInfo, 1, kernel.Engine, kernel.Mechanism, cmp.Or(kernel.Reason, "none"))
	c.forwarding(out)
	out.counter(telemetry.Panics, c.Meter.Panics.Load())
	out.counter(telemetry.SessionsHandedOver, c.Meter.SessionsHanded.Load())
	out.counter(telemetry.SessionsTakenOver, c.Meter.SessionsTaken.Load())
	out.counter(telemetry.SessionsAdopted, c.Meter.SessionsAdopted.Load())
	out.counter(telemetry.SessionsNotAdopted, c.Meter.SessionsNotAdopted.Load())
	out.counter(telemetry.SessionsRescued, c.Meter.SessionsRescued.Load())
	out.counter(telemetry.SessionsGivenUp, c.Meter.SessionsGivenUp.Load())
	out.counter(telemetry.PeersMoved, c.Meter.PeersMoved.Load())
	out.counter(telemetry.PeersNotMoved, c.Meter.PeersNotMoved.Load())
	out.counter(telemetry.SessionsRestored, c.Meter.Restored.Load())
	out.reasons(telemetry.SessionsDropped, c.Meter.Unrestored())
	journal, problem := cmp.Or(c.Journal(), new(inspection.JournalStatus)), 0.0
	if journal.Problem != "" {
		problem = 1
	}
	out.counter(telemetry.JournalErrors, journal.Errors)
	out.counter(telemetry.JournalRefused, journal.Refused, meter.JournalShare.String())
	out.gauge(telemetry.JournalProblem, problem)
	records := c.Usage()
	out.counter(telemetry.UsageRecords, records.Delivered)
	out.counter(telemetry.UsageRecordsLost, records.Lost)
	out.gauge(telemetry.UsageRecordsWaiting, float64(records.Waiting))
	c.config(out)
}

// forwarding exports how datagrams are forwarded between pods.
func (c *Collector) forwarding(out samples) {
	f := c.Forwarding()
	if f == nil {
		return
	}
	for direction, n := range map[string]uint64{
		"passed": f.Passed, "answered": f.Answered, "delivered": f.Delivered, "replied": f.Replied,
	} {
		out.counter(telemetry.ForwardedPackets, n, direction)
	}
	out.counter(telemetry.ForwardRefused, f.Unknown, "unknown")
	out.counter(telemetry.ForwardRefused, f.Limited, "limited")
	for reason, n := range f.Refused {
		out.counter(telemetry.ForwardRefused, n, reason)
	}
	problem := 0.0
	if f.Problem != "" {
		problem = 1
	}
	out.gauge(telemetry.ForwardPeers, float64(f.Peers))
	out.gauge(telemetry.SessionCopies, float64(f.Copies))
	out.gauge(telemetry.ForwardProblem, problem)
	out.counter(telemetry.QuotaDecisions, c.Meter.QuotaAdmitted.Load(), "admitted")
	out.counter(telemetry.QuotaDecisions, c.Meter.QuotaRefused.Load(), "refused")
	out.counter(telemetry.QuotaDecisions, c.Meter.QuotaUnanswered.Load(), "unanswered")
}

// config exports the state of the running config.
func (c *Collector) config(out samples) {
	running, problem := c.Config(), 0.0
	if running.Problem != "" {
		problem = 1
	}
	out.gauge(telemetry.ConfigAge, running.Age)
	out.gauge(telemetry.ConfigInfo, 1, running.Revision)
	out.gauge(telemetry.ConfigProblem, problem)
	for _, l := range running.Listeners {
		if end := expiry(l); !end.IsZero() {
			out.gauge(telemetry.CertificateExpiry, float64(end.Unix()), l.Name)
		}
	}
}

// expiry returns when the first certificate of a listener expires, or the zero time if it has no certificate.
func expiry(l config.Listener) (first time.Time) {
	for _, cert := range l.AllCertificates() {
		pair, err := cert.KeyPair()
		if err == nil && (first.IsZero() || pair.Leaf.NotAfter.Before(first)) {
			first = pair.Leaf.NotAfter
		}
	}
	return first
}

// listeners exports the metrics of every listener and, without a label, the bytes of all listeners together.
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

// samples writes metrics of given names.
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

// always exports the counts of all reasons of a family, including zeros.
func (s samples) always(name string, f meter.Family, counts map[string]uint64) {
	for _, r := range meter.All() {
		if r.Family() == f {
			s.counter(name, counts[r.String()], r.String())
		}
	}
}

func (s samples) reasons(name string, counts map[string]uint64) {
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		s.counter(name, counts[reason], reason)
	}
}
