package telemetry_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func TestMetricsAreUniquePrefixedAndDocumented(t *testing.T) {
	name, label := regexp.MustCompile(`^stunner_[a-z_]+$`), regexp.MustCompile(`^[a-z_]+$`)
	seen := map[string]bool{}
	for _, m := range telemetry.Metrics {
		if seen[m.Name] {
			t.Errorf("%s stands in the table twice", m.Name)
		}
		seen[m.Name] = true
		if !name.MatchString(m.Name) {
			t.Errorf("%s: names are lower case and start with stunner_", m.Name)
		}
		if counter := m.Type == telemetry.Counter; counter != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s: counters, and only counters, end in _total", m.Name)
		}
		if !strings.HasSuffix(m.Help, ".") || len(m.Help) < 20 {
			t.Errorf("%s: the help %q is no sentence", m.Name, m.Help)
		}
		for _, l := range m.Labels {
			if !label.MatchString(l) {
				t.Errorf("%s: label %q", m.Name, l)
			}
		}
	}
}

// G-10: the names and labels that existing dashboards, alerts and autoscalers query do not change.
func TestContractMetricNames(t *testing.T) {
	for name, labels := range map[string]string{
		"stunner_allocations_active":         "",
		"stunner_bytes_received_total":       "",
		"stunner_bytes_sent_total":           "",
		"stunner_connections_total":          "",
		"stunner_listener_connections":       "name",
		"stunner_listener_connections_total": "name",
		"stunner_listener_packets_total":     "name direction",
		"stunner_listener_bytes_total":       "name direction",
		"stunner_cluster_packets_total":      "name direction",
		"stunner_cluster_bytes_total":        "name direction",
	} {
		found := false
		for _, m := range telemetry.Metrics {
			if m.Name == name {
				found = true
				if got := strings.Join(m.Labels, " "); got != labels {
					t.Errorf("%s has labels %q, want %q", name, got, labels)
				}
			}
		}
		if !found {
			t.Errorf("%s is missing", name)
		}
	}
}

// everything has one sample of each metric.
type everything struct{}

func (everything) Describe(out chan<- *prometheus.Desc) {
	for _, m := range telemetry.Metrics {
		out <- telemetry.Desc(m.Name)
	}
}

func (everything) Collect(out chan<- prometheus.Metric) {
	kinds := map[telemetry.Type]prometheus.ValueType{
		telemetry.Counter: prometheus.CounterValue, telemetry.Gauge: prometheus.GaugeValue,
	}
	for _, m := range telemetry.Metrics {
		if m.Type == telemetry.Histogram {
			out <- prometheus.MustNewConstHistogram(telemetry.Desc(m.Name), 1, 1, nil, m.Labels...)
			continue
		}
		out <- prometheus.MustNewConstMetric(telemetry.Desc(m.Name), kinds[m.Type], 1, m.Labels...)
	}
}

func TestEveryMetricCanBeRegistered(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(everything{})
	families, err := registry.Gather()
	if err != nil || len(families) != len(telemetry.Metrics) {
		t.Errorf("gathered %d families of %d: %v", len(families), len(telemetry.Metrics), err)
	}
}

func TestMetricsOutsideTheTablePanic(t *testing.T) {
	for name, use := range map[string]func(){
		"unknown name":       func() { telemetry.NewCounter("stunner_nobody_knows_total") },
		"unknown desc":       func() { telemetry.Desc("stunner_nobody_knows_total") },
		"gauge as counter":   func() { telemetry.NewCounter(telemetry.AllocationsActive) },
		"counter as times":   func() { telemetry.NewHistogramVec(telemetry.AuthRequests) },
		"labels left out":    func() { telemetry.NewCounter(telemetry.Refused) },
		"labels that aren't": func() { telemetry.NewCounterVec(telemetry.Connections) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			use()
		})
	}
}
