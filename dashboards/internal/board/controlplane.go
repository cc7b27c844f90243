package board

import (
	"fmt"

	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// controlPlane shows whether declarations reach the dataplanes.
func controlPlane() grafana.Board {
	return board("control-plane", "Control plane", "Does what people write arrive at the dataplanes?", nil, grafana.Arrange(
		grafana.Section{
			Title: "Do changes reach the dataplanes?", Lines: []grafana.Line{{Height: 4, Panels: operatorVitals()}},
		},
		grafana.Section{Title: "Work", Lines: []grafana.Line{
			{Height: 8, Panels: []grafana.Panel{translations(), translationTime(), writes(), leader()}},
			{Height: 8, Panels: []grafana.Panel{published(), hearing(), restarts()}},
		}},
		grafana.Section{Title: "Config discovery", Lines: []grafana.Line{
			{Height: 7, Panels: []grafana.Panel{readers(), strangers()}},
		}},
		grafana.Section{Title: "Autoscaling", Lines: []grafana.Line{{Height: 7, Panels: []grafana.Panel{scaling()}}}},
		process(query.Operator, "{{pod}}"),
	))
}

func operatorVitals() []grafana.Panel {
	up := query.Of(query.Up, query.Job(query.Operator))
	return []grafana.Panel{
		grafana.Stat{
			Title: "Operators up", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "none",
			Page: alert.Runbook("OperatorDown"),
			Help: "Without an operator changes do not take effect; calls continue.",
			Expr: query.Sum("", up),
		}.Panel(),
		grafana.Stat{
			Title: "Leaders", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "no cluster",
			Page: alert.Runbook("OperatorNoLeader"),
			Help: "The replica that writes to the API server.",
			Expr: query.Sum("", query.Of(telemetry.OperatorLeader)),
		}.Panel(),
		grafana.Stat{
			Title: "Objects with a problem", Unit: count, Limits: any1, None: "no operator",
			Page: alert.Runbook("GatewayNotProgrammed"),
			Help: "Objects with a condition that reports a problem.",
			Expr: "max(" + query.Of(telemetry.OperatorProblems) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Failed writes", Unit: count, Limits: any1, None: "no cluster",
			Page: alert.Runbook("OperatorWriteErrors"),
			Help: "In ten minutes. Failed writes are retried.",
			Expr: query.Sum("", "increase("+query.Of(telemetry.OperatorWriteErrors)+"[10m])"),
		}.Panel(),
		grafana.Stat{
			Title: "Gateways served", Unit: count, None: "none", Help: "Published configs.",
			Expr: "max(" + query.Of(telemetry.OperatorConfigs) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Dataplanes without operator", Unit: count, Limits: any1, None: "no dataplane",
			Page: alert.Runbook("ConfigStale"),
			Help: "Their calls continue; changes do not take effect.",
			Expr: fmt.Sprintf("count(%s) - count(%s == 0) or count(%s)", dataplanesAge, dataplanesAge, dataplanesAge),
		}.Panel(),
	}
}

var dataplanesAge = query.Of(telemetry.ConfigAge, query.Job(query.Dataplane))

func translations() grafana.Panel {
	return grafana.Graph{
		Title: "Translations", Unit: perSecond,
		Help:    "Of Gateways and other objects. The rate follows the number of changes, not the number of objects.",
		Queries: []grafana.Query{{Expr: query.Rate("pod", window, telemetry.OperatorTranslations), Legend: "{{pod}}"}},
	}.Panel()
}

func translationTime() grafana.Panel {
	return grafana.Graph{
		Title: "Time of one translation", Unit: seconds,
		Help: "The operator translates one object at a time. Budgets keep a translation below 100 ms.",
		Queries: []grafana.Query{
			{Expr: query.Quantile(0.5, window, telemetry.OperatorTranslationDuration), Legend: "p50"},
			{Expr: query.Quantile(0.99, window, telemetry.OperatorTranslationDuration), Legend: "p99"},
		},
	}.Panel()
}

func writes() grafana.Panel {
	return grafana.Graph{
		Title: "Writes to the API server", Unit: perSecond, Stacked: true,
		Page: alert.Runbook("OperatorWritesWithoutEnd"),
		Help: "If the cluster is in the desired state, the operator writes nothing.",
		Queries: []grafana.Query{
			{Expr: query.Rate("kind, verb", window, telemetry.OperatorWrites), Legend: "{{verb}} {{kind}}"},
			{Expr: query.Rate("", window, telemetry.OperatorWriteErrors), Legend: "failed"},
		},
	}.Panel()
}

func leader() grafana.Panel {
	return grafana.Graph{
		Title: "Leader", Unit: count, Share: true, Page: alert.Runbook("OperatorNoLeader"), Help: "1 for the leader.",
		Queries: []grafana.Query{
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorLeader) + ")", Legend: "{{pod}}"},
		},
	}.Panel()
}

