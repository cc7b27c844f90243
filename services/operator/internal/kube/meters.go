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
	configs      prometheus.Gauge
	writes       *prometheus.CounterVec
	leader       prometheus.Gauge
	refused      *prometheus.CounterVec
}

func newMeters() *meters {
	m := &meters{
		translations: telemetry.NewCounter(telemetry.OperatorTranslations),
		configs:      telemetry.NewGauge(telemetry.OperatorConfigs),
		writes:       telemetry.NewCounterVec(telemetry.OperatorWrites),
		leader:       telemetry.NewGauge(telemetry.OperatorLeader),
		refused:      telemetry.NewCounterVec(telemetry.OperatorDiscoveryRefused),
	}
	m.registry = telemetry.NewRegistry(m.translations, m.configs, m.writes, m.leader, m.refused)
	return m
}

// serves has the metrics say how many streams a server has.
func (m *meters) serves(s *discovery.Server) {
	m.registry.MustRegister(telemetry.NewGaugeFunc(telemetry.OperatorDiscoveryStreams, func() float64 { return float64(s.Streams()) }))
}
