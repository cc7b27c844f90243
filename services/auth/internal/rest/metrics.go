package rest

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// Metrics are the metrics of the service. A client cannot choose the value of a label, so the number of series is
// bounded.
type Metrics struct {
	requests    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	credentials prometheus.Counter
}

// NewMetrics registers the metrics of the service.
func NewMetrics(registry *prometheus.Registry, directory *gateway.Directory) *Metrics {
	m := &Metrics{
		requests:    telemetry.NewCounterVec(telemetry.AuthRequests),
		durations:   telemetry.NewHistogramVec(telemetry.AuthDuration),
		credentials: telemetry.NewCounter(telemetry.AuthCredentials),
	}
	registry.MustRegister(m.requests, m.durations, m.credentials, configAge{directory},
		telemetry.NewGaugeFunc(telemetry.AuthClockSkew, func() float64 { return directory.Ahead().Seconds() }))
	return m
}

func (m *Metrics) answered(route string, status int, took time.Duration) {
	route = cmp.Or(route, "other")
	code := strconv.Itoa(status)
	m.requests.WithLabelValues(route, code).Inc()
	m.durations.WithLabelValues(route, code).Observe(took.Seconds())
}

// configAge is the gauge telemetry.ConfigAge, which is computed at each scrape.
type configAge struct{ directory *gateway.Directory }

func (c configAge) Describe(ch chan<- *prometheus.Desc) { ch <- telemetry.Desc(telemetry.ConfigAge) }

func (c configAge) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(telemetry.Desc(telemetry.ConfigAge), prometheus.GaugeValue,
		c.directory.Age().Seconds())
}
