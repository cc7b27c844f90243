package alert

import (
	"fmt"

	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Templates of the subject of an alert: its Gateway, its pod, and its namespace, which identifies the release.
const (
	who   = "{{ $labels.namespace }}/{{ $labels.gateway }}"
	where = "{{ $labels.pod }} of gateway " + who
	here  = "in namespace {{ $labels.namespace }}"
)

// Groups returns all alerts.
func Groups() []Group {
	return []Group{
		{Name: "stunner-dataplane", Alerts: dataplane()},
		{Name: "stunner-control-plane", Alerts: controlPlane()},
		{Name: "stunner-auth", Alerts: auth()},
	}
}

func dataplane() []Alert {
	increase := func(metric string, matchers ...string) string {
		return query.Sum(query.Gateway, "increase("+query.Of(metric, matchers...)+"[10m])")
	}
	rate := func(metric string, matchers ...string) string {
		return query.Rate(query.Gateway, "10m", metric, matchers...)
	}
	return []Alert{
		{
			Name: "NobodyCanCall", Severity: Critical, For: "5m",
			// Fewer attempts may be a single attacker that guesses passwords: each address gets 10 answers a minute.
			Expr:        fmt.Sprintf("%s > 100 and %s == 0", increase(telemetry.Refused, query.Failed), increase(telemetry.AllocationsTotal)),
			Summary:     "Nobody gets a call through gateway " + who + ".",
			Description: "In ten minutes {{ $value | humanize }} attempts to start a call failed at gateway " + who + ", and none came about.",
		},
		{
			Name: "CallsRefused", Severity: Critical, For: "2m",
			Expr:        query.Rate(query.Gateway+", reason", "5m", telemetry.Refused, query.Full) + " > 0",
			Summary:     "Gateway " + who + " has no room for calls.",
			Description: "Gateway " + who + " refuses {{ $value | printf \"%.2f\" }} calls a second: {{ $labels.reason }}.",
		},
		{
			Name: "DataplaneDown", Severity: Critical, For: "2m",
			Expr:        query.Of(query.Up, query.Job(query.Dataplane)) + " == 0",
			Summary:     "A dataplane of gateway " + who + " does not answer.",
			Description: "Pod " + where + " has not answered Prometheus for two minutes. Its calls may have ended.",
		},
		{
			Name: "DataplaneRestarting", Severity: Critical, For: "0m",
			Expr:        "changes(" + query.Of(query.Started, query.Job(query.Dataplane)) + "[30m]) > 1",
			Summary:     "A dataplane of gateway " + who + " dies again and again.",
			Description: "Pod " + where + " has started {{ $value | humanize }} times in half an hour. Every start ends its calls.",
		},
		{
			// Above 80 % a dataplane refuses users and addresses that have many sessions.
			Name: "AllocationsNearCapacity", Severity: Warning, For: "5m",
			Expr:        fmt.Sprintf("%s / (%s > 0) > 0.75", telemetry.AllocationsActive, telemetry.AllocationsCapacity),
			Summary:     "A dataplane of gateway " + who + " is nearly full.",
			Description: "Pod " + where + " has {{ $value | humanizePercentage }} of the calls that it can bear.",
		},
		{
			Name: "AuthFailureRateHigh", Severity: Warning, For: "10m",
			Expr:        fmt.Sprintf("%s > %s > 0.1", rate(telemetry.Refused, query.Credentials), rate(telemetry.AllocationsTotal)),
			Summary:     "More clients fail than get in at gateway " + who + ".",
			Description: "{{ $value | printf \"%.2f\" }} requests a second show a credential that gateway " + who + " does not accept: more than there are calls.",
		},
		{
			Name: "PeerDeniedRateHigh", Severity: Warning, For: "15m",
			// ICE tries all addresses of a peer, most of which no route allows: a few denied ones for each call are
			// normal.
			Expr:        fmt.Sprintf("%s > 10 * %s > 1", rate(telemetry.Refused, query.Denied), rate(telemetry.AllocationsTotal)),
			Summary:     "Clients of gateway " + who + " ask for peers that no route allows.",
			Description: "{{ $value | printf \"%.2f\" }} requests a second are for peers that no route of gateway " + who + " allows: more than ten for each call.",
		},
		{
			Name: "MediaDropped", Severity: Warning, For: "10m",
			Expr:        rate(telemetry.Dropped, query.Backlog) + " > 10",
			Summary:     "Gateway " + who + " cannot send media as fast as it arrives.",
			Description: "Gateway " + who + " drops {{ $value | printf \"%.2f\" }} datagrams a second, because the way to a client or a peer is too slow or its next hop does not answer.",
		},
		{
			Name: "ReceiveBufferFull", Severity: Warning, For: "10m",
			Expr:        query.Rate(query.Gateway+", pod", "10m", telemetry.KernelDropped) + " > 1",
			Summary:     "A dataplane of gateway " + who + " does not read as fast as datagrams arrive.",
			Description: "The kernel drops {{ $value | printf \"%.2f\" }} datagrams a second that are for pod " + where + ". All calls of the pod lose media.",
		},
		{
			Name: "DataplaneFaulty", Severity: Warning, For: "0m",
			Expr:        query.Sum(query.Gateway+", pod", "increase("+telemetry.Panics+"[15m])") + " > 0",
			Summary:     "A dataplane of gateway " + who + " has recovered from a fault.",
			Description: "Pod " + where + " has recovered from {{ $value | humanize }} panics in a quarter of an hour. Each ended at most one call.",
		},
		{
			Name: "ConfigRejected", Severity: Warning, For: "5m",
			Expr:        telemetry.ConfigProblem + " == 1",
			Summary:     "A dataplane of gateway " + who + " does not run its config.",
			Description: "Pod " + where + " keeps out the last config, or cannot run a part of it. It goes on with the last good one.",
		},
		{
			Name: "ConfigStale", Severity: Warning, For: "1m",
			Expr:        telemetry.ConfigAge + " > 300",
			Summary:     "{{ $labels.job }} has not heard the operator for five minutes.",
			Description: "Pod {{ $labels.pod }} in namespace {{ $labels.namespace }} goes on with a config that was last confirmed {{ $value | humanizeDuration }} ago. Changes do not arrive.",
		},
		{
			Name: "CertificateExpiring", Severity: Warning, For: "1h",
			Expr:        telemetry.CertificateExpiry + " - time() < 7 * 86400",
			Summary:     "A certificate of gateway " + who + " ends within a week.",
			Description: "The certificate of listener {{ $labels.name }} ends in {{ $value | humanizeDuration }}. Clients will not connect from then on.",
		},
	}
}

func controlPlane() []Alert {
	return []Alert{
		{
			Name: "OperatorDown", Severity: Warning, For: "5m", Expr: gone(query.Operator),
			Summary:     "No operator runs " + here + ".",
			Description: "No operator " + here + " has answered Prometheus for five minutes. Calls go on; what people change does not arrive.",
		},
		{
			Name: "GatewayNotPublished", Severity: Critical, For: "5m",
			Expr:        "max by (namespace) (" + telemetry.OperatorConfigsMissing + ") > 0",
			Summary:     "Gateways without a config " + here + ": {{ $value }}.",
			Description: "Gateways that were served before the operator " + here + " started, and that have had no config for five minutes: {{ $value }}. New dataplanes begin with an old one, and the auth service gives no credentials for them.",
		},
		{
			Name: "OperatorNoLeader", Severity: Warning, For: "2m",
			Expr:        query.Sum("namespace", telemetry.OperatorLeader) + " == 0",
			Summary:     "No operator leads " + here + ".",
			Description: "No replica of the operator " + here + " writes to the API server: new Gateways get no pods, and statuses are old. Dataplanes still get their configs.",
		},
		{
			Name: "OperatorWritesWithoutEnd", Severity: Warning, For: "1h",
			Expr:        query.Rate("kind, verb", "15m", telemetry.OperatorWrites) + " > 0.5",
			Summary:     "The operator writes {{ $labels.kind }} without end.",
			Description: "For an hour the operator has sent {{ $value | printf \"%.2f\" }} writes a second ({{ $labels.verb }} {{ $labels.kind }}). Somebody sets back what it sets, or the API server refuses it.",
		},
		{
			Name: "OperatorWriteErrors", Severity: Warning, For: "15m",
			Expr:        query.Sum("", "increase("+telemetry.OperatorWriteErrors+"[15m])") + " > 3",
			Summary:     "The operator cannot write what it should.",
			Description: "In a quarter of an hour the operator has failed {{ $value | humanize }} times to bring an object to where it should be. It tries again.",
		},
		{
			Name: "AutoscalingStuck", Severity: Warning, For: "30m",
			// Brief errors are normal after the start of a pod or an operator. A stream that KEDA ends has code
			// Canceled.
			Expr:        query.Sum("code", "increase("+query.Of(telemetry.OperatorScalerAnswers, query.Unanswered)+"[10m])") + " > 0",
			Summary:     "KEDA is not told how many calls there are ({{ $labels.code }}).",
			Description: "For half an hour the operator has told KEDA {{ $labels.code }} in the place of a number, {{ $value | humanize }} times in the last ten minutes. The Gateway concerned keeps its pods: more calls bring no more of them.",
		},
		{
			Name: "GatewayNotProgrammed", Severity: Warning, For: "15m",
			Expr:        "max(" + telemetry.OperatorProblems + ") > 0",
			Summary:     "{{ $value }} objects have a problem.",
			Description: "{{ $value }} objects have had a condition for 15 minutes that says what is wrong with them. Gateways go on with what was good last.",
		},
	}
}

func auth() []Alert {
	all := query.Rate("", "5m", telemetry.AuthRequests)
	bad := query.Rate("", "5m", telemetry.AuthRequests, `code=~"5.."`)
	asked := query.Rate("", "5m", telemetry.AuthRequests, `code!="401"`, `route!="other"`)
	refused := query.Rate("code", "5m", telemetry.AuthRequests, `code=~"403|404|429"`, `route!="other"`)
	return []Alert{
		{
			Name: "AuthDown", Severity: Critical, For: "2m", Expr: gone(query.Auth),
			Summary:     "No auth service runs " + here + ".",
			Description: "No auth service " + here + " has answered Prometheus for two minutes. Its clients get no credentials: nobody starts a call. Calls that are up go on.",
		},
		{
			Name: "AuthErrorRateHigh", Severity: Critical, For: "5m",
			Expr:        fmt.Sprintf("%s / %s > 0.05", bad, all),
			Summary:     "The auth service fails.",
			Description: "The auth service answers {{ $value | humanizePercentage }} of all requests with 5xx. Who asks gets no credential, and cannot start a call.",
		},
		{
			Name: "AuthRefusalRateHigh", Severity: Warning, For: "15m",
			// A few refusals are errors of a single client. Invalid tokens (401) are ignored: any host can send them.
			Expr:        fmt.Sprintf("%s / scalar(%s) > 0.2 and %s > 0.1", refused, asked, refused),
			Summary:     "The auth service refuses many requests ({{ $labels.code }}).",
			Description: "For a quarter of an hour the auth service has answered {{ $value | humanizePercentage }} of all requests with {{ $labels.code }}. Who asks gets no credential, and cannot start a call.",
		},
	}
}

// gone returns an expression for the namespaces in which no target of a job is up: its targets are down, or they
// existed within the last day and no longer exist. A job that is absent for longer does not alert, because not every
// service is installed and releases are uninstalled on purpose.
func gone(job string) string {
	up := query.Of(query.Up, query.Job(job))
	most := func(expr string) string { return "max by (namespace) (" + expr + ")" }
	return fmt.Sprintf("%s == 0 or (%s == 1 unless %s)", most(up), most("max_over_time("+up+"[1d])"), most(up))
}
