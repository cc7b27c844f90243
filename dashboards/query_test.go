package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/board"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// target are the labels that a scrape adds, see docs/monitoring.md.
var target = []string{"job", "namespace", "gateway", "pod", "release"}

// foreign are the metrics of other exporters with their labels. e2e/monitoring checks that they exist.
var foreign = map[string][]string{
	query.Up: nil, query.CPU: nil, query.Memory: nil, query.OpenFiles: nil, query.MaxFiles: nil, query.Started: nil,
	query.Goroutines: nil,
	query.Alerts:     {"alertname", "severity", "alertstate"}, query.AlertsForState: {"alertname", "severity"},
}

// own returns the labels of a metric without those of the scrape.
func own(metric string) ([]string, bool) {
	for _, m := range telemetry.Metrics {
		for _, s := range m.Series() {
			if s.Name == metric {
				return s.Labels, true
			}
		}
	}
	list, ok := foreign[metric]
	return list, ok
}

// TestQueries checks that queries use existing metrics, labels and label values.
func TestQueries(t *testing.T) {
	closed := map[string][]string{
		"job": {query.Dataplane, query.Operator, query.Auth}, "direction": {"rx", "tx"}, "reason": reasons(t),
		"alertstate": {"firing"},
	}
	for where, q := range queries() {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(runnable(q.Expr))
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, q.Expr)
			continue
		}
		known := map[string]bool{}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if s, ok := node.(*parser.VectorSelector); ok {
				for _, problem := range objections(s, closed, known) {
					t.Errorf("%s: %s\n%s", where, problem, q.Expr)
				}
			}
			return nil
		})
		for _, label := range append(grouped(expr), named(q.Legend)...) {
			if !known[label] {
				t.Errorf("%s: no metric has the label %s\n%s", where, label, q.Expr)
			}
		}
	}
}

// objections returns the errors in a selector, and records its labels.
func objections(s *parser.VectorSelector, closed map[string][]string, known map[string]bool) (all []string) {
	list, ok := own(s.Name)
	if !ok {
		return []string{"no service exports " + s.Name}
	}
	list = append(slices.Clone(list), target...)
	for _, label := range list {
		known[label] = true
	}
	for _, m := range s.LabelMatchers {
		if m.Name != model.MetricNameLabel && !slices.Contains(list, m.Name) {
			all = append(all, fmt.Sprintf("%s has no label %s", s.Name, m.Name))
		}
		for value := range strings.SplitSeq(m.Value, "|") {
			if values := closed[m.Name]; values != nil && !slices.Contains(values, value) {
				all = append(all, fmt.Sprintf("label %s is never %q", m.Name, value))
			}
		}
	}
	return all
}

