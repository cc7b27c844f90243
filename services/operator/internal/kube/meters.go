package kube

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
)

// meters are the metrics of the operator in a cluster.
type meters struct {
	registry          *prometheus.Registry
	translations      prometheus.Counter
	duration          prometheus.Histogram
	configs           prometheus.Gauge
	missing           prometheus.Gauge
	writes            *prometheus.CounterVec
	failures          prometheus.Counter
	leader            prometheus.Gauge
	paused            prometheus.Gauge
	refused           *prometheus.CounterVec
	inspectionRefused *prometheus.CounterVec
	answers           *prometheus.CounterVec
}

func newMeters() *meters {
	m := &meters{
		translations:      telemetry.NewCounter(telemetry.OperatorTranslations),
		duration:          telemetry.NewHistogram(telemetry.OperatorTranslationDuration),
		configs:           telemetry.NewGauge(telemetry.OperatorConfigs),
		missing:           telemetry.NewGauge(telemetry.OperatorConfigsMissing),
		writes:            telemetry.NewCounterVec(telemetry.OperatorWrites),
		failures:          telemetry.NewCounter(telemetry.OperatorWriteErrors),
		leader:            telemetry.NewGauge(telemetry.OperatorLeader),
		paused:            telemetry.NewGauge(telemetry.OperatorPaused),
		refused:           telemetry.NewCounterVec(telemetry.OperatorDiscoveryRefused),
		inspectionRefused: telemetry.NewCounterVec(telemetry.OperatorInspectionRefused),
		answers:           telemetry.NewCounterVec(telemetry.OperatorScalerAnswers),
	}
	m.registry = telemetry.NewRegistry(m.translations, m.duration, m.configs, m.missing, m.writes, m.failures, m.leader,
		m.paused, m.refused, m.inspectionRefused, m.answers)
	for _, r := range discovery.Refusals {
		m.refused.WithLabelValues(string(r.Refusal))
	}
	for _, r := range inspect.Refusals {
		m.inspectionRefused.WithLabelValues(r.Reason)
	}
	return m
}

// registerCount adds a metric whose value is counted when it is read.
func (m *meters) registerCount(name string, count func() int) {
	m.registry.MustRegister(telemetry.NewGaugeFunc(name, func() float64 { return float64(count()) }))
}

// countWrite counts a write of an object; verb is apply, delete or status.
func (m *meters) countWrite(s *runtime.Scheme, o runtime.Object, verb string) {
	kind := "unknown"
	if gvks, _, err := s.ObjectKinds(o); err == nil {
		kind = gvks[0].Kind
	}
	m.writes.WithLabelValues(kind, verb).Inc()
}