func published() grafana.Panel {
	return grafana.Graph{
		Title: "Configs and problems", Unit: count,
		Help: "Configs that each replica serves (the numbers should be equal), objects with a problem, and objects that were not read.",
		Queries: []grafana.Query{
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorConfigs) + ")", Legend: "{{pod}} configs"},
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorConfigsMissing) + ")", Legend: "{{pod}} missing"},
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorProblems) + ")", Legend: "{{pod}} problems"},
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorUnread) + ")", Legend: "{{pod}} not read"},
		},
	}.Panel()
}

func hearing() grafana.Panel {
	return grafana.Graph{
		Title: "Dataplanes by state", Unit: count,
		Help: "Number of dataplanes that run their config, have rejected one, or have no operator.",
		Queries: []grafana.Query{
			{Expr: "count(" + dataplanesAge + " == 0)", Legend: "hear the operator"},
			{Expr: "count(" + dataplanesAge + " > 0)", Legend: "no operator"},
			{Expr: query.Sum("", query.Of(telemetry.ConfigProblem)), Legend: "have a problem"},
		},
	}.Panel()
}

func readers() grafana.Panel {
	return grafana.Graph{
		Title: "Readers of configs", Unit: count, Stacked: true,
		Help: "Config discovery streams of dataplanes and auth services, by replica.",
		Queries: []grafana.Query{
			{Expr: query.Sum("pod", query.Of(telemetry.OperatorDiscoveryStreams)), Legend: "{{pod}}"},
		},
	}.Panel()
}

func strangers() grafana.Panel {
	return grafana.Graph{
		Title: "Refused readers, by reason", Unit: perSecond, Stacked: true,
		Help: "Refused requests for configs, and refused reports.",
		Queries: []grafana.Query{
			{Expr: query.Rate("reason", window, telemetry.OperatorDiscoveryRefused) + " > 0", Legend: "{{reason}}"},
		},
	}.Panel()
}

func scaling() grafana.Panel {
	return grafana.Graph{
		Title: "Answers to KEDA, by code", Unit: perSecond, Stacked: true, Page: alert.Runbook("AutoscalingStuck"),
		Help: "If a pod of a Gateway has not reported its allocations, the operator returns Unavailable, and the number of pods stays. Without KEDA the panel is empty.",
		Queries: []grafana.Query{
			{Expr: query.Rate("code", window, telemetry.OperatorScalerAnswers) + " > 0", Legend: "{{code}}"},
		},
	}.Panel()
}

func restarts() grafana.Panel {
	return grafana.Graph{
		Title: "Dataplane restarts", Unit: count, Page: alert.Runbook("DataplaneRestarting"),
		Help: "In an hour: restarted processes, and among them those that the operator runs on its host. A restart ends the calls of a process.",
		Queries: []grafana.Query{
			{Expr: query.Sum(
				query.Gateway, "changes("+query.Of(query.Started, query.Job(query.Dataplane))+"[1h])",
			), Legend: nameOfGateway},
			{Expr: query.Sum(
				"", "increase("+query.Of(telemetry.OperatorDataplaneRestarts)+"[1h])",
			), Legend: "on the operator's host"},
		},
	}.Panel()
}
