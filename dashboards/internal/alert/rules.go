package alert

import (
	"fmt"

	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Templates of the subject of an alert: its Gateway, its pod, and its namespace, which identifies the release.
const (
	gateway     = "{{ $labels.namespace }}/{{ $labels.gateway }}"
	pod         = "{{ $labels.pod }} of gateway " + gateway
	ofRelease   = "{{ with $labels.release }}of release {{ . }} {{ end }}"
	inNamespace = "in namespace {{ $labels.namespace }}"
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
	silent := query.Sum(query.Gateway+", name", query.Of(telemetry.MediaCalls, `state="silent"`))
	return []Alert{
		{
			Name: "NobodyCanCall", Severity: Critical, For: "5m",
			// Fewer attempts may be a single attacker that guesses passwords: each address gets 10 answers a minute.
			Expr: fmt.Sprintf("%s > 100 and %s == 0",
				increase(telemetry.Refused, query.Failed), increase(telemetry.AllocationsTotal)),
			Summary:     "No call starts at gateway " + gateway + ".",
			Description: "In ten minutes {{ $value | humanize }} attempts to start a call failed at gateway " + gateway + ", and none succeeded.",
		},
		{
			Name: "CallsRefused", Severity: Critical, For: "2m",
			Expr:        query.Rate(query.Gateway+", reason", "5m", telemetry.Refused, query.Full) + " > 0",
			Summary:     "Gateway " + gateway + " has no capacity for calls.",
			Description: "Gateway " + gateway + " refuses {{ $value | printf \"%.2f\" }} calls a second: {{ $labels.reason }}.",
		},
		{
			Name: "DataplaneDown", Severity: Critical, For: "2m",
			Expr:        query.Of(query.Up, query.Job(query.Dataplane)) + " == 0",
			Summary:     "A dataplane of gateway " + gateway + " does not answer.",
			Description: "Pod " + pod + " has not answered Prometheus for two minutes. Its calls may have ended.",
		},
		{
			Name: "DataplaneRestarting", Severity: Critical, For: "0m",
			Expr:        "changes(" + query.Of(query.Started, query.Job(query.Dataplane)) + "[30m]) > 1",
			Summary:     "A dataplane of gateway " + gateway + " restarts repeatedly.",
			Description: "Pod " + pod + " has started {{ $value | humanize }} times in half an hour. Every start ends its calls.",
		},
		{
			// Above 80 % a dataplane refuses users and addresses that have many sessions.
			Name: "AllocationsNearCapacity", Severity: Warning, For: "5m",
			Expr: fmt.Sprintf("%s / (%s > 0) > 0.75",
				telemetry.AllocationsActive, telemetry.AllocationsCapacity),
			Summary:     "A dataplane of gateway " + gateway + " is nearly full.",
			Description: "Pod " + pod + " uses {{ $value | humanizePercentage }} of its capacity.",
		},
		{
			// The quota of a user has no such alert: a user with as many calls as it may have is normal.
			Name: "SourceQuotaNearlyUsed", Severity: Warning, For: "0m",
			Expr:        telemetry.QuotaUsed + `{quota="source"} > 0.75`,
			Summary:     "Clients of one address have nearly all calls that sourceQuota of gateway " + gateway + " allows.",
			Description: "One client address uses {{ $value | humanizePercentage }} of sourceQuota at pod " + pod + ". At 100% further calls from the address get error 486.",
		},
		{
			Name: "AuthFailureRateHigh", Severity: Warning, For: "10m",
			Expr: fmt.Sprintf("%s > %s > 0.1",
				rate(telemetry.Refused, query.Credentials), rate(telemetry.AllocationsTotal)),
			Summary:     "More clients fail to authenticate than start a call at gateway " + gateway + ".",
			Description: "{{ $value | printf \"%.2f\" }} requests a second have a credential that gateway " + gateway + " does not accept: more than it has new calls.",
		},
		{
			Name: "PeerDeniedRateHigh", Severity: Warning, For: "15m",
			// ICE tries all addresses of a peer, most of which no route allows: a few denied ones for each call are
			// normal.
			Expr: fmt.Sprintf("%s > 10 * %s > 1",
				rate(telemetry.Refused, query.Denied), rate(telemetry.AllocationsTotal)),
			Summary:     "Clients of gateway " + gateway + " request peers that no route allows.",
			Description: "{{ $value | printf \"%.2f\" }} requests a second are for peers that no route of gateway " + gateway + " allows: more than ten for each call.",
		},
		{
			Name: "MediaOneWay", Severity: Warning, For: "5m",
			// A single client that left may send to a media server that has ended its call.
			Expr: fmt.Sprintf("%s / %s > 0.5 and %s >= 3",
				silent, query.Sum(query.Gateway+", name", telemetry.MediaCalls), silent),
			Summary:     "Calls at gateway " + gateway + " send media and get nothing back.",
			Description: "{{ $value | humanizePercentage }} of the calls that send to {{ $labels.name }} at gateway " + gateway + " have received nothing from it for ten seconds or more.",
		},
		{
			Name: "MediaDropped", Severity: Warning, For: "10m",
			Expr:        rate(telemetry.Dropped, query.Backlog) + " > 10",
			Summary:     "Gateway " + gateway + " cannot send media as fast as it arrives.",
			Description: "Gateway " + gateway + " drops {{ $value | printf \"%.2f\" }} datagrams a second, because the link to a client or a peer is too slow, or its next hop does not answer.",
		},
		{
			Name: "ReceiveBufferFull", Severity: Warning, For: "10m",
			Expr:        query.Rate(query.Gateway+", pod", "10m", telemetry.KernelDropped) + " > 1",
			Summary:     "A dataplane of gateway " + gateway + " does not read as fast as datagrams arrive.",
			Description: "The kernel drops {{ $value | printf \"%.2f\" }} datagrams a second at the sockets of pod " + pod + ". All calls of the pod lose media.",
		},
		{
			Name: "DataplaneFaulty", Severity: Warning, For: "0m",
			Expr:        query.Sum(query.Gateway+", pod", "increase("+telemetry.Panics+"[15m])") + " > 0",
			Summary:     "A dataplane of gateway " + gateway + " has recovered from a panic.",
			Description: "Pod " + pod + " has recovered from {{ $value | humanize }} panics in a quarter of an hour. Each ended at most one call.",
		},
		{
			Name: "JournalOff", Severity: Warning, For: "5m",
			Expr:        telemetry.JournalProblem + " == 1",
			Summary:     "A dataplane of gateway " + gateway + " does not store its sessions.",
			Description: "Pod " + pod + " cannot write its session journal. Its calls continue, but would end if it crashed.",
		},
		{
			Name: "ForwardingOff", Severity: Warning, For: "10m",
			// A single pod has no other pod to forward to.
			Expr: fmt.Sprintf("%s == 1 and on (%s) count by (%s) (%s) > 1",
				telemetry.ForwardProblem, query.Gateway, query.Gateway, telemetry.ForwardProblem),
			Summary:     "A dataplane of gateway " + gateway + " does not forward to the other pods.",
			Description: "Pod " + pod + " cannot exchange datagrams of clients with the other pods of its gateway. Calls whose datagrams arrive at another pod end.",
		},
		{
			// The grace period of pods is an hour by default.
			Name: "DrainingLong", Severity: Warning, For: "45m",
			Expr:        telemetry.AllocationsDraining + " > 0",
			Summary:     "Calls hold a draining dataplane of gateway " + gateway + ".",
			Description: "Pod " + pod + " has drained for 45 minutes and has {{ $value | humanize }} calls, which its end will cut.",
		},
		{
			Name: "ConfigRejected", Severity: Warning, For: "5m",
			Expr:        telemetry.ConfigProblem + " == 1",
			Summary:     "A dataplane of gateway " + gateway + " does not run its config.",
			Description: "Pod " + pod + " rejects its last config, or cannot run a part of it. The last good config stays in force.",
		},
		{
			Name: "ConfigStale", Severity: Warning, For: "1m",
			Expr:        telemetry.ConfigAge + " > 300",
			Summary:     "{{ $labels.job }} has had no connection to the operator for five minutes.",
			Description: "Pod {{ $labels.pod }} in namespace {{ $labels.namespace }} runs a config that was last confirmed {{ $value | humanizeDuration }} ago. Changes do not take effect.",
		},
		{
			Name: "CertificateExpiring", Severity: Warning, For: "1h",
			Expr:        telemetry.CertificateExpiry + " - time() < 7 * 86400",
			Summary:     "A certificate of gateway " + gateway + " expires within a week.",
			Description: "The certificate of listener {{ $labels.name }} expires in {{ $value | humanizeDuration }}. After that, clients cannot connect.",
		},
	}
}

func controlPlane() []Alert {
	return []Alert{
		{
			Name: "OperatorDown", Severity: Warning, For: "5m", Expr: gone(query.Operator),
			Summary:     "No operator " + ofRelease + "runs " + inNamespace + ".",
			Description: "No operator " + ofRelease + inNamespace + " has answered Prometheus for five minutes. Calls continue; changes do not take effect.",
		},
		{
			Name: "GatewayNotPublished", Severity: Critical, For: "5m",
			Expr:        "max by (namespace) (" + telemetry.OperatorConfigsMissing + ") > 0",
			Summary:     "Gateways without a config " + inNamespace + ": {{ $value }}.",
			Description: "Gateways that were served before the operator " + inNamespace + " started, and that have had no config for five minutes: {{ $value }}. New dataplane pods start with an old config, and the auth service issues no credentials for them.",
		},
		{
			Name: "OperatorNoLeader", Severity: Warning, For: "2m",
			Expr:        query.Sum("namespace", telemetry.OperatorLeader) + " == 0",
			Summary:     "No operator is the leader " + inNamespace + ".",
			Description: "No replica of the operator " + inNamespace + " writes to the API server: new Gateways get no pods, and statuses are outdated. Dataplanes still get their configs.",
		},
		{
			Name: "OperatorPaused", Severity: Warning, For: "2m",
			Expr:        query.Sum("namespace", telemetry.OperatorPaused) + " > 0",
			Summary:     "The operator " + inNamespace + " is paused.",
			Description: "The operator " + inNamespace + " writes nothing, because an older installation has the same controller name. Condition ControllerConflict of the GatewayClass names both.",
		},
		{
			Name: "OperatorWritesWithoutEnd", Severity: Warning, For: "1h",
			Expr:        query.Rate("kind, verb", "15m", telemetry.OperatorWrites) + " > 0.5",
			Summary:     "The operator writes {{ $labels.kind }} repeatedly.",
			Description: "For an hour the operator has sent {{ $value | printf \"%.2f\" }} writes a second ({{ $labels.verb }} {{ $labels.kind }}). Another writer reverts its fields, or the API server rejects them.",
		},
		{
			Name: "OperatorWriteErrors", Severity: Warning, For: "15m",
			Expr:        query.Sum("", "increase("+telemetry.OperatorWriteErrors+"[15m])") + " > 3",
			Summary:     "The operator cannot write its objects.",
			Description: "In a quarter of an hour {{ $value | humanize }} attempts of the operator to write an object have failed. It retries.",
		},
		{
			Name: "AutoscalingStuck", Severity: Warning, For: "30m",
			// Brief errors are normal after the start of a pod or an operator. A stream that KEDA ends has code
			// Canceled.
			Expr: query.Sum("code",
				"increase("+query.Of(telemetry.OperatorScalerAnswers, query.Unanswered)+"[10m])") + " > 0",
			Summary:     "KEDA does not get the number of calls ({{ $labels.code }}).",
			Description: "For half an hour the operator has answered KEDA with the error {{ $labels.code }}, {{ $value | humanize }} times in the last ten minutes. The Gateway keeps its number of pods, also if it has more calls.",
		},
		{
			Name: "GatewayNotProgrammed", Severity: Warning, For: "15m",
			Expr:        "max(" + telemetry.OperatorProblems + ") > 0",
			Summary:     "{{ $value }} objects have a problem.",
			Description: "{{ $value }} objects have had a condition that reports a problem for 15 minutes. The last good state stays in force.",
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
			Summary:     "No auth service " + ofRelease + "runs " + inNamespace + ".",
			Description: "No auth service " + ofRelease + inNamespace + " has answered Prometheus for two minutes. Clients get no credentials and cannot start calls. Running calls continue.",
		},
		{
			Name: "AuthErrorRateHigh", Severity: Critical, For: "5m",
			Expr:        fmt.Sprintf("%s / %s > 0.05", bad, all),
			Summary:     "The auth service fails.",
			Description: "The auth service answers {{ $value | humanizePercentage }} of all requests with 5xx. These callers get no credential and cannot start a call.",
		},
		{
			Name: "AuthRefusalRateHigh", Severity: Warning, For: "15m",
			// A few refusals are errors of a single client. Invalid tokens (401) are ignored: any host can send them.
			Expr:        fmt.Sprintf("%s / scalar(%s) > 0.2 and %s > 0.1", refused, asked, refused),
			Summary:     "The auth service refuses many requests ({{ $labels.code }}).",
			Description: "For a quarter of an hour the auth service has answered {{ $value | humanizePercentage }} of all requests with {{ $labels.code }}. These callers get no credential and cannot start a call.",
		},
		{
			// A JWK set is fetched every ten minutes, and a file is read at each scrape.
			Name: "AuthKeysStale", Severity: Warning, For: "5m",
			Expr:        "max by (namespace) (" + telemetry.AuthKeysAge + ") > 3600",
			Summary:     "The auth service " + inNamespace + " cannot read the keys of tokens or its policy.",
			Description: "An auth service " + inNamespace + " has not read the keys that verify tokens, or its policy file, for {{ $value | humanizeDuration }}. It refuses tokens that are signed with a newer key, and a changed policy has no effect.",
		},
	}
}

// gone returns an expression for the releases of which no target of a job is up: its targets are down, or they existed
// within the last day and no longer exist. A job that is absent for longer does not alert, because not every service is
// installed and releases are uninstalled on purpose. Targets that no release labels, such as those of an older chart,
// count as one release. Their absence does not alert if the namespace has other targets, which may have replaced them.
func gone(job string) string {
	most := func(by, window string, matchers ...string) string {
		up := query.Of(query.Up, append([]string{query.Job(job)}, matchers...)...)
		if window != "" {
			up = "max_over_time(" + up + "[" + window + "])"
		}
		return "max by (" + by + ") (" + up + ")"
	}
	const release = "namespace, release"
	return fmt.Sprintf("%s == 0 or (%s == 1 unless %s) or (%s == 1 unless %s)",
		most(release, ""), most(release, "1d", `release!=""`), most(release, ""),
		most("namespace", "1d", `release=""`), most("namespace", ""))
}
