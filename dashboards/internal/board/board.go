// Package board defines the Grafana dashboards.
//
// One file a board. Package query has the queries that boards and alerts share.
package board

import (
	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// window is the range of rates. Grafana derives it from the scrape interval and the zoom.
const window = "$__rate_interval"

// tag is the tag of all dashboards, which link to each other by it.
const tag = "stunner"

// Matchers for the variables.
const (
	here = `namespace=~"$namespace", gateway=~"$gateway"`
	pods = here + `, pod=~"$pod"`
)

// Units in Grafana's notation.
const (
	count       = "short"
	perSecond   = "cps"
	bits        = "bps"
	packets     = "pps"
	bytes       = "bytes"
	share       = "percentunit"
	seconds     = "s"
	since       = "dateTimeFromNow"
	millisecond = 1000
)

// Thresholds of several panels.
var (
	success = &grafana.Limits{Yellow: 0.99, Red: 0.95, Below: true}
	used    = &grafana.Limits{Yellow: 0.6, Red: 0.8}
	any1    = &grafana.Limits{Yellow: 1, Red: 1}
	stale   = &grafana.Limits{Yellow: 60, Red: 300}
	week    = &grafana.Limits{Yellow: 14 * 86400, Red: 7 * 86400, Below: true}
)

// All returns the dashboards by file name.
func All() map[string]grafana.Board {
	return map[string]grafana.Board{
		"overview.json":      overview(),
		"dataplane.json":     dataplane(),
		"control-plane.json": controlPlane(),
		"auth.json":          auth(),
	}
}

func board(uid, title, description string, variables []grafana.Variable, panels []grafana.Panel) grafana.Board {
	return grafana.Board{
		UID: "stunner-" + uid, Title: "STUNner / " + title, Description: description, Tags: []string{tag},
		SchemaVersion: 39, Editable: true, Refresh: "30s", Time: grafana.Range{From: "now-3h", To: "now"},
		Timezone: "browser", GraphTooltip: 1,
		Links:       []grafana.Link{grafana.Boards(tag), grafana.Page("Runbooks", alert.Runbooks)},
		Templating:  grafana.Templating{List: append([]grafana.Variable{grafana.SourceVariable()}, variables...)},
		Annotations: grafana.Annotations{List: marks()},
		Panels:      panels,
	}
}

// marks returns the annotations of all dashboards: applied configs and firing alerts.
func marks() []grafana.Annotation {
	return []grafana.Annotation{
		{
			Name: "Config put in force", Datasource: grafana.Prometheus(), Enable: true, IconColor: "blue", Step: "60s",
			Expr:        query.Sum(query.Gateway, "changes("+query.Of(telemetry.ConfigApplied)+"[1m])") + " > 0",
			TitleFormat: "config of {{namespace}}/{{gateway}}",
		},
		{
			Name: "Alert", Datasource: grafana.Prometheus(), Enable: true, IconColor: "red", Step: "60s",
			Expr:        query.Of(query.Alerts, `alertname=~"`+alert.Prefix+`.*"`, `alertstate="firing"`),
			TitleFormat: "{{alertname}}",
		},
	}
}

// choices returns the variables namespace and gateway.
func choices() []grafana.Variable {
	return []grafana.Variable{
		grafana.LabelVariable("namespace", "Namespace", telemetry.AllocationsActive),
		grafana.LabelVariable("gateway", "Gateway", query.Of(telemetry.AllocationsActive, `namespace=~"$namespace"`)),
	}
}

// process returns the section about the processes of a service.
func process(job, legend string, matchers ...string) grafana.Section {
	of := append([]string{query.Job(job)}, matchers...)
	return grafana.Section{Title: "Processes", Lines: []grafana.Line{{Height: 7, Panels: []grafana.Panel{
		grafana.Graph{
			Title: "CPU", Unit: count, Help: "Cores in use.",
			Queries: []grafana.Query{
				{Expr: "rate(" + query.Of(query.CPU, of...) + "[" + window + "])", Legend: legend},
			},
		}.Panel(),
		grafana.Graph{
			Title: "Memory", Unit: bytes, Help: "Resident memory.",
			Queries: []grafana.Query{{Expr: query.Of(query.Memory, of...), Legend: legend}},
		}.Panel(),
		grafana.Graph{
			Title: "File descriptors", Unit: share, Share: true, Limits: used,
			Help: "Used share of the file descriptor limit. Each call of a dataplane uses one or two.",
			Queries: []grafana.Query{
				{Expr: query.Of(query.OpenFiles, of...) + " / " + query.Of(query.MaxFiles, of...), Legend: legend},
			},
		}.Panel(),
		grafana.Graph{
			Title: "Goroutines", Unit: count, Help: "A number that only grows indicates a leak.",
			Queries: []grafana.Query{{Expr: query.Of(query.Goroutines, of...), Legend: legend}},
		}.Panel(),
	}}}}
}
