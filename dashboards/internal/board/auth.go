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
		grafana.Section{
			Title: "Do web apps get credentials?", Lines: []grafana.Line{{Height: 4, Panels: authVitals(job)}},
		},
		grafana.Section{Title: "Requests", Lines: []grafana.Line{{Height: 9, Panels: []grafana.Panel{
			requests(
				"By status", "code", "{{code}}",
				"4xx is what a client did wrong: 401 no good token, 403 not allowed, 429 too many requests. 5xx is ours.",
			),
			requests(
				"By route", "route", "{{route}}", "The pattern that a request matched; other is what matched none.",
			),
			grafana.Graph{
				Title: "Credentials", Unit: perSecond,
				Help: "Issued TURN credentials: one for each Gateway in a response.",
				Queries: []grafana.Query{
					{Expr: query.Rate("pod", window, telemetry.AuthCredentials, job), Legend: "{{pod}}"},
				},
			}.Panel(),
			age(query.Auth, "{{pod}}", ""),
		}}, {Height: 7, Panels: []grafana.Panel{
			durations(job),
			grafana.Graph{
				Title: "Refused by reason", Unit: perSecond, Stacked: true,
				Help: "Requests that got no credentials. docs/reference/auth-refusals.md has the reasons with their remedies.",
				Queries: []grafana.Query{
					{Expr: query.Rate("reason", window, telemetry.AuthRefused, job) + " > 0", Legend: "{{reason}}"},
				},
			}.Panel(),
			grafana.Graph{
				Title: "Age of the keys and the policy", Unit: seconds,
				Help: "Time since the keys that verify tokens and the policy file were read, the least recent of them. A JWK set is fetched every ten minutes.",
				Queries: []grafana.Query{
					{Expr: "max by (pod) (" + query.Of(telemetry.AuthKeysAge, job) + ")", Legend: "{{pod}}"},
				},
			}.Panel(),
		}}}},
		process(query.Auth, "{{pod}}"),
	))
}

func authVitals(job string) []grafana.Panel {
	rate := func(matchers ...string) string {
		return query.Rate("", window, telemetry.AuthRequests, append(matchers, job)...)
	}
	return []grafana.Panel{
		grafana.Stat{
			Title: "Auth services up", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true},
			None: "none", Page: alert.Runbook("AuthDown"),
			Help: "Without an auth service no client can start a call; running calls continue.",
			Expr: query.Sum("", query.Of(query.Up, job)),
		}.Panel(),
		grafana.Stat{
			Title: "Requests that fail", Unit: share, Limits: &grafana.Limits{Yellow: 0.01, Red: 0.05},
			None: "no requests", Page: alert.Runbook("AuthErrorRateHigh"),
			Help: "Share of the requests that were answered with 5xx.",
			Expr: failing(job),
		}.Panel(),
		grafana.Stat{
			Title: "Unauthorized", Unit: share, None: "no requests",
			Help: "Share of the requests that were answered with 401 or 403.",
			Expr: "(" + rate(`code=~"401|403"`) + " or vector(0)) / (" + rate() + " > 0)",
		}.Panel(),
		grafana.Stat{
			Title: "Too many", Unit: perSecond, None: "0", Help: "Requests that were answered with 429.",
			Expr: rate(`code="429"`) + " or vector(0)",
		}.Panel(),
		grafana.Stat{
			Title: "Credentials", Unit: perSecond, None: "none", Help: "Issued TURN credentials.",
			Expr: query.Rate("", window, telemetry.AuthCredentials, job),
		}.Panel(),
		grafana.Stat{
			Title: "No config source for", Unit: seconds, Limits: stale, None: "none",
			Page: alert.Runbook("ConfigStale"),
			Help: "Time without a connection to the operator. The service issues credentials for the Gateways that it has received before.",
			Expr: "max(" + query.Of(telemetry.ConfigAge, job) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Clocks differ by", Unit: seconds, Limits: &grafana.Limits{Yellow: 60, Red: 300}, None: "none",
			Help: "Difference between the clocks of an auth service and the operator at the last connection. If the clock of the service is behind, credentials expire early.",
			Expr: "max(abs(" + query.Of(telemetry.AuthClockSkew, job) + "))",
		}.Panel(),
	}
}

func durations(job string) grafana.Panel {
	return grafana.Graph{
		Title: "Response time", Unit: seconds,
		Help: "50th and 99th percentile. The usual causes of slow responses are a slow upload of the request body, or too little CPU.",
		Queries: []grafana.Query{
			{Expr: query.Quantile(0.5, window, telemetry.AuthDuration, job), Legend: "p50"},
			{Expr: query.Quantile(0.99, window, telemetry.AuthDuration, job), Legend: "p99"},
		},
	}.Panel()
}

func requests(title, by, legend, help string) grafana.Panel {
	return grafana.Graph{
		Title: title, Unit: perSecond, Stacked: true, Help: help,
		Queries: []grafana.Query{
			{Expr: query.Rate(by, window, telemetry.AuthRequests, query.Job(query.Auth)), Legend: legend},
		},
	}.Panel()
}
