package rest

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Metrics are the metrics of the service. A client cannot choose the value of a label, so the number of series is
// bounded.
type Metrics struct {
	requests    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	refusals    *prometheus.CounterVec
	credentials prometheus.Counter
	recent      recent
	grants      recent // with the empty reason
}

// NewMetrics registers the metrics of the service.
func NewMetrics(registry *prometheus.Registry, fleet *Fleet, policy *access.Policy) *Metrics {
	m := &Metrics{
		requests:    telemetry.NewCounterVec(telemetry.AuthRequests),
		durations:   telemetry.NewHistogramVec(telemetry.AuthDuration),
		refusals:    telemetry.NewCounterVec(telemetry.AuthRefused),
		credentials: telemetry.NewCounter(telemetry.AuthCredentials),
		recent:      recent{counts: map[access.Reason]*minutes{}},
		grants:      recent{counts: map[access.Reason]*minutes{}},
	}
	for _, r := range Refusals { // so that the first refusal is visible as an increase
		m.refusals.WithLabelValues(string(r.Reason))
	}
	registry.MustRegister(m.requests, m.durations, m.refusals, m.credentials, configAge{fleet},
		telemetry.NewGaugeFunc(telemetry.AuthClockSkew, func() float64 { return fleet.Clusters().All.Ahead().Seconds() }))
	if policy.Reads() {
		started := time.Now()
		registry.MustRegister(telemetry.NewGaugeFunc(telemetry.AuthKeysAge, func() float64 {
			return keysAge(policy.Keys(), started, time.Now()).Seconds()
		}))
	}
	return m
}

// keysAge returns the time since the keys were read, or since the start if they have not been read.
func keysAge(k access.KeyState, started, now time.Time) time.Duration {
	if k.ReadAt.IsZero() {
		return now.Sub(started)
	}
	return now.Sub(k.ReadAt)
}

// refused counts a refused request. If its log line is within the limit of the reason, it returns how many lines were
// suppressed before.
func (m *Metrics) refused(reason access.Reason, now time.Time) (suppressed uint64, within bool) {
	m.refusals.WithLabelValues(string(reason)).Inc()
	return m.recent.add(reason, now)
}

// granted returns the number of requests that got credentials in the last RecentMinutes.
func (m *Metrics) granted(now time.Time) uint64 { return m.grants.total(now)[""] }

// Refused returns the number of requests that were refused in the last RecentMinutes, by reason.
func (m *Metrics) Refused(now time.Time) map[access.Reason]uint64 { return m.recent.total(now) }

func (m *Metrics) answered(route string, status int, took time.Duration) {
	route = cmp.Or(route, "other")
	code := strconv.Itoa(status)
	m.requests.WithLabelValues(route, code).Inc()
	m.durations.WithLabelValues(route, code).Observe(took.Seconds())
}

// configAge is the gauge telemetry.ConfigAge, which is computed at each scrape.
type configAge struct{ *Fleet }

func (c configAge) Describe(ch chan<- *prometheus.Desc) { ch <- telemetry.Desc(telemetry.ConfigAge) }

func (c configAge) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(telemetry.Desc(telemetry.ConfigAge), prometheus.GaugeValue,
		c.Clusters().All.Age().Seconds())
}
