package file

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
)

// meters are the metrics of the operator.
type meters struct {
	registry          *prometheus.Registry
	translations      prometheus.Counter
	restarts          prometheus.Counter
	configs           prometheus.Gauge
	problems          prometheus.Gauge
	refused           *prometheus.CounterVec
	inspectionRefused *prometheus.CounterVec
}

func newMeters() *meters {
	m := &meters{
		translations:      telemetry.NewCounter(telemetry.OperatorTranslations),
		restarts:          telemetry.NewCounter(telemetry.OperatorDataplaneRestarts),
		configs:           telemetry.NewGauge(telemetry.OperatorConfigs),
		problems:          telemetry.NewGauge(telemetry.OperatorProblems),
		refused:           telemetry.NewCounterVec(telemetry.OperatorDiscoveryRefused),
		inspectionRefused: telemetry.NewCounterVec(telemetry.OperatorInspectionRefused),
	}
	m.registry = telemetry.NewRegistry(m.translations, m.restarts, m.configs, m.problems, m.refused,
		m.inspectionRefused)
	for _, r := range discovery.Refusals {
		m.refused.WithLabelValues(string(r.Refusal))
	}
	for _, r := range inspect.Refusals {
		m.inspectionRefused.WithLabelValues(r.Reason)
	}
	return m
}
