// Package telemetry is how the services are observed: the names of their metrics, their logs, their probes.
package telemetry

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the dataplane's metrics. Received and sent, rx and tx, are from the standpoint of the dataplane.
const (
	AllocationsActive        = "stunner_allocations_active"
	AllocationsTotal         = "stunner_allocations_total"
	AllocationsCapacity      = "stunner_allocations_capacity"
	AllocationsDraining      = "stunner_allocations_draining"
	BytesReceived            = "stunner_bytes_received_total"
	BytesSent                = "stunner_bytes_sent_total"
	Connections              = "stunner_connections_total"
	ListenerConnections      = "stunner_listener_connections"
	ListenerConnectionsTotal = "stunner_listener_connections_total"
	ListenerPackets          = "stunner_listener_packets_total"
	ListenerBytes            = "stunner_listener_bytes_total"
	ClusterPackets           = "stunner_cluster_packets_total"
	ClusterBytes             = "stunner_cluster_bytes_total"
	Refused                  = "stunner_refused_total"
	Dropped                  = "stunner_dropped_total"
	KernelDropped            = "stunner_kernel_dropped_total"
	Panics                   = "stunner_panics_total"
	ConfigApplied            = "stunner_config_applied_total"
	ConfigRejected           = "stunner_config_rejected_total"
	ConfigUnknownFields      = "stunner_config_unknown_fields_total"
	ConfigInfo               = "stunner_config_info"
	ConfigAge                = "stunner_config_age_seconds"
	ConfigProblem            = "stunner_config_problem"
	CertificateExpiry        = "stunner_certificate_expiry_timestamp_seconds"
)

// Names of the auth service's metrics.
const (
	AuthRequests    = "stunner_auth_requests_total"
	AuthDuration    = "stunner_auth_request_duration_seconds"
	AuthCredentials = "stunner_auth_credentials_total"
	AuthClockSkew   = "stunner_auth_clock_skew_seconds"
)

// Names of the operator's metrics.
const (
	OperatorTranslations        = "stunner_operator_translations_total"
	OperatorTranslationDuration = "stunner_operator_translation_duration_seconds"
	OperatorConfigsMissing      = "stunner_operator_configs_missing"
	OperatorConfigs             = "stunner_operator_configs"
	OperatorProblems            = "stunner_operator_problems"
	OperatorDataplaneRestarts   = "stunner_operator_dataplane_restarts_total"
	OperatorWrites              = "stunner_operator_writes_total"
	OperatorWriteErrors         = "stunner_operator_write_errors_total"
	OperatorLeader              = "stunner_operator_leader"
	OperatorDiscoveryStreams    = "stunner_operator_discovery_streams"
	OperatorDiscoveryRefused    = "stunner_operator_discovery_refused_total"
	OperatorScalerAnswers       = "stunner_operator_scaler_answers_total"
)

// Type is the kind of a metric.
type Type string

// The kinds of metric in use.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric is one row of the table of metrics. Its labels take few values, all of them ours: no user, no address, no text from outside.
type Metric struct {
	Name   string
	Type   Type
	Labels []string
	Help   string
}

