package file

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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
		registry:     prometheus.NewRegistry(),
		translations: telemetry.NewCounter(telemetry.OperatorTranslations),
		restarts:     telemetry.NewCounter(telemetry.OperatorDataplaneRestarts),
		configs:      telemetry.NewGauge(telemetry.OperatorConfigs),
		problems:     telemetry.NewGauge(telemetry.OperatorProblems),
	}
	m.registry.MustRegister(m.translations, m.restarts, m.configs, m.problems,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler serves /live, /ready and /metrics.
func (m *meters) handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.Handle("/", telemetry.Health{Ready: ready})
	return mux
}
