package diagnose

import (
	"fmt"
	"slices"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// laterReasons are the reasons of condition Programmed that later stages explain.
var laterReasons = []string{"AddressNotAssigned"}

// gatewayRules check the conditions of the Gateway and of its listeners.
var gatewayRules = []Rule{
	{"Gateway is processed", func(s *Snapshot, g *Gateway) []Finding {
		c := conditionOf(g.Status.Conditions, "Accepted")
		f := Finding{
			Severity: Error, Object: ref("Gateway", g), Field: "status",
			Remedy:  "start the operator, or read its log: it has not processed the Gateway",
			Command: s.operatorLog(),
		}
		switch {
		case c == nil || c.LastTransitionTime.Unix() == 0:
			f.Problem = "no operator has processed the Gateway"
		case c.ObservedGeneration != g.Generation && g.Generation != 0:
			f.Problem = fmt.Sprintf(
				"the conditions are of generation %d, the Gateway has %d",
				c.ObservedGeneration,
				g.Generation,
			)
		default:
			return nil
		}
		return []Finding{f}
	}},
	{"listeners are accepted", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, l := range g.Status.Listeners {
			part, told := fmt.Sprintf("spec.listeners[%s]", l.Name), map[string]bool{}
			for _, c := range wrong(l.Conditions, "Accepted", "Conflicted", "ResolvedRefs", "DeprecatedInput") {
				if told[c.Message] {
					continue // Conflicted repeats Accepted
				}
				told[c.Message] = true
				found = append(found, s.fromCondition(ref("Gateway", g), part, c, describe("gateway", g))...)
			}
		}
		return found
	}},
	{"Gateway is accepted", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, c := range wrong(g.Status.Conditions, "Accepted") {
			if c.Reason == "ListenersNotValid" && g.listenersWrong() {
				continue // the findings of the listeners are more precise
			}
			found = append(found, s.fromCondition(ref("Gateway", g), "", c, describe("gateway", g))...)
		}
		return found
	}},
	{"Gateway is programmed", func(s *Snapshot, g *Gateway) (found []Finding) {
		if len(wrong(g.Status.Conditions, "Accepted")) > 0 {
			return nil // condition Programmed only repeats condition Accepted
		}
		for _, c := range wrong(g.Status.Conditions, "Programmed", "Autoscaled") {
			if slices.Contains(laterReasons, c.Reason) || g.explained(c.Reason) {
				continue
			}
			found = append(found, s.fromCondition(ref("Gateway", g), "", c, describe("gateway", g))...)
		}
		return found
	}},
}

// listenersWrong reports whether a condition of a listener reports a problem.
func (g *Gateway) listenersWrong() bool {
	return slices.ContainsFunc(g.Status.Listeners, func(l gwapiv1.ListenerStatus) bool {
		return len(wrong(l.Conditions, "Accepted", "Conflicted", "ResolvedRefs")) > 0
	})
}

// explained reports whether the statuses of the pods explain a reason of condition Programmed: that no pod runs the
// published config.
func (g *Gateway) explained(reason string) bool {
	return len(g.Statuses) > 0 && len(g.configProblems()) > 0 && (reason == "Invalid" || reason == "Pending")
}

func gatewayFact(_ *Snapshot, g *Gateway) string {
	accepted := "not accepted"
	if c := conditionOf(g.Status.Conditions, "Accepted"); c != nil && c.Status == "True" {
		accepted = "accepted"
	}
	return accepted + ", " + count(g.listeners(), "listener")
}

// listeners returns the number of listeners. Gateways of a folder have only a status and references.
func (g *Gateway) listeners() int { return max(len(g.Spec.Listeners), len(g.Status.Listeners)) }

// operatorLog is the command that shows the log of the operator.
func (s *Snapshot) operatorLog() string {
	if s.Folder {
		return ""
	}
	return "kubectl logs -n " + s.operatorNamespace() + " -l app=" + s.operatorApp() + " --tail=50"
}

// noGateway is the finding for a name that no Gateway has.
func (s *Snapshot) noGateway(namespace, name string) Finding {
	f := Finding{
		Severity: Error, Stage: "gateway", Object: objectName("Gateway", namespace, name),
		Problem: "does not exist", Remedy: "create it, or correct the name",
		Command: "kubectl get gateways -A",
	}
	if !s.readable("Gateway", namespace) {
		f.Problem = "cannot be read"
		f.Remedy = "ask an administrator to bind ClusterRole stunner-viewer to you in namespace " + namespace
		f.Command = "kubectl auth can-i get gateways -n " + namespace
		if reason := s.failed("Gateway", namespace); reason != "" {
			f.Problem, f.Remedy, f.Command = "cannot be read: "+reason, tryAgain, ""
		}
		return s.cleaned(f)
	}
	var others []string
	for _, gw := range list[gwapiv1.Gateway](s, "Gateway") {
		others = append(others, gw.Namespace+"/"+gw.Name)
	}
	if len(others) > 0 {
		slices.Sort(others)
		f.Remedy += ": the Gateways are " + few(others)
	}
	return s.cleaned(f)
}