// Metrics is every metric of every service: what is made of a name that is not in it panics.
var Metrics = []Metric{
	{AllocationsActive, Gauge, nil, "Active TURN allocations, those of a draining process included."},
	{AllocationsTotal, Counter, nil, "TURN allocations made since start."},
	{AllocationsCapacity, Gauge, nil, "TURN allocations that the process can bear: what file descriptors and memory allow."},
	{AllocationsDraining, Gauge, nil, "Active TURN allocations of a process that is told to end; 0 before."},
	{BytesReceived, Counter, nil, "Bytes received from clients, over all listeners."},
	{BytesSent, Counter, nil, "Bytes sent to clients, over all listeners."},
	{Connections, Counter, nil, "Client sessions since start: accepted stream and DTLS connections, and UDP 5-tuples that made an allocation."},
	{ListenerConnections, Gauge, []string{"name"}, "Open client connections of a listener; for UDP the number of its sockets."},
	{ListenerConnectionsTotal, Counter, []string{"name"}, "Client connections of a listener since start."},
	{ListenerPackets, Counter, []string{"name", "direction"}, "Packets between clients and a listener, by direction rx or tx."},
	{ListenerBytes, Counter, []string{"name", "direction"}, "Bytes between clients and a listener, by direction rx or tx."},
	{ClusterPackets, Counter, []string{"name", "direction"}, "Packets between the relay sockets and the peers of a cluster, by direction rx or tx."},
	{ClusterBytes, Counter, []string{"name", "direction"}, "Bytes between the relay sockets and the peers of a cluster, by direction rx or tx."},
	{Refused, Counter, []string{"reason"}, "STUN requests that were answered with an error, by reason."},
	{Dropped, Counter, []string{"reason"}, "Datagrams that were dropped, by reason."},
	{KernelDropped, Counter, []string{"socket"}, "Datagrams that the kernel dropped before stunnerd read them, by socket: listener or relay."},
	{Panics, Counter, nil, "Faults of the program that were recovered from. Each ended at most one session."},
	{ConfigApplied, Counter, nil, "Configs that were put in force, those included that were tried again because a part of them did not run."},
	{ConfigRejected, Counter, []string{"reason"}, "Configs that were received and kept out, by reason: unreadable or invalid."},
	{ConfigUnknownFields, Counter, nil, "Fields of the configs put in force that this release does not know, and ignores."},
	{ConfigInfo, Gauge, []string{"revision"}, "1 for the revision of the config that runs; there is one series at a time."},
	{ConfigAge, Gauge, nil, "Seconds since the running config was confirmed by its source."},
	{ConfigProblem, Gauge, nil, "1 while the last config that arrived is kept out, or a part of the running one does not run; else 0."},
	{CertificateExpiry, Gauge, []string{"name"}, "When the first of a listener's certificates ends, in seconds since 1970."},
	{AuthRequests, Counter, []string{"route", "code"}, "Requests to the auth service, by route pattern and status code."},
	{AuthDuration, Histogram, []string{"route", "code"}, "How long requests to the auth service took, by route pattern and status code."},
	{AuthCredentials, Counter, nil, "TURN credentials handed out."},
	{AuthClockSkew, Gauge, nil, "By how much the clock of the service was ahead of the operator's when it connected last; negative when it was behind."},
	{OperatorTranslations, Counter, nil, "Translations of a Gateway, or of another object with a status of ours."},
	{OperatorTranslationDuration, Histogram, nil, "How long one translation took, with what the loop does of it: nothing else is translated meanwhile."},
	{OperatorConfigs, Gauge, nil, "Dataplane configs that are published."},
	{OperatorConfigsMissing, Gauge, nil, "Gateways that an operator before this one has served, and of which nothing is published."},
	{OperatorProblems, Gauge, nil, "Objects that have a condition which says that something is wrong."},
	{OperatorDataplaneRestarts, Counter, nil, "Dataplane processes that ended without being asked to and were started again."},
	{OperatorWrites, Counter, []string{"kind", "verb"}, "Requests that write to the API server, by kind and by verb: apply, status or delete."},
	{OperatorWriteErrors, Counter, nil, "Times that a Gateway, or another object, could not be brought to where it should be, and is tried again."},
	{OperatorLeader, Gauge, nil, "1 for the replica that writes to the API server, 0 for the others."},
	{OperatorDiscoveryStreams, Gauge, nil, "Streams over which configs are read."},
	{OperatorDiscoveryRefused, Counter, []string{"reason"}, "Requests to config discovery, and reports over it, that were refused, by reason."},
	{OperatorScalerAnswers, Counter, []string{"code"}, "Questions of KEDA that were answered, by gRPC status code."},
}

// find panics for a name that is not in the table: that is a mistake of whoever wrote it down.
func find(name string) Metric {
	for _, m := range Metrics {
		if m.Name == name {
			return m
		}
	}
	panic(fmt.Sprintf("metric %q is not in telemetry.Metrics", name))
}

// must panics when a metric is used as what it is not.
func must(name string, want Type, labelled bool) Metric {
	m := find(name)
	if m.Type != want || labelled != (len(m.Labels) > 0) {
		panic(fmt.Sprintf("metric %q is a %s with labels %q", name, m.Type, m.Labels))
	}
	return m
}

// NewCounter returns the counter of that name, which has no labels.
func NewCounter(name string) prometheus.Counter {
	m := must(name, Counter, false)
	return prometheus.NewCounter(prometheus.CounterOpts{Name: m.Name, Help: m.Help})
}

// NewCounterVec returns the counter of that name, which has labels.
func NewCounterVec(name string) *prometheus.CounterVec {
	m := must(name, Counter, true)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}

// NewGauge returns the gauge of that name, which has no labels.
func NewGauge(name string) prometheus.Gauge {
	m := must(name, Gauge, false)
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: m.Name, Help: m.Help})
}

// NewGaugeFunc returns the gauge of that name, which has no labels and asks for its value.
func NewGaugeFunc(name string, value func() float64) prometheus.GaugeFunc {
	m := must(name, Gauge, false)
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, value)
}

// durations are the buckets of times, in seconds: from what an answer out of memory takes to what nobody waits for.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// NewHistogram returns the histogram of times of that name, which has no labels.
func NewHistogram(name string) prometheus.Histogram {
	m := must(name, Histogram, false)
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: durations})
}

// NewHistogramVec returns the histogram of times of that name, which has labels.
func NewHistogramVec(name string) *prometheus.HistogramVec {
	m := must(name, Histogram, true)
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: durations}, m.Labels)
}

// Series are the names and labels under which a metric is scraped: those of a histogram are three.
func (m Metric) Series() []Metric {
	if m.Type != Histogram {
		return []Metric{m}
	}
	bucket, sum, count := m, m, m
	bucket.Name, bucket.Labels = m.Name+"_bucket", append(slices.Clone(m.Labels), "le")
	sum.Name, count.Name = m.Name+"_sum", m.Name+"_count"
	return []Metric{bucket, sum, count}
}

// Desc returns the description of a metric, for a collector that makes its samples itself.
func Desc(name string) *prometheus.Desc {
	m := find(name)
	return prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
}
