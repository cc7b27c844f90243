// Package telemetry defines metrics, logs and probes of the services, and serves them over HTTP.
//
// # Files
//
//	metrics.go page.go       names, types and labels of the metrics of all services, and their page
//	log.go                   log levels and scopes
//	probes.go health.go      the paths /live, /ready and /metrics
//	serve.go connlimiter.go  the HTTP server and its limits
package telemetry

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the metrics of the dataplane. Received (rx) and sent (tx) mean received and sent by the dataplane.
const (
	AllocationsActive        = "stunner_allocations_active"
	AllocationsTotal         = "stunner_allocations_total"
	AllocationsCapacity      = "stunner_allocations_capacity"
	AllocationsDraining      = "stunner_allocations_draining"
	QuotaUsed                = "stunner_quota_used_ratio"
	BytesReceived            = "stunner_bytes_received_total"
	BytesSent                = "stunner_bytes_sent_total"
	Connections              = "stunner_connections_total"
	ListenerConnections      = "stunner_listener_connections"
	ListenerConnectionsTotal = "stunner_listener_connections_total"
	ListenerPackets          = "stunner_listener_packets_total"
	ListenerBytes            = "stunner_listener_bytes_total"
	ClusterPackets           = "stunner_cluster_packets_total"
	ClusterBytes             = "stunner_cluster_bytes_total"
	MediaCalls               = "stunner_media_calls"
	PeerICMPErrors           = "stunner_peer_icmp_errors_total"
	AllocationsUnused        = "stunner_allocations_unused_total"
	Refused                  = "stunner_refused_total"
	Dropped                  = "stunner_dropped_total"
	KernelDropped            = "stunner_kernel_dropped_total"
	IgnoredAttributes        = "stunner_ignored_attributes_total"
	OffloadPackets           = "stunner_offload_packets_total"
	OffloadInfo              = "stunner_offload_info"
	ForwardedPackets         = "stunner_forwarded_packets_total"
	ForwardRefused           = "stunner_forward_refused_total"
	ForwardPeers             = "stunner_forward_peers"
	ForwardProblem           = "stunner_forward_problem"
	QuotaDecisions           = "stunner_quota_decisions_total"
	Panics                   = "stunner_panics_total"
	SessionsRestored         = "stunner_sessions_restored_total"
	SessionsHandedOver       = "stunner_sessions_handed_over_total"
	SessionsTakenOver        = "stunner_sessions_taken_over_total"
	SessionsAdopted          = "stunner_sessions_adopted_total"
	SessionsNotAdopted       = "stunner_sessions_not_adopted_total"
	SessionsRescued          = "stunner_sessions_rescued_total"
	SessionsGivenUp          = "stunner_sessions_given_up_total"
	SessionCopies            = "stunner_session_copies"
	PeersMoved               = "stunner_peers_moved_total"
	PeersNotMoved            = "stunner_peers_not_moved_total"
	SessionsDropped          = "stunner_sessions_dropped_total"
	JournalErrors            = "stunner_journal_errors_total"
	JournalRefused           = "stunner_journal_refused_total"
	JournalProblem           = "stunner_journal_problem"
	UsageRecords             = "stunner_usage_records_total"
	UsageRecordsLost         = "stunner_usage_records_lost_total"
	UsageRecordsWaiting      = "stunner_usage_records_waiting"
	HTTPRefused              = "stunner_http_refused_total"
	ConfigApplied            = "stunner_config_applied_total"
	ConfigRejected           = "stunner_config_rejected_total"
	ConfigUnknownFields      = "stunner_config_unknown_fields_total"
	ConfigInfo               = "stunner_config_info"
	ConfigAge                = "stunner_config_age_seconds"
	ConfigProblem            = "stunner_config_problem"
	CertificateExpiry        = "stunner_certificate_expiry_timestamp_seconds"
)

// Names of the metrics of the auth service.
const (
	AuthRequests    = "stunner_auth_requests_total"
	AuthDuration    = "stunner_auth_request_duration_seconds"
	AuthRefused     = "stunner_auth_refused_total"
	AuthCredentials = "stunner_auth_credentials_total"
	AuthKeysAge     = "stunner_auth_keys_age_seconds"
	AuthClockSkew   = "stunner_auth_clock_skew_seconds"
)

