package board

import (
	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// auth shows whether web apps get their credentials.
func auth() grafana.Board {
	job := query.Job(query.Auth)
	return board("auth", "Auth", "Do web apps get their credentials?", nil, grafana.Arrange(
		grafana.Section{Title: "Do web apps get credentials?", Lines: []grafana.Line{{Height: 4, Panels: authVitals(job)}}},
		grafana.Section{Title: "Requests", Lines: []grafana.Line{{Height: 9, Panels: []grafana.Panel{
			requests("By status", "code", "{{code}}", "4xx is what a client did wrong: 401 no good token, 403 not allowed, 429 too many requests. 5xx is ours."),
			requests("By route", "route", "{{route}}", "The pattern that a request matched; other is what matched none."),
			grafana.Graph{
				Title: "Credentials", Unit: perSecond, Help: "TURN credentials handed out: one for each gateway in an answer.",
				Queries: []grafana.Query{{Expr: query.Rate("pod", window, telemetry.AuthCredentials, job), Legend: "{{pod}}"}},
			}.Panel(),
			age(query.Auth, "{{pod}}", ""),
		}}, {Height: 7, Panels: []grafana.Panel{durations(job)}}}},
		process(query.Auth, "{{pod}}"),
	))
}

func authVitals(job string) []grafana.Panel {
	rate := func(matchers ...string) string {
		return query.Rate("", window, telemetry.AuthRequests, append(matchers, job)...)
	}
	return []grafana.Panel{
		grafana.Stat{
			Title: "Auth services up", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "none", Page: alert.Runbook("AuthDown"),
			Help: "Without one nobody starts a call; calls that are up go on.",
			Expr: query.Sum("", query.Of(query.Up, job)),
		}.Panel(),
		grafana.Stat{
			Title: "Requests that fail", Unit: share, Limits: &grafana.Limits{Yellow: 0.01, Red: 0.05}, None: "nobody asks", Page: alert.Runbook("AuthErrorRateHigh"),
			Help: "Share of the requests that were answered with 5xx.",
			Expr: failing(job),
		}.Panel(),
		grafana.Stat{
			Title: "Turned away", Unit: share, None: "nobody asks", Help: "Share of the requests that were answered with 401 or 403.",
			Expr: "(" + rate(`code=~"401|403"`) + " or vector(0)) / (" + rate() + " > 0)",
		}.Panel(),
		grafana.Stat{
			Title: "Too many", Unit: perSecond, None: "0", Help: "Requests that were answered with 429.",
			Expr: rate(`code="429"`) + " or vector(0)",
		}.Panel(),
		grafana.Stat{
			Title: "Credentials", Unit: perSecond, None: "none", Help: "TURN credentials handed out.",
			Expr: query.Rate("", window, telemetry.AuthCredentials, job),
		}.Panel(),
		grafana.Stat{
			Title: "No config source for", Unit: seconds, Limits: stale, None: "none", Page: alert.Runbook("ConfigStale"),
			Help: "For how long the operator has not been heard. Credentials are handed out meanwhile, for the gateways that are known.",
			Expr: "max(" + query.Of(telemetry.ConfigAge, job) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Clocks differ by", Unit: seconds, Limits: &grafana.Limits{Yellow: 60, Red: 300}, None: "none",
			Help: "Between an auth service and the operator, when they connected. Credentials of a clock that is behind end early.",
			Expr: "max(abs(" + query.Of(telemetry.AuthClockSkew, job) + "))",
		}.Panel(),
	}
}

func durations(job string) grafana.Panel {
	return grafana.Graph{
		Title: "How long answers take", Unit: seconds, Help: "Half of the answers, and all but one in a hundred, take no longer. What is slow is the network of whoever sends a body, or a processor that is too small.",
		Queries: []grafana.Query{
			{Expr: query.Quantile(0.5, window, telemetry.AuthDuration, job), Legend: "p50"},
			{Expr: query.Quantile(0.99, window, telemetry.AuthDuration, job), Legend: "p99"},
		},
	}.Panel()
}

func requests(title, by, legend, help string) grafana.Panel {
	return grafana.Graph{
		Title: title, Unit: perSecond, Stacked: true, Help: help,
		Queries: []grafana.Query{{Expr: query.Rate(by, window, telemetry.AuthRequests, query.Job(query.Auth)), Legend: legend}},
	}.Panel()
}
