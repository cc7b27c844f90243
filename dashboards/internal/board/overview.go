package board

import (
	"fmt"

	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// nameOfGateway is the legend of a Gateway.
const nameOfGateway = "{{namespace}}/{{gateway}}"

// overview shows which Gateways fail for clients, and since when.
func overview() grafana.Board {
	return board("overview", "Overview", "Is anybody unable to call, since when, and at which gateway?", choices(), grafana.Arrange(
		grafana.Section{Title: "Do calls fail?", Lines: []grafana.Line{
			{Height: 4, Panels: vitals()},
			{Height: 8, Panels: []grafana.Panel{firing(), gateways()}, Widths: []int{10, 14}},
		}},
		grafana.Section{Title: "Calls", Lines: []grafana.Line{
			{Height: 8, Panels: []grafana.Panel{calls(), setup(), refused(
				"Requests that were answered with an error. What every call begins with is left out.", here,
				query.Unusual,
			)}},
		}},
		grafana.Section{Title: "Media", Lines: []grafana.Line{
			{Height: 8, Panels: []grafana.Panel{bandwidth(), packetRate(), dropped(here)}},
		}},
	))
}

// vitals returns the key figures.
func vitals() []grafana.Panel {
	dataplanes, auth := query.Of(query.Up, query.Job(query.Dataplane), here), query.Job(query.Auth)
	return []grafana.Panel{
		grafana.Stat{
			Title: "Alerts", Unit: count, Limits: any1, None: "0", Page: alert.Runbooks,
			Help: "The table below lists them.",
			Expr: "count(" + query.Of(
				query.Alerts, `alertname=~"`+alert.Prefix+`.*"`, `alertstate="firing"`,
			) + ") or vector(0)",
		}.Panel(),
		grafana.Stat{
			Title: "Set-ups succeed", Unit: share, Limits: success, None: "no attempts",
			Page: alert.Runbook("NobodyCanCall"),
			Help: "Share of the attempts with a credential to start a call that succeed.",
			Expr: query.Success("", window, here),
		}.Panel(),
		grafana.Stat{
			Title: "Calls", Unit: count, None: "no dataplane",
			Help: "Current allocations. A call has one or more, depending on its clients.",
			Expr: query.Sum("", query.Of(telemetry.AllocationsActive, here)),
		}.Panel(),
		grafana.Stat{
			Title: "Dataplanes down", Unit: count, Limits: any1, None: "no dataplane",
			Page: alert.Runbook("DataplaneDown"),
			Help: "Pods or processes that do not answer Prometheus.",
			Expr: fmt.Sprintf("count(%s) - sum(%s)", dataplanes, dataplanes),
		}.Panel(),
		grafana.Stat{
			Title: "Fullest dataplane", Unit: share, Limits: used, None: "no dataplane",
			Page: alert.Runbook("AllocationsNearCapacity"),
			Help: "Used share of the capacity, of the fullest process.",
			Expr: "max(" + fullness(here) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "No config source for", Unit: seconds, Limits: stale, None: "no dataplane",
			Page: alert.Runbook("ConfigStale"),
			Help: "Time of a dataplane without a connection to the operator. Calls continue; changes do not take effect.",
			Expr: "max(" + query.Of(telemetry.ConfigAge, query.Job(query.Dataplane), here) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Auth errors", Unit: share, Limits: &grafana.Limits{Yellow: 0.01, Red: 0.05}, None: "no requests",
			Page: alert.Runbook("AuthErrorRateHigh"),
			Help: "Share of the requests to the auth service that were answered with 5xx.",
			Expr: failing(auth),
		}.Panel(),
		grafana.Stat{
			Title: "Operators up", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "none",
			Page: alert.Runbook("OperatorDown"),
			Help: "Without an operator changes do not take effect; calls continue.",
			Expr: query.Sum("", query.Of(query.Up, query.Job(query.Operator))),
		}.Panel(),
	}
}

func fullness(matchers string) string {
	return query.Of(telemetry.AllocationsActive, matchers) + " / (" + query.Of(
		telemetry.AllocationsCapacity, matchers,
	) + " > 0)"
}

// failing returns the share of requests to the auth service with a 5xx answer.
func failing(matchers string) string {
	all := query.Rate("", window, telemetry.AuthRequests, matchers)
	bad := query.Rate("", window, telemetry.AuthRequests, matchers, `code=~"5.."`)
	return fmt.Sprintf("(%s or vector(0)) / (%s > 0)", bad, all)
}

// firing returns a table of the firing alerts.
func firing() grafana.Panel {
	ours := `alertname=~"` + alert.Prefix + `.*"`
	return grafana.Table{
		Title: "Firing alerts", None: "none",
		Help: "Each alert links to its runbook.",
		By:   []string{"alertname", "severity", "namespace", "gateway", "pod"},
		Links: map[string]grafana.DataLink{
			"alertname": {Title: "Runbook", URL: alert.Runbooks + "/${__value.raw}.md", TargetBlank: true},
		},
		Columns: []grafana.Column{{
			Query: grafana.Query{Legend: "since", Expr: fmt.Sprintf("max by (alertname, severity, namespace, gateway, pod) (%s and ignoring (alertstate) %s) * %d",
				query.Of(query.AlertsForState, ours), query.Of(
					query.Alerts, ours, `alertstate="firing"`,
				), millisecond)},
			Unit: since,
		}},
	}.Panel()
}

// gateways returns a table of the Gateways.
func gateways() grafana.Panel {
	rate := func(metric string, matchers ...string) string {
		return query.Rate(query.Gateway, window, metric, append(matchers, here)...)
	}
	up := query.Of(query.Up, query.Job(query.Dataplane), here)
	return grafana.Table{
		Title: "Gateways", None: "no dataplane", By: []string{"namespace", "gateway"},
		Help: "Every Gateway with a dataplane. Click a Gateway to see its pods.",
		Links: map[string]grafana.DataLink{"gateway": {
			Title: "Pods",
			URL:   "/d/stunner-dataplane?var-namespace=${__data.fields.namespace}&var-gateway=${__value.raw}&${__url_time_range}",
		}},
		Columns: []grafana.Column{
			{Query: grafana.Query{Legend: "pods", Expr: query.Sum(query.Gateway, up)}, Unit: count},
			{Query: grafana.Query{
				Legend: "calls", Expr: query.Sum(query.Gateway, query.Of(telemetry.AllocationsActive, here)),
			}, Unit: count},
			{Query: grafana.Query{
				Legend: "draining", Expr: query.Sum(query.Gateway, query.Of(telemetry.AllocationsDraining, here)),
			}, Unit: count},
			{Query: grafana.Query{Legend: "set-ups", Expr: rate(telemetry.AllocationsTotal)}, Unit: perSecond},
			{Query: grafana.Query{
				Legend: "succeed", Expr: query.Success(query.Gateway, window, here),
			}, Unit: share, Limits: success},
			{Query: grafana.Query{Legend: "in", Expr: rate(telemetry.BytesReceived) + " * 8"}, Unit: bits},
			{Query: grafana.Query{Legend: "out", Expr: rate(telemetry.BytesSent) + " * 8"}, Unit: bits},
			{Query: grafana.Query{
				Legend: "config problems", Expr: query.Sum(query.Gateway, query.Of(telemetry.ConfigProblem, here)),
			}, Unit: count, Limits: any1},
		},
	}.Panel()
}

func calls() grafana.Panel {
	return grafana.Graph{
		Title: "Calls by gateway", Unit: count, Stacked: true, Help: "Allocations, including those of draining pods.",
		Queries: []grafana.Query{
			{Expr: query.Sum(query.Gateway, query.Of(telemetry.AllocationsActive, here)), Legend: nameOfGateway},
		},
	}.Panel()
}

func setup() grafana.Panel {
	return grafana.Graph{
		Title: "Set-ups that succeed, by gateway", Unit: share, Share: true, Limits: success,
		Page:    alert.Runbook("NobodyCanCall"),
		Help:    "Share of successful attempts. There is no line without attempts.",
		Queries: []grafana.Query{{Expr: query.Success(query.Gateway, window, here), Legend: nameOfGateway}},
	}.Panel()
}

// refused counts requests that are refused, of some reasons, and those that are served without some attributes.
func refused(help, where string, reasons ...string) grafana.Panel {
	return grafana.Graph{
		Title: "Refused, by reason", Unit: perSecond, Stacked: true, Page: alert.Runbooks,
		Help: help,
		Queries: []grafana.Query{
			{Expr: query.Rate("reason", window, telemetry.Refused, append(reasons, where)...) + " > 0", Legend: "{{reason}}"},
			{
				Expr:   query.Rate("attribute", window, telemetry.IgnoredAttributes, where) + " > 0",
				Legend: "served, {{attribute}} ignored",
			},
		},
	}.Panel()
}

func dropped(matchers string) grafana.Panel {
	return grafana.Graph{
		Title: "Dropped, by reason", Unit: packets, Stacked: true,
		Help: "Datagrams that were dropped without a response. rate_limited: too many requests without a valid credential.",
		Queries: []grafana.Query{
			{Expr: query.Rate("reason", window, telemetry.Dropped, matchers) + " > 0", Legend: "{{reason}}"},
			{Expr: query.Rate(
				"socket", window, telemetry.KernelDropped, matchers,
			), Legend: "receive buffer of a {{socket}} full"},
		},
	}.Panel()
}

func bandwidth() grafana.Panel {
	rate := func(metric string) string { return query.Rate(query.Gateway, window, metric, here) + " * 8" }
	return grafana.Graph{
		Title: "Bandwidth by gateway", Unit: bits, Mirrored: ".* out$",
		Help: "From clients above the axis, to clients below.",
		Queries: []grafana.Query{
			{Expr: rate(telemetry.BytesReceived), Legend: nameOfGateway + " in"},
			{Expr: rate(telemetry.BytesSent), Legend: nameOfGateway + " out"},
		},
	}.Panel()
}

func packetRate() grafana.Panel {
	rate := func(direction string) string {
		return query.Rate(query.Gateway, window, telemetry.ListenerPackets, `direction="`+direction+`"`, here)
	}
	return grafana.Graph{
		Title: "Packets by gateway", Unit: packets, Mirrored: ".* out$",
		Help: "From clients above the axis, to clients below.",
		Queries: []grafana.Query{
			{Expr: rate("rx"), Legend: nameOfGateway + " in"}, {Expr: rate("tx"), Legend: nameOfGateway + " out"},
		},
	}.Panel()
}