// Names of the metrics of the operator.
const (
	OperatorTranslations        = "stunner_operator_translations_total"
	OperatorTranslationDuration = "stunner_operator_translation_duration_seconds"
	OperatorConfigsMissing      = "stunner_operator_configs_missing"
	OperatorConfigs             = "stunner_operator_configs"
	OperatorProblems            = "stunner_operator_problems"
	OperatorUnread              = "stunner_operator_unread_objects"
	OperatorDataplaneRestarts   = "stunner_operator_dataplane_restarts_total"
	OperatorWrites              = "stunner_operator_writes_total"
	OperatorWriteErrors         = "stunner_operator_write_errors_total"
	OperatorLeader              = "stunner_operator_leader"
	OperatorPaused              = "stunner_operator_paused"
	OperatorDiscoveryStreams    = "stunner_operator_discovery_streams"
	OperatorDiscoveryRefused    = "stunner_operator_discovery_refused_total"
	OperatorInspectionRefused   = "stunner_operator_inspection_refused_total"
	OperatorScalerAnswers       = "stunner_operator_scaler_answers_total"
)

// Type is the type of a metric.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric describes a metric. Labels have few values. They never contain data of clients, such as users or addresses, so
// that the number of series is bounded.
type Metric struct {
	Name   string
	Type   Type
	Labels []string
	Help   string
}

