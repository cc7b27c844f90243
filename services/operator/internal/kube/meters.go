package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// meters are the metrics of the operator in a cluster.
type meters struct {
	registry     *prometheus.Registry
	translations prometheus.Counter
	duration     prometheus.Histogram
	configs      prometheus.Gauge
	missing      prometheus.Gauge
	writes       *prometheus.CounterVec
	failures     prometheus.Counter
	leader       prometheus.Gauge
	refused      *prometheus.CounterVec
	answers      *prometheus.CounterVec
}

func newMeters() *meters {
	m := &meters{
		translations: telemetry.NewCounter(telemetry.OperatorTranslations),
		duration:     telemetry.NewHistogram(telemetry.OperatorTranslationDuration),
		configs:      telemetry.NewGauge(telemetry.OperatorConfigs),
		missing:      telemetry.NewGauge(telemetry.OperatorConfigsMissing),
		writes:       telemetry.NewCounterVec(telemetry.OperatorWrites),
		failures:     telemetry.NewCounter(telemetry.OperatorWriteErrors),
		leader:       telemetry.NewGauge(telemetry.OperatorLeader),
		refused:      telemetry.NewCounterVec(telemetry.OperatorDiscoveryRefused),
		answers:      telemetry.NewCounterVec(telemetry.OperatorScalerAnswers),
	}
	m.registry = telemetry.NewRegistry(m.translations, m.duration, m.configs, m.missing, m.writes, m.failures, m.leader, m.refused, m.answers)
	return m
}

// knows has the metrics say how many objects have a problem.
func (m *meters) knows(w *writer) {
	m.registry.MustRegister(telemetry.NewGaugeFunc(telemetry.OperatorProblems, func() float64 { return float64(w.unhappy()) }))
}

// serves has the metrics say how many streams a server has.
func (m *meters) serves(s *discovery.Server) {
	m.registry.MustRegister(telemetry.NewGaugeFunc(telemetry.OperatorDiscoveryStreams, func() float64 { return float64(s.Streams()) }))
}
