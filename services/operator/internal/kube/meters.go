package kube

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// meters are the metrics of the operator in a cluster.
type meters struct {
	registry     *prometheus.Registry
	translations prometheus.Counter
	configs      prometheus.Gauge
	writes       *prometheus.CounterVec
	leader       prometheus.Gauge
}

func newMeters() *meters {
	m := &meters{
		registry:     prometheus.NewRegistry(),
		translations: telemetry.NewCounter(telemetry.OperatorTranslations),
		configs:      telemetry.NewGauge(telemetry.OperatorConfigs),
		writes:       telemetry.NewCounterVec(telemetry.OperatorWrites),
		leader:       telemetry.NewGauge(telemetry.OperatorLeader),
	}
	m.registry.MustRegister(m.translations, m.configs, m.writes, m.leader,
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