// Metrics lists all metrics of all services. The constructors of this package panic for any other name.
var Metrics = []Metric{
	{AllocationsActive, Gauge, nil, "Active TURN allocations, including those of a draining process."},
	{AllocationsTotal, Counter, nil, "TURN allocations made since start."},
	{AllocationsCapacity, Gauge, nil,
		"Maximum number of TURN allocations of the process, from its file descriptors, relay ports and memory."},
	{AllocationsDraining, Gauge, nil, "Active TURN allocations of a draining process, else 0."},
	{QuotaUsed, Gauge, []string{"quota"},
		"Used share of a quota, from 0 to 1, of the user or the source that uses the most of it; 0 without a quota."},
	{BytesReceived, Counter, nil, "Bytes received from clients, over all listeners."},
	{BytesSent, Counter, nil, "Bytes sent to clients, over all listeners."},
	{Connections, Counter, nil,
		"Client sessions since start: accepted stream and DTLS connections, and UDP 5-tuples that made an " +
			"allocation."},
	{ListenerConnections, Gauge, []string{"name"},
		"Open client connections of a listener; for UDP the number of its sockets."},
	{ListenerConnectionsTotal, Counter, []string{"name"}, "Client connections of a listener since start."},
	{ListenerPackets, Counter, []string{"name", "direction"},
		"Packets between clients and a listener, by direction rx or tx."},
	{ListenerBytes, Counter, []string{"name", "direction"},
		"Bytes between clients and a listener, by direction rx or tx."},
	{ClusterPackets, Counter, []string{"name", "direction"},
		"Packets between the relay sockets and the peers of a cluster, by direction rx or tx."},
	{ClusterBytes, Counter, []string{"name", "direction"},
		"Bytes between the relay sockets and the peers of a cluster, by direction rx or tx."},
	{MediaCalls, Gauge, []string{"name", "state"},
		"Calls that send packets to the peers of a cluster, by state: answered, or silent if no peer of the cluster has " +
			"sent a packet for 10 seconds or more."},
	{PeerICMPErrors, Counter, nil,
		"ICMP messages that report that packets to a peer of a call were not delivered, such as port unreachable."},
	{AllocationsUnused, Counter, nil, "TURN allocations that have ended without a packet to a peer."},
	{Refused, Counter, []string{"reason"}, "STUN requests that were answered with an error, by reason."},
	{Dropped, Counter, []string{"reason"}, "Datagrams that were dropped and connections that were closed, by reason."},
	{KernelDropped, Counter, []string{"socket"},
		"Datagrams that the kernel dropped before stunnerd read them, by socket: listener or relay."},
	{IgnoredAttributes, Counter, []string{"attribute"},
		"Attributes of authenticated requests that are behind MESSAGE-INTEGRITY and therefore ignored, by attribute: " +
			"requested_address_family or other."},
	{OffloadPackets, Counter, []string{"direction"},
		"Datagrams that the kernel forwarded by itself, by direction at the relay: rx from peers, tx to peers. " +
			"The traffic of listeners and clusters includes them."},
	{OffloadInfo, Gauge, []string{"engine", "mechanism", "reason"},
		"Always 1. The labels are the offload engine of the config, the mechanism in use, and the reason if media is not " +
			"forwarded in the kernel as requested."},
	{ForwardedPackets, Counter, []string{"direction"},
		"Datagrams of clients that arrive at another pod than the one with their session. At the pod where they arrive, by " +
			"direction passed to the session or answered to the client; at the other pod, delivered or replied."},
	{ForwardRefused, Counter, []string{"reason"},
		"Datagrams of other pods that were dropped, frames that could not be sent to them, and datagrams of clients " +
			"without a session in any pod, by reason."},
	{ForwardPeers, Gauge, nil, "Other pods of the Gateway to which datagrams are forwarded."},
	{ForwardProblem, Gauge, nil, "1 if datagrams cannot be forwarded between the pods of the Gateway, else 0."},
	{QuotaDecisions, Counter, []string{"result"},
		"Allocations of users with a limit that counts over pods, by result: admitted, refused, or unanswered if " +
			"the pod that counts them did not answer the pod of the client, which decided by its own count."},
	{Panics, Counter, nil, "Panics that were recovered from. Each ended at most one session. The log has the stack."},
	{SessionsHandedOver, Counter, nil, "Sessions that this pod has handed over to other pods while it drained."},
	{SessionsTakenOver, Counter, nil, "Sessions that other pods have handed over to this one."},
	{SessionsAdopted, Counter, nil,
		"Sessions that this pod has handed over to the pods at which the datagrams of their clients arrive."},
	{SessionsNotAdopted, Counter, nil, "Attempts of such handovers after which the session has stayed at this pod."},
	{SessionsRescued, Counter, nil, "Sessions of lost pods that this pod continues from its copies."},
	{SessionsGivenUp, Counter, nil, "Sessions of this pod that have ended because another pod had taken them over."},
	{SessionCopies, Gauge, nil, "Sessions of other pods that this pod has a copy of."},
	{PeersMoved, Counter, nil,
		"Peers of sessions of other pods that have taken the new relay address within 10 s."},
	{PeersNotMoved, Counter, nil,
		"Peers of sessions of other pods that have not taken the new relay address within 10 s: they use that of the " +
			"former pod, unless it is lost."},
	{SessionsRestored, Counter, nil, "Sessions of a process that has crashed that this process continues."},
	{SessionsDropped, Counter, []string{"reason"},
		"Sessions of a process that has crashed that this process could not continue, by reason."},
	{JournalErrors, Counter, nil, "Failed writes of the session journal, and journals that were set aside."},
	{JournalRefused, Counter, []string{"reason"},
		"Changes of sessions that were not stored in the session journal although it works, by reason."},
	{JournalProblem, Gauge, nil, "1 if sessions are not stored in the journal, so that a crash would end them, else 0."},
	{UsageRecords, Counter, nil, "Usage records that were delivered."},
	{UsageRecordsLost, Counter, nil, "Sessions whose last usage record is lost, because too many could not be delivered."},
	{UsageRecordsWaiting, Gauge, nil, "Sessions with a usage record that is due and not delivered."},
	{HTTPRefused, Counter, []string{"reason"},
		"HTTP requests to the endpoints of stunnerd that were refused, by reason. The 503 of a probe reports a state and " +
			"is not counted."},
	{ConfigApplied, Counter, nil,
		"Configs that were applied, including retries of a config that is only partly in force."},
	{ConfigRejected, Counter, []string{"reason"},
		"Received configs that were rejected, by reason: invalid if a field is invalid, unreadable if the config cannot be " +
			"parsed, is too large, or belongs to another gateway."},
	{ConfigUnknownFields, Counter, nil,
		"Fields of applied configs that this release does not define, and ignores: up to 100 for each config."},
	{ConfigInfo, Gauge, []string{"revision"},
		"1 for the revision of the running config; there is one series at a time."},
	{ConfigAge, Gauge, nil,
		"Seconds since the source of configs was last connected; 0 while connected. Before the first connection of " +
			"stunnerd: since the source confirmed the last good config that runs, accurate to an hour; with a standby " +
			"config or none, since the start."},
	{ConfigProblem, Gauge, nil,
		"1 if the last received config was rejected or the running one is only partly in force, else 0."},
	{CertificateExpiry, Gauge, []string{"name"},
		"Time at which the first certificate of a listener expires, in seconds since 1970."},
	{AuthRequests, Counter, []string{"route", "code"},
		"Requests to the auth service, by route pattern and status code."},
	{AuthDuration, Histogram, []string{"route", "code"},
		"Duration of requests to the auth service, by route pattern and status code."},
	{AuthRefused, Counter, []string{"reason"}, "Requests that the auth service refused, by reason."},
	{AuthCredentials, Counter, nil, "TURN credentials issued."},
	{AuthClockSkew, Gauge, nil,
		"How far the clock of the service was ahead of the clock of the operator at the last connection; negative " +
			"if behind."},
	{AuthKeysAge, Gauge, nil,
		"Seconds since the auth service last read the keys that verify tokens and its policy file, the least recent of them, or since its " +
			"start if it has not read them."},
	{OperatorTranslations, Counter, nil,
		"Translations of Gateways and of other objects with a status by the operator."},
	{OperatorTranslationDuration, Histogram, nil,
		"Duration of one translation and its processing in the loop, during which nothing else is translated. " +
			"In a cluster only."},
	{OperatorConfigs, Gauge, nil, "Published dataplane configs."},
	{OperatorConfigsMissing, Gauge, nil,
		"Gateways that a previous operator process served and for which no config is published. In a cluster only."},
	{OperatorProblems, Gauge, nil, "Objects with a condition that reports a problem."},
	{OperatorUnread, Gauge, nil,
		"Objects of which the current version was not read, because their namespace takes its share of the memory. " +
			"In a cluster only."},
	{OperatorDataplaneRestarts, Counter, nil,
		"Restarts of dataplane processes that ended unexpectedly, without those by their supervisors. With the file " +
			"provider only."},
	{OperatorWrites, Counter, []string{"kind", "verb"},
		"Write requests to the API server, by kind and by verb: apply, status or delete. In a cluster only."},
	{OperatorWriteErrors, Counter, nil,
		"Failed attempts to write the objects of a Gateway, or another object, which are retried. In a cluster only."},
	{OperatorLeader, Gauge, nil,
		"1 for the replica that writes to the API server, 0 for the others. In a cluster only."},
	{OperatorPaused, Gauge, nil,
		"1 if the operator writes nothing because an older installation has the same controller name, otherwise 0. " +
			"In a cluster only."},
	{OperatorDiscoveryStreams, Gauge, nil, "Open config discovery streams. In a cluster only."},
	{OperatorDiscoveryRefused, Counter, []string{"reason"},
		"Refused requests to config discovery, ignored reports and answers, and configs that were sent without their " +
			"secrets, by reason."},
	{OperatorInspectionRefused, Counter, []string{"reason"}, "Refused requests to the inspection API, by reason."},
	{OperatorScalerAnswers, Counter, []string{"code"},
		"Requests of KEDA, by gRPC status code: OK, Unavailable (not all pods have reported), NotFound (no such Gateway), " +
			"InvalidArgument, PermissionDenied and others. In a cluster only."},
}

