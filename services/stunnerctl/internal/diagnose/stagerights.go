package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// viewerRole is the ClusterRole with all rights of a diagnosis.
const viewerRole = "stunner-viewer"

// tryAgain is the remedy for objects that could not be read although the user has the right.
const tryAgain = "try again; if the error persists, see the log of the API server"

// failed returns why objects could not be read although the user has the right, or "".
func (s *Snapshot) failed(kind, namespace string) string {
	for _, u := range s.Unreadable {
		if u.Kind == kind && u.Right == "" && (u.Namespace == "" || u.Namespace == namespace) {
			return cmp.Or(u.Reason, "no reason")
		}
	}
	return ""
}

// rightsRules report all missing rights of the user in one finding.
var rightsRules = []Rule{
	{"everything can be read", func(s *Snapshot, _ *Gateway) []Finding {
		var denied []Unreadable
		var failed []string
		for _, u := range s.Unreadable {
			switch {
			case u.Right == "" && u.Reason == "": // another finding has the reason
			case u.Right == "":
				failed = append(failed, u.Kind+": "+u.Reason)
			default:
				denied = append(denied, u)
			}
		}
		var found []Finding
		if len(denied) > 0 {
			found = append(found, Finding{
				Severity: Info, Object: "your rights", Field: "RBAC",
				Problem: "you may not " + rightsOf(denied) + ": the checks of these objects were left out",
				Remedy:  bindings(denied),
				Command: "kubectl auth can-i " + denied[0].Right,
			})
		}
		if len(failed) > 0 {
			found = append(found, Finding{
				Severity: Warning, Object: "API server", Field: "list",
				Problem: "objects could not be read: " + few(failed),
				Remedy:  tryAgain,
			})
		}
		return found
	}},
}

// rightsOf describes missing rights. Rights with the same verb and namespace are together: "list nodes; list pods,
// services -n meet".
func rightsOf(denied []Unreadable) string {
	type key struct{ verb, where string }
	var order []key
	resources := map[key][]string{}
	for _, u := range denied {
		verb, rest, _ := strings.Cut(u.Right, " ")
		resource, where, _ := strings.Cut(rest, " ")
		k := key{verb, where}
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
		if !slices.Contains(resources[k], resource) {
			resources[k] = append(resources[k], resource)
		}
	}
	var parts []string
	for _, k := range order {
		parts = append(parts, strings.TrimSpace(k.verb+" "+strings.Join(resources[k], ", ")+" "+k.where))
	}
	return strings.Join(parts, "; ")
}

// bindings is the remedy for missing rights. A RoleBinding does not grant rights on objects of the cluster.
func bindings(denied []Unreadable) string {
	var namespaces []string
	for _, u := range denied {
		_, namespace, ok := strings.Cut(u.Right, " -n ")
		if !ok {
			return "ask an administrator to bind ClusterRole " + viewerRole + " to you with a ClusterRoleBinding"
		}
		if !slices.Contains(namespaces, namespace) {
			namespaces = append(namespaces, namespace)
		}
	}
	return "ask an administrator to bind ClusterRole " + viewerRole + " to you in namespace " + few(namespaces)
}

func rightsFact(s *Snapshot, _ *Gateway) string {
	if len(s.Unreadable) > 0 {
		return "not all objects could be read"
	}
	return "all objects were read"
}

// rightsStage adds the finding about missing rights to a report of one Gateway.
var rightsStage = []Stage{{Name: "rights", Fact: rightsFact, Rules: rightsRules, Cluster: true}}

// noGateways is the finding of a diagnosis that has checked no Gateway, or nil. others are the ignored Gateways of
// other controllers.
func (s *Snapshot) noGateways(namespace string, checked int, others []string) *Finding {
	where, flag := "in all namespaces", "-A"
	if namespace != "" {
		where, flag = "in namespace "+namespace, "-n "+namespace
	}
	f := Finding{Stage: "gateway", Object: "Gateways " + where, Command: "kubectl get gateways." + gatewayAPI + " -A"}
	switch {
	case !s.readable("Gateway", namespace) && checked == 0:
		f.Severity, f.Field = Error, "RBAC"
		f.Problem = fmt.Sprintf("no Gateway was checked, because you may not list gateways.%s %s", gatewayAPI, where)
		f.Remedy = "ask an administrator to bind ClusterRole " + viewerRole + " to you " + where
		f.Command = fmt.Sprintf("kubectl auth can-i list gateways.%s %s", gatewayAPI, flag)
		if reason := s.failed("Gateway", namespace); reason != "" {
			f.Field, f.Remedy = "list", tryAgain
			f.Problem = "no Gateway was checked, because they cannot be read: " + reason
		}
	case checked > 0:
		return nil
	default:
		f.Severity, f.Field = Info, "metadata.namespace"
		f.Problem = "there is no Gateway of STUNner"
		f.Remedy = "create a Gateway"
		if namespace != "" {
			f.Remedy = "use -A for all namespaces, or -n NAMESPACE for another one"
		}
		if len(others) > 0 {
			f.Problem += "; those of other controllers were not checked: " + few(others)
			f.Remedy += "; or use --controller-name if one of these controllers is an operator of STUNner"
		}
	}
	f = s.cleaned(f)
	return &f
}
