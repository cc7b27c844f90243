package board

import (
	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
	"github.com/stunner-gateway/stunner/dashboards/internal/query"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// dataplane shows the state of a single pod.
func dataplane() grafana.Board {
	variables := append(choices(),
		grafana.LabelVariable("pod", "Pod", query.Of(telemetry.AllocationsActive, here)))
	return board("dataplane", "Dataplane", "Which pod, and what is the matter with it?", variables, grafana.Arrange(
		grafana.Section{Title: "Pods", Lines: []grafana.Line{{Height: 7, Panels: []grafana.Panel{podTable()}}}},
		grafana.Section{Title: "Calls", Lines: []grafana.Line{
			{Height: 8, Panels: []grafana.Panel{
				byPod(
					"Calls", count, "Allocations, including those of draining pods.",
					query.Of(telemetry.AllocationsActive, pods),
				),
				newCalls(),
				podFullness(),
			}},
			{Height: 8, Panels: []grafana.Panel{
				refused(
					"Requests that were answered with an error. Every client is asked for a credential (no_credential), and for a new nonce now and then (stale_nonce).",
					pods,
				),
				dropped(pods), drain(),
			}},
		}},
		grafana.Section{Title: "Traffic", Lines: []grafana.Line{
			{Height: 8, Panels: []grafana.Panel{
				traffic(
					"Clients, by listener", "Between clients and listeners.", telemetry.ListenerBytes, " * 8", bits,
				),
				traffic(
					"Packets of clients, by listener", "Between clients and listeners.", telemetry.ListenerPackets, "",
					packets,
				),
				connections(),
			}},
			{Height: 8, Panels: []grafana.Panel{
				traffic(
					"Peers, by cluster", "Between relay sockets and the peers of a route.", telemetry.ClusterBytes,
					" * 8", bits,
				),
				traffic(
					"Packets of peers, by cluster", "Between relay sockets and the peers of a route.",
					telemetry.ClusterPackets, "", packets,
				),
				newConnections(),
				offloaded(),
			}},
			{Height: 8, Panels: []grafana.Panel{silentCalls(), undelivered()}},
		}},
		grafana.Section{Title: "Forwarding between pods", Lines: []grafana.Line{{
			Height: 7,
			Panels: []grafana.Panel{forwarded(), forwardPeers(), forwardRefused(), quotaDecisions()},
		}}},
		grafana.Section{Title: "Config", Lines: []grafana.Line{{
			Height: 7,
			Panels: []grafana.Panel{applied(), rejected(), age(query.Dataplane, "{{pod}}", pods), certificates()},
		}}},
		process(query.Dataplane, "{{pod}}", pods),
	))
}

func podTable() grafana.Panel {
	by := "namespace, gateway, pod"
	most := func(expr string) string { return "max by (" + by + ") (" + expr + ")" }
	of := func(metric string) string { return most(query.Of(metric, query.Job(query.Dataplane), pods)) }
	return grafana.Table{
		Title: "Pods", Help: "Current state of the dataplane pods.", None: "no dataplane",
		By: []string{"namespace", "gateway", "pod"},
		Columns: []grafana.Column{
			{Query: grafana.Query{Legend: "up", Expr: of(query.Up)}, Unit: count, Limits: &grafana.Limits{
				Yellow: 1, Red: 1, Below: true,
			}},
			{Query: grafana.Query{Legend: "calls", Expr: of(telemetry.AllocationsActive)}, Unit: count},
			{Query: grafana.Query{Legend: "draining", Expr: of(telemetry.AllocationsDraining)}, Unit: count},
			{Query: grafana.Query{Legend: "full", Expr: most(fullness(pods))}, Unit: share, Limits: used},
			{Query: grafana.Query{
				Legend: "config problem", Expr: of(telemetry.ConfigProblem),
			}, Unit: count, Limits: any1},
			{Query: grafana.Query{Legend: "faults", Expr: of(telemetry.Panics)}, Unit: count, Limits: any1},
			{Query: grafana.Query{
				Legend: "without config source", Expr: of(telemetry.ConfigAge),
			}, Unit: seconds, Limits: stale},
			{Query: grafana.Query{
				Legend: "runs for", Expr: most("time() - " + query.Of(query.Started, query.Job(query.Dataplane), pods)),
			}, Unit: seconds},
			{Query: grafana.Query{Legend: "memory", Expr: of(query.Memory)}, Unit: bytes},
		},
	}.Panel()
}

func byPod(title, unit, help, expr string) grafana.Panel {
	return grafana.Graph{
		Title: title, Unit: unit, Help: help, Stacked: true,
		Queries: []grafana.Query{{Expr: query.Sum("pod", expr), Legend: "{{pod}}"}},
	}.Panel()
}

func newCalls() grafana.Panel {
	return grafana.Graph{
		Title: "Set-ups", Unit: perSecond, Help: "Successful and failed attempts to start a call.",
		Queries: []grafana.Query{
			{Expr: query.Rate("", window, telemetry.AllocationsTotal, pods), Legend: "made"},
			{Expr: query.Rate("", window, telemetry.Refused, query.Failed, pods), Legend: "failed"},
		},
	}.Panel()
}

func podFullness() grafana.Panel {
	return grafana.Graph{
		Title: "How full", Unit: share, Share: true, Limits: used, Page: alert.Runbook("AllocationsNearCapacity"),
		Help:    "Used share of the allocations that file descriptors and memory of the process allow.",
		Queries: []grafana.Query{{Expr: fullness(pods), Legend: "{{pod}}"}},
	}.Panel()
}

func drain() grafana.Panel {
	return grafana.Graph{
		Title: "Draining", Unit: count, Stacked: true,
		Help: "Calls of terminating pods. A pod ends with its last call, or after the grace period.",
		Queries: []grafana.Query{
			{Expr: query.Sum("pod", query.Of(telemetry.AllocationsDraining, pods)), Legend: "{{pod}}"},
		},
	}.Panel()
}

func traffic(title, help, metric, factor, unit string) grafana.Panel {
	rate := func(direction string) string {
		return query.Rate("name", window, metric, `direction="`+direction+`"`, pods) + factor
	}
	return grafana.Graph{
		Title: title, Unit: unit, Mirrored: ".* out$", Help: help + " Received above the axis, sent below.",
		Queries: []grafana.Query{{Expr: rate("rx"), Legend: "{{name}} in"}, {Expr: rate("tx"), Legend: "{{name}} out"}},
	}.Panel()
}

func silentCalls() grafana.Panel {
	state := func(state string) string {
		return query.Sum("name", query.Of(telemetry.MediaCalls, `state="`+state+`"`, pods))
	}
	return grafana.Graph{
		Title: "Calls that send to peers, by cluster", Unit: count, Page: alert.Runbook("MediaOneWay"),
		Help: "Silent calls have sent for ten seconds or more and got nothing back from any peer of the cluster.",
		Queries: []grafana.Query{
			{Expr: state("answered"), Legend: "{{name}} answered"}, {Expr: state("silent"), Legend: "{{name}} silent"},
		},
	}.Panel()
}

func undelivered() grafana.Panel {
	return grafana.Graph{
		Title: "Undelivered packets and unused calls", Unit: perSecond,
		Help: "ICMP errors report that packets to peers were not delivered. Unused calls have ended without a packet to a peer.",
		Queries: []grafana.Query{
			{Expr: query.Rate("", window, telemetry.PeerICMPErrors, pods), Legend: "ICMP errors"},
			{Expr: query.Rate("", window, telemetry.AllocationsUnused, pods), Legend: "unused calls"},
		},
	}.Panel()
}

func connections() grafana.Panel {
	return grafana.Graph{
		Title: "Connections, by listener", Unit: count,
		Help: "Open client connections; for UDP the constant number of sockets.",
		Queries: []grafana.Query{
			{Expr: query.Sum("name", query.Of(telemetry.ListenerConnections, pods)), Legend: "{{name}}"},
		},
	}.Panel()
}

func newConnections() grafana.Panel {
	return grafana.Graph{
		Title: "New clients", Unit: perSecond,
		Help: "Accepted connections, and UDP clients with a new allocation; by listener the connections only.",
		Queries: []grafana.Query{
			{Expr: query.Rate("", window, telemetry.Connections, pods), Legend: "all"},
			{Expr: query.Rate("name", window, telemetry.ListenerConnectionsTotal, pods), Legend: "{{name}}"},
		},
	}.Panel()
}

func offloaded() grafana.Panel {
	return grafana.Graph{
		Title: "Forwarded in the kernel", Unit: packets,
		Help: "Packets that did not pass stunnerd. The other panels include them.",
		Queries: []grafana.Query{
			{Expr: query.Rate("direction", window, telemetry.OffloadPackets, `direction="rx"`, pods), Legend: "from peers"},
			{Expr: query.Rate("direction", window, telemetry.OffloadPackets, `direction="tx"`, pods), Legend: "to peers"},
		},
	}.Panel()
}

func forwarded() grafana.Panel {
	return grafana.Graph{
		Title: "Forwarded to other pods", Unit: packets,
		Help: "Datagrams of UDP clients that arrive at another pod than the one with their session. " +
			"A pod passes them on and sends the answers; the pod with the session has them delivered, and replies.",
		Queries: []grafana.Query{
			{
				Expr:   query.Rate("pod, direction", window, telemetry.ForwardedPackets, pods),
				Legend: "{{pod}} {{direction}}",
			},
		},
	}.Panel()
}

func forwardPeers() grafana.Panel {
	return grafana.Graph{
		Title: "Pods to forward to", Unit: count, Page: alert.Runbook("ForwardingOff"),
		Help:    "Other pods of the Gateway to which a pod forwards datagrams: all of them, unless forwarding is off.",
		Queries: []grafana.Query{{Expr: query.Sum("pod", query.Of(telemetry.ForwardPeers, pods)), Legend: "{{pod}}"}},
	}.Panel()
}

func quotaDecisions() grafana.Panel {
	return grafana.Graph{
		Title: "Quotas over pods", Unit: perSecond,
		Help: "Decisions about allocations of users with a quota. " +
			"Unanswered are those of a pod that decided by its own count, because the pod that counts did not answer.",
		Queries: []grafana.Query{
			{Expr: query.Rate("result", window, telemetry.QuotaDecisions, pods), Legend: "{{result}}"},
		},
	}.Panel()
}

func forwardRefused() grafana.Panel {
	return grafana.Graph{
		Title: "Not forwarded, by reason", Unit: packets, Page: alert.Runbook("ForwardingOff"),
		Help: "Datagrams of clients without a session in any pod (unknown, limited), and dropped datagrams of other pods.",
		Queries: []grafana.Query{
			{Expr: query.Rate("reason", window, telemetry.ForwardRefused, pods), Legend: "{{reason}}"},
		},
	}.Panel()
}

func applied() grafana.Panel {
	return grafana.Graph{
		Title: "Applied configs", Unit: count,
		Help: "In an hour. A constant rate indicates a listener that cannot be opened and is retried.",
		Queries: []grafana.Query{
			{Expr: query.Sum("pod", "increase("+query.Of(telemetry.ConfigApplied, pods)+"[1h])"), Legend: "{{pod}}"},
		},
	}.Panel()
}

func rejected() grafana.Panel {
	increase := func(metric string) string { return "increase(" + query.Of(metric, pods) + "[1h])" }
	return grafana.Graph{
		Title: "Rejected configs, ignored fields", Unit: count, Page: alert.Runbook("ConfigRejected"),
		Help: "In an hour. The last good config stays in force.",
		Queries: []grafana.Query{
			{Expr: query.Sum("pod, reason", increase(telemetry.ConfigRejected)), Legend: "{{pod}} {{reason}}"},
			{Expr: query.Sum("pod", increase(telemetry.ConfigUnknownFields)), Legend: "{{pod}} unknown fields"},
		},
	}.Panel()
}

func age(job, legend, matchers string) grafana.Panel {
	return grafana.Graph{
		Title: "Without a config source", Unit: seconds, Limits: stale, Page: alert.Runbook("ConfigStale"),
		Help:    "Time without a connection to the operator. Running calls continue; changes do not take effect.",
		Queries: []grafana.Query{{Expr: query.Of(telemetry.ConfigAge, query.Job(job), matchers), Legend: legend}},
	}.Panel()
}

func certificates() grafana.Panel {
	return grafana.Graph{
		Title: "Certificates expire in", Unit: seconds, Limits: week, Page: alert.Runbook("CertificateExpiring"),
		Help: "Time until the first certificate of a TLS or DTLS listener expires.",
		Queries: []grafana.Query{
			{Expr: "min by (name) (" + query.Of(telemetry.CertificateExpiry, pods) + ") - time()", Legend: "{{name}}"},
		},
	}.Panel()
}