// find returns a metric by name. It panics for an unknown name, which is a programming error.
func find(name string) Metric {
	for _, m := range Metrics {
		if m.Name == name {
			return m
		}
	}
	panic(fmt.Sprintf("metric %q is not in telemetry.Metrics", name))
}

// must returns a metric by name. It panics if the type differs, or if the metric has labels and labelled is false or
// vice versa.
func must(name string, want Type, labelled bool) Metric {
	m := find(name)
	if m.Type != want || labelled != (len(m.Labels) > 0) {
		panic(fmt.Sprintf("metric %q is a %s with labels %q", name, m.Type, m.Labels))
	}
	return m
}

// NewCounter returns a counter without labels.
func NewCounter(name string) prometheus.Counter {
	m := must(name, Counter, false)
	return prometheus.NewCounter(prometheus.CounterOpts{Name: m.Name, Help: m.Help})
}

// NewCounterVec returns a counter with labels.
func NewCounterVec(name string) *prometheus.CounterVec {
	m := must(name, Counter, true)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}

// NewGauge returns a gauge without labels.
func NewGauge(name string) prometheus.Gauge {
	m := must(name, Gauge, false)
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: m.Name, Help: m.Help})
}

// NewGaugeFunc returns a gauge without labels whose value is computed at each scrape.
func NewGaugeFunc(name string, value func() float64) prometheus.GaugeFunc {
	m := must(name, Gauge, false)
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, value)
}

// durations are the histogram buckets of durations in seconds: from an answer from memory to a timeout.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// NewHistogram returns a histogram of durations without labels.
func NewHistogram(name string) prometheus.Histogram {
	m := must(name, Histogram, false)
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: durations})
}

// NewHistogramVec returns a histogram of durations with labels.
func NewHistogramVec(name string) *prometheus.HistogramVec {
	m := must(name, Histogram, true)
	o := prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: durations}
	return prometheus.NewHistogramVec(o, m.Labels)
}

// Series returns the time series names that a scrape has for a metric. A histogram has three: buckets, sum and count.
func (m Metric) Series() []Metric {
	if m.Type != Histogram {
		return []Metric{m}
	}
	bucket, sum, count := m, m, m
	bucket.Name, bucket.Labels = m.Name+"_bucket", append(slices.Clone(m.Labels), "le")
	sum.Name, count.Name = m.Name+"_sum", m.Name+"_count"
	return []Metric{bucket, sum, count}
}

// Desc returns the description of a metric for a custom collector.
func Desc(name string) *prometheus.Desc {
	m := find(name)
	return prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
}
