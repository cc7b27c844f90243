package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// policyRules check limits, quotas, autoscaling and network policies.
var policyRules = []Rule{
	{"limits admit clients", func(s *Snapshot, g *Gateway) (found []Finding) {
		if s.Asked.hasClient() {
			return nil
		}
		for _, reason := range []string{"capacity", "no_relay", "quota", "source_quota"} {
			r := s.recentRefusals(g, reason)
			if r.last == nil {
				continue
			}
			f := s.refused(g, *r.last, r.times)
			if reason == "quota" || reason == "source_quota" {
				f.Severity = r.severity(g) // the other clients are served
			}
			found = append(found, f)
		}
		return found
	}},
	{"pods have room", func(_ *Snapshot, g *Gateway) (found []Finding) {
		for _, s := range g.Statuses {
			few := s.Capacity < fewCalls && strings.Contains(s.CapacityLimit, "file descriptors")
			if s.Capacity == 0 || !few && s.AllocationCount*10 < s.Capacity*9 {
				continue
			}
			f := Finding{
				Severity: Warning, Object: objectName("Pod", g.Namespace, s.Pod), Field: "capacity",
				Problem: fmt.Sprintf("has %d of at most %d calls", s.AllocationCount, s.Capacity),
				Remedy:  "add pods, or raise the memory limit in spec.resources of the Dataplane: " + memoryOfCalls,
				Command: "stunnerctl status -n " + g.Namespace,
			}
			if s.CapacityLimit != "" {
				f.Problem += ", because of " + s.CapacityLimit
			}
			if few {
				f.Severity = Error
			}
			if strings.Contains(s.CapacityLimit, "file descriptors") {
				f.Remedy = "raise the limit of file descriptors (ulimit -n, LimitNOFILE= of a systemd unit): 200, and one or two for each call"
			}
			found = append(found, f)
		}
		return found
	}},
	{"sourceQuota counts clients", func(_ *Snapshot, g *Gateway) []Finding { return g.sharedSources() }},
	{"NetworkPolicies admit clients", func(s *Snapshot, g *Gateway) []Finding { return s.networkPolicies(g) }},
	{"autoscaling works", func(s *Snapshot, g *Gateway) []Finding { return s.scaling(g) }},
	{"namespace has quota", func(s *Snapshot, g *Gateway) []Finding { return s.quotas(g) }},
	{"conditions have no warnings", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, c := range wrong(g.Status.Conditions, "OffloadUnavailable", "DeprecatedInput", "LoadBalancerLimited") {
			found = append(found, s.fromCondition(ref("Gateway", g), "", c, describe("gateway", g))...)
		}
		return found
	}},
}

// fewCalls is the capacity below which a limit of a dataplane's process is probably too low.
const fewCalls = 10

// sharedSources checks that clients have different source addresses, if their allocations are limited by address.
func (g *Gateway) sharedSources() (found []Finding) {
	if g.Config == nil || g.Config.Spec.SourceQuota == 0 || len(g.Pods) > 0 && g.Pods[0].Spec.HostNetwork {
		return nil
	}
	for _, svc := range g.Services {
		local := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		if local || svc.Spec.Type == corev1.ServiceTypeClusterIP {
			continue
		}
		found = append(found, Finding{
			Severity: Info, Object: ref("GatewayConfig", g.Config), Field: "spec.sourceQuota",
			Problem: fmt.Sprintf("Service %s has externalTrafficPolicy Cluster: where nodes replace the source address "+
				"of packets, all clients of a node share the quota, and their server-reflexive candidates are addresses "+
				"of nodes", svc.Name),
			Remedy:  "set annotation stunner.l7mp.io/external-traffic-policy: local on the Gateway, or remove sourceQuota",
			Command: fmt.Sprintf("stunnerctl sessions %s/%s", g.Namespace, g.Name),
		})
	}
	return found
}

