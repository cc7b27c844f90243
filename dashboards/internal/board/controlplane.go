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
		grafana.Section{Title: "Does what people write arrive?", Lines: []grafana.Line{{Height: 4, Panels: operatorVitals()}}},
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
			Title: "Operators up", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "none", Page: alert.Runbook("OperatorDown"),
			Help: "Without one nothing changes, and calls go on.",
			Expr: query.Sum("", up),
		}.Panel(),
		grafana.Stat{
			Title: "Leaders", Unit: count, Limits: &grafana.Limits{Yellow: 1, Red: 1, Below: true}, None: "no cluster", Page: alert.Runbook("OperatorNoLeader"),
			Help: "The replica that writes to the API server.",
			Expr: query.Sum("", query.Of(telemetry.OperatorLeader)),
		}.Panel(),
		grafana.Stat{
			Title: "Objects with a problem", Unit: count, Limits: any1, None: "not told", Page: alert.Runbook("GatewayNotProgrammed"),
			Help: "Objects that have a condition which says that something is wrong.",
			Expr: "max(" + query.Of(telemetry.OperatorProblems) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Failed writes", Unit: count, Limits: any1, None: "no cluster", Page: alert.Runbook("OperatorWriteErrors"),
			Help: "In ten minutes. What fails is tried again.",
			Expr: query.Sum("", "increase("+query.Of(telemetry.OperatorWriteErrors)+"[10m])"),
		}.Panel(),
		grafana.Stat{
			Title: "Gateways served", Unit: count, None: "none", Help: "Configs that are published.",
			Expr: "max(" + query.Of(telemetry.OperatorConfigs) + ")",
		}.Panel(),
		grafana.Stat{
			Title: "Dataplanes that hear no operator", Unit: count, Limits: any1, None: "no dataplane", Page: alert.Runbook("ConfigStale"),
			Help: "Their calls go on; changes do not arrive.",
			Expr: fmt.Sprintf("count(%s) - count(%s == 0) or count(%s)", dataplanesAge, dataplanesAge, dataplanesAge),
		}.Panel(),
	}
}

var dataplanesAge = query.Of(telemetry.ConfigAge, query.Job(query.Dataplane))

func translations() grafana.Panel {
	return grafana.Graph{
		Title: "Translations", Unit: perSecond, Help: "Of Gateways and other objects. It follows what changes in the cluster, not how much there is.",
		Queries: []grafana.Query{{Expr: query.Rate("pod", window, telemetry.OperatorTranslations), Legend: "{{pod}}"}},
	}.Panel()
}

func translationTime() grafana.Panel {
	return grafana.Graph{
		Title: "Time of one translation", Unit: seconds, Help: "Nothing else is translated meanwhile. Budgets keep it below 100 ms.",
		Queries: []grafana.Query{
			{Expr: query.Quantile(0.5, window, telemetry.OperatorTranslationDuration), Legend: "p50"},
			{Expr: query.Quantile(0.99, window, telemetry.OperatorTranslationDuration), Legend: "p99"},
		},
	}.Panel()
}

func writes() grafana.Panel {
	return grafana.Graph{
		Title: "Writes to the API server", Unit: perSecond, Stacked: true, Page: alert.Runbook("OperatorWritesWithoutEnd"),
		Help: "Over a cluster that is as it should be the operator writes nothing.",
		Queries: []grafana.Query{
			{Expr: query.Rate("kind, verb", window, telemetry.OperatorWrites), Legend: "{{verb}} {{kind}}"},
			{Expr: query.Rate("", window, telemetry.OperatorWriteErrors), Legend: "failed"},
		},
	}.Panel()
}

func leader() grafana.Panel {
	return grafana.Graph{
		Title: "Who leads", Unit: count, Share: true, Page: alert.Runbook("OperatorNoLeader"), Help: "1 for the replica that writes.",
		Queries: []grafana.Query{{Expr: "max by (pod) (" + query.Of(telemetry.OperatorLeader) + ")", Legend: "{{pod}}"}},
	}.Panel()
}

func published() grafana.Panel {
	return grafana.Graph{
		Title: "Configs and problems", Unit: count, Help: "Configs that each replica serves, which should be the same number, and objects with a problem.",
		Queries: []grafana.Query{
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorConfigs) + ")", Legend: "{{pod}} configs"},
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorConfigsMissing) + ")", Legend: "{{pod}} missing"},
			{Expr: "max by (pod) (" + query.Of(telemetry.OperatorProblems) + ")", Legend: "{{pod}} problems"},
		},
	}.Panel()
}

func hearing() grafana.Panel {
	return grafana.Graph{
		Title: "Dataplanes by what they run", Unit: count, Help: "How many run their config, keep one out, or hear no operator.",
		Queries: []grafana.Query{
			{Expr: "count(" + dataplanesAge + " == 0)", Legend: "hear the operator"},
			{Expr: "count(" + dataplanesAge + " > 0)", Legend: "hear nobody"},
			{Expr: query.Sum("", query.Of(telemetry.ConfigProblem)), Legend: "have a problem"},
		},
	}.Panel()
}

func readers() grafana.Panel {
	return grafana.Graph{
		Title: "Readers of configs", Unit: count, Stacked: true, Help: "Streams over which dataplanes and auth services read configs, by the replica that serves them.",
		Queries: []grafana.Query{{Expr: query.Sum("pod", query.Of(telemetry.OperatorDiscoveryStreams)), Legend: "{{pod}}"}},
	}.Panel()
}

func strangers() grafana.Panel {
	return grafana.Graph{
		Title: "Readers turned away, by reason", Unit: perSecond, Stacked: true, Help: "Requests for configs, and reports, that were refused.",
		Queries: []grafana.Query{{Expr: query.Rate("reason", window, telemetry.OperatorDiscoveryRefused) + " > 0", Legend: "{{reason}}"}},
	}.Panel()
}

func scaling() grafana.Panel {
	return grafana.Graph{
		Title: "Answers to KEDA, by code", Unit: perSecond, Stacked: true, Page: alert.Runbook("AutoscalingStuck"),
		Help:    "While the operator does not know the allocations of all pods of a Gateway it answers Unavailable, and their number stays. Without KEDA there is nothing here.",
		Queries: []grafana.Query{{Expr: query.Rate("code", window, telemetry.OperatorScalerAnswers) + " > 0", Legend: "{{code}}"}},
	}.Panel()
}

func restarts() grafana.Panel {
	return grafana.Graph{
		Title: "Dataplanes that died", Unit: count, Page: alert.Runbook("DataplaneRestarting"),
		Help: "In an hour: processes that were started anew, and those of them that the operator itself runs on its host. A restart ends the calls of a process.",
		Queries: []grafana.Query{
			{Expr: query.Sum(query.Gateway, "changes("+query.Of(query.Started, query.Job(query.Dataplane))+"[1h])"), Legend: nameOfGateway},
			{Expr: query.Sum("", "increase("+query.Of(telemetry.OperatorDataplaneRestarts)+"[1h])"), Legend: "on the operator's host"},
		},
	}.Panel()
}
