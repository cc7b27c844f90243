package rest

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// Metrics counts what the service does. No label holds anything that a client can choose.
type Metrics struct {
	requests    *prometheus.CounterVec
	credentials prometheus.Counter
}

// NewMetrics registers the metrics of the service.
func NewMetrics(registry *prometheus.Registry, directory *gateway.Directory) *Metrics {
	m := &Metrics{
		requests:    telemetry.NewCounterVec(telemetry.AuthRequests),
		credentials: telemetry.NewCounter(telemetry.AuthCredentials),
	}
	registry.MustRegister(m.requests, m.credentials, configAge{directory})
	return m
}

func (m *Metrics) answered(route string, status int) {
	if route == "" {
		route = "other"
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
}

func (m *Metrics) granted(grants []grant) {
	for _, g := range grants {
		if !g.stunOnly {
			m.credentials.Inc()
		}
	}
}

// configAge is a gauge that is read when it is asked for.
type configAge struct{ directory *gateway.Directory }

func (c configAge) Describe(ch chan<- *prometheus.Desc) { ch <- telemetry.Desc(telemetry.ConfigAge) }

func (c configAge) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(telemetry.Desc(telemetry.ConfigAge), prometheus.GaugeValue, c.directory.Age().Seconds())
}