// scaling checks the ScaledObject of the Gateway.
func (s *Snapshot) scaling(g *Gateway) (found []Finding) {
	for _, o := range list[unstructuredObject](s, "ScaledObject") {
		if o.GetNamespace() != g.Namespace || o.GetLabels()[labelGateway] != g.Name {
			continue
		}
		add := func(field, problem, remedy string) {
			found = append(found, Finding{
				Severity: Warning, Object: ref("ScaledObject", o), Field: field, Problem: problem, Remedy: remedy,
				Command: describe("scaledobject", o),
			})
		}
		for _, name := range []string{"autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"} {
			if value, ok := o.GetAnnotations()[name]; ok && value != "false" {
				add("metadata.annotations["+name+"]", "autoscaling is paused", "remove the annotation")
			}
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if len(conditions) == 0 {
			add(
				"status.conditions",
				"KEDA has not processed the ScaledObject",
				"start KEDA, or let it watch namespace "+g.Namespace,
			)
		}
		for _, c := range conditions {
			c, _ := c.(map[string]any)
			kind, status, message := c["type"], c["status"], c["message"]
			switch {
			case kind == "Ready" && status != "True":
				add(
					"status.conditions[Ready]",
					fmt.Sprintf("KEDA cannot scale the pods: %v", message),
					"let KEDA reach port 13480 of Service stunner-config-discovery (networkPolicy.scalerFrom of the chart), and see its log",
				)
			case kind == "Fallback" && status == "True":
				add(
					"status.conditions[Fallback]",
					fmt.Sprintf("KEDA does not get the number of calls, and keeps the pods: %v", message),
					"let KEDA reach port 13480 of Service stunner-config-discovery, and see that all pods are connected to the operator",
				)
			}
		}
	}
	return found
}

// unstructuredObject is an object without a Go type.
type unstructuredObject = unstructured.Unstructured

// minDefaultMemory is the default memory limit of a LimitRange below which a dataplane serves only few calls.
var minDefaultMemory = resource.MustParse("64Mi")

// quotas checks the ResourceQuotas and LimitRanges of the namespace of the Gateway.
func (s *Snapshot) quotas(g *Gateway) (found []Finding) {
	for _, q := range list[corev1.ResourceQuota](s, "ResourceQuota") {
		if q.Namespace != g.Namespace {
			continue
		}
		var full []string
		for _, name := range slices.Sorted(keys(q.Status.Hard)) {
			hard, used := q.Status.Hard[name], q.Status.Used[name]
			if !hard.IsZero() && used.Cmp(hard) >= 0 && concerns(string(name)) {
				full = append(full, fmt.Sprintf("%s %s of %s", name, used.String(), hard.String()))
			}
		}
		if len(full) > 0 {
			found = append(found, Finding{
				Severity: Warning, Object: ref("ResourceQuota", q), Field: "spec.hard",
				Problem: "is used up: " + strings.Join(
					full,
					", ",
				) + ": a new pod or Service of the Gateway is rejected",
				Remedy: "raise the quota, or delete what is not used", Command: describe("resourcequota", q),
			})
		}
	}
	for _, r := range list[corev1.LimitRange](s, "LimitRange") {
		for _, limit := range r.Spec.Limits {
			memory := limit.Default.Memory()
			set := g.Dataplane != nil && !g.Dataplane.Spec.Resources.Limits.Memory().IsZero()
			if r.Namespace != g.Namespace || limit.Type != corev1.LimitTypeContainer || memory.IsZero() || set ||
				memory.Cmp(minDefaultMemory) >= 0 {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: ref("LimitRange", r), Field: "spec.limits[].default.memory",
				Problem: fmt.Sprintf("limits the memory of dataplane pods to %s, which is room for few calls", memory),
				Remedy:  "set spec.resources.limits.memory of the Dataplane: " + memoryOfCalls,
				Command: describe("limitrange", r),
			})
		}
	}
	return found
}

// concerns reports whether a Gateway uses a resource of a ResourceQuota.
func concerns(name string) bool {
	for _, part := range []string{"pods", "services", "cpu", "memory", "deployments", "configmaps", "secrets"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

func policyFact(_ *Snapshot, g *Gateway) string {
	most := 0
	for _, s := range g.Statuses {
		most += s.Capacity
	}
	switch {
	case len(g.Statuses) == 0:
		return notChecked + ": no pod has answered"
	case most == 0:
		return fmt.Sprintf("%s, no limit", count(g.allocations(), "call"))
	}
	return fmt.Sprintf("%d of at most %d calls", g.allocations(), most)
}