// TestQueriesFindsUnknownNames checks that TestQueries finds errors.
func TestQueriesFindsUnknownNames(t *testing.T) {
	for expr, want := range map[string]string{
		`stunner_nobody_knows`:                 "no service exports stunner_nobody_knows",
		`stunner_connections_total{name="a"}`:  "stunner_connections_total has no label name",
		`stunner_dropped_total{reason="mood"}`: `label reason is never "mood"`,
	} {
		node, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
		if err != nil {
			t.Fatal(err)
		}
		got := objections(node.(*parser.VectorSelector), map[string][]string{"reason": reasons(t)}, map[string]bool{})
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// TestEveryMetricIsSomewhere checks that each metric is in a dashboard or an alert.
func TestEveryMetricIsSomewhere(t *testing.T) {
	all := ""
	for _, q := range queries() {
		all += q.Expr + "\n"
	}
	hidden := map[string]string{
		telemetry.ConfigInfo:  "its label is for joining and for people with a question",
		telemetry.OffloadInfo: "its labels are for people with a question",

		telemetry.SessionsHandedOver:        "tells about one pod that ends, as its status does",
		telemetry.SessionsTakenOver:         "tells about one pod that ends, as its status does",
		telemetry.SessionsAdopted:           "tells about one pod, as its status does",
		telemetry.SessionsNotAdopted:        "tells about one pod, as its status does",
		telemetry.SessionsRescued:           "tells about one pod that was lost",
		telemetry.SessionsGivenUp:           "tells about one pod that was lost",
		telemetry.SessionCopies:             "tells about one pod, as its status does",
		telemetry.PeersMoved:                "tells about one pod that ends, as its status does",
		telemetry.PeersNotMoved:             "tells about one pod that ends, as its status does",
		telemetry.SessionsRestored:          "tells about one crash, as the log does",
		telemetry.SessionsDropped:           "tells about one crash, as the log does",
		telemetry.JournalErrors:             "errors that go on are in JournalProblem",
		telemetry.OperatorInspectionRefused: "the caller gets the reason with the answer",
		telemetry.HTTPRefused:               "the caller gets the reason with the answer",
		telemetry.UsageRecords:              "who bills counts the records that arrive",
		telemetry.UsageRecordsLost:          "who bills sees sessions without a last record",
		telemetry.UsageRecordsWaiting:       "most installations deliver no usage records",
		telemetry.JournalRefused:            "sessions that are lost for it are in JournalProblem",
	}
	for _, m := range telemetry.Metrics {
		shown := slices.ContainsFunc(
			m.Series(),
			func(s telemetry.Metric) bool { return regexp.MustCompile(`\b` + s.Name + `\b`).MatchString(all) },
		)
		if why, listed := hidden[m.Name]; shown == listed {
			t.Errorf("%s: shown %t, listed as hidden %t %s", m.Name, shown, listed, why)
		}
	}
}

// queries returns the queries of all dashboards, variables and alerts, by their location.
func queries() map[string]grafana.Query {
	all := map[string]grafana.Query{}
	for _, b := range board.All() {
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				all[b.Title+" / "+p.Title+" / "+target.RefID] = grafana.Query{
					Expr: target.Expr, Legend: target.LegendFormat,
				}
			}
		}
		for _, a := range b.Annotations.List {
			all[b.Title+" / "+a.Name] = grafana.Query{Expr: a.Expr, Legend: a.TitleFormat}
		}
		for _, v := range b.Templating.List {
			if inner, ok := strings.CutPrefix(v.Query, "label_values("); ok {
				comma := strings.LastIndex(inner, ", ")
				all[b.Title+" / $"+v.Name] = grafana.Query{
					Expr: inner[:comma], Legend: "{{" + strings.TrimSuffix(inner[comma+2:], ")") + "}}",
				}
			}
		}
	}
	for _, g := range alert.AsFile().Groups {
		for _, r := range g.Rules {
			all[r.Alert] = grafana.Query{Expr: r.Expr}
		}
	}
	return all
}

// runnable replaces the variables of Grafana.
func runnable(expr string) string { return strings.ReplaceAll(expr, "$__rate_interval", "5m") }

// grouped returns the labels that an expression aggregates by.
func grouped(expr parser.Expr) (all []string) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if a, ok := node.(*parser.AggregateExpr); ok {
			all = append(all, a.Grouping...)
		}
		return nil
	})
	return all
}

// named returns the labels of a legend.
func named(legend string) (all []string) {
	for _, match := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(legend, -1) {
		all = append(all, match[1])
	}
	return all
}

// reasons returns the values of the label reason. They are internal to the dataplane, so they are read from its source.
func reasons(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("../services/stunnerd/internal/meter/reason.go")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{"invalid": true, "unreadable": true} // reasons of rejected configs
	for _, match := range regexp.MustCompile(`(?m)^\s+\w+:\s+"(\w+)",$`).FindAllStringSubmatch(string(source), -1) {
		set[match[1]] = true
	}
	if len(set) < 10 {
		t.Fatalf("reasons %v", set)
	}
	return slices.Sorted(maps.Keys(set))
}
