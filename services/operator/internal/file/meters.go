package file

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// meters are the metrics of the operator.
type meters struct {
	registry     *prometheus.Registry
	translations prometheus.Counter
	restarts     prometheus.Counter
	configs      prometheus.Gauge
	problems     prometheus.Gauge
}

func newMeters() *meters {
	m := &meters{
		translations: telemetry.NewCounter(telemetry.OperatorTranslations),
		restarts:     telemetry.NewCounter(telemetry.OperatorDataplaneRestarts),
		configs:      telemetry.NewGauge(telemetry.OperatorConfigs),
		problems:     telemetry.NewGauge(telemetry.OperatorProblems),
	}
	m.registry = telemetry.NewRegistry(m.translations, m.restarts, m.configs, m.problems)
	return m
}
