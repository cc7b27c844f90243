package diagnose

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func keys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// createRefusals are the reasons for which the API server rejects pods.
var createRefusals = []pattern{
	{
		regexp.MustCompile(`exceeded quota`), "a ResourceQuota of the namespace is used up",
		"raise the ResourceQuota, or lower spec.resources of the Dataplane",
	},
	{
		regexp.MustCompile(`violates PodSecurity`), "the Pod Security Standard of the namespace forbids the pods",
		"kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged, or remove what the message names from the Dataplane",
	},
	{
		regexp.MustCompile(
			`(minimum|maximum) (cpu|memory|ephemeral-storage) usage per`,
		), "a LimitRange of the namespace forbids the pods",
		"set spec.resources of the Dataplane within the LimitRange",
	},
	{
		regexp.MustCompile(
			`(admission webhook|denied the request|ValidatingAdmissionPolicy)`,
		), "an admission policy forbids the pods",
		"change the Dataplane or the policy as the message says",
	},
}

// podsRules check the workload of the Gateway and its pods.
var podsRules = []Rule{
	{"workload exists", func(s *Snapshot, g *Gateway) []Finding {
		known := s.readable("Deployment", g.Namespace) && s.readable("DaemonSet", g.Namespace)
		if !g.managed() || !known || len(g.workloads()) > 0 {
			return nil
		}
		return []Finding{{
			Severity: Error, Object: ref("Gateway", g), Field: "metadata.name",
			Problem: "the Gateway has no Deployment or DaemonSet",
			Remedy:  "see the events of the Gateway and the log of the operator, which creates it",
			Command: s.operatorLog(),
		}}
	}},
	{"workload creates pods", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, d := range g.Deployments {
			if d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
				found = append(found, Finding{
					Severity: Error, Object: ref("Deployment", d), Field: "spec.replicas", Problem: "is 0: there are no pods",
					Remedy:  fmt.Sprintf("kubectl scale -n %s deployment/%s --replicas=1", d.Namespace, d.Name),
					Command: describe("deployment", d),
				})
			}
			if text := s.createError(d); text != "" {
				found = append(found, g.notCreated(ref("Deployment", d), text, describe("deployment", d)))
			}
		}
		for _, d := range g.DaemonSets {
			if e := s.lastWarning("DaemonSet", d, "SuccessfulCreate"); e != nil && e.Reason == "FailedCreate" {
				found = append(found, g.notCreated(ref("DaemonSet", d), e.Message, describe("daemonset", d)))
			}
			if d.Status.DesiredNumberScheduled == 0 && d.Status.ObservedGeneration > 0 && len(g.Pods) == 0 {
				found = append(found, Finding{
					Severity: Error, Object: ref("DaemonSet", d), Field: "spec.template.spec.nodeSelector",
					Problem: "no node fits its node selector, affinity and tolerations",
					Remedy:  "label a node, or correct spec.affinity and spec.tolerations of the Dataplane",
					Command: "kubectl get nodes --show-labels",
				})
			}
		}
		return found
	}},
	{"pods run", func(s *Snapshot, g *Gateway) []Finding {
		if !s.readable("Pod", g.Namespace) {
			return nil
		}
		var found []Finding
		for _, pod := range g.Pods {
			p := s.podProblem(pod)
			if p.problem == "" {
				continue
			}
			f := Finding{
				Severity: Warning, Object: ref("Pod", pod), Field: p.field, Problem: p.problem, Remedy: p.remedy,
				Command: describe("pod", pod),
			}
			if p.logs {
				f.Command = fmt.Sprintf("kubectl logs -n %s %s --previous --tail=20", pod.Namespace, pod.Name)
			}
			if !g.admits() {
				f.Severity = Error
			}
			found = append(found, f)
		}
		return found
	}},
	{"there are pods", func(s *Snapshot, g *Gateway) []Finding {
		if len(g.Pods) > 0 || !g.managed() || !s.readable("Pod", g.Namespace) || g.createsNone(s) {
			return nil
		}
		object := ref("Gateway", g)
		if all := g.workloads(); len(all) > 0 {
			object = all[0]
		}
		return []Finding{{
			Severity: Error, Object: object, Field: "status.replicas", Problem: "there are no dataplane pods",
			Remedy:  "see the events of the workload and of its ReplicaSets",
			Command: "kubectl get events -n " + g.Namespace + " --field-selector type=Warning",
		}}
	}},
	{"a pod takes new calls", func(s *Snapshot, g *Gateway) []Finding {
		if g.ready() == 0 || g.admits() { // if no pod is ready, an earlier rule reports it
			return nil
		}
		return []Finding{{
			Severity: Error, Object: ref("Pod", g.Pods[0]), Field: "metadata.deletionTimestamp",
			Problem: "all ready pods are draining: running calls continue, and new ones are refused with 508",
			Remedy:  "let new pods start: see the events of the workload, the quota of the namespace and the room on the nodes",
			Command: "kubectl get pods -n " + g.Namespace + " -l " + labelGateway + "=" + g.Name + " -o wide",
		}}
	}},
}

// createsNone reports whether an earlier rule has reported the reason for missing pods.
func (g *Gateway) createsNone(s *Snapshot) bool {
	for _, d := range g.Deployments {
		if d.Spec.Replicas != nil && *d.Spec.Replicas == 0 || s.createError(d) != "" {
			return true
		}
	}
	return len(g.workloads()) == 0 || slices.ContainsFunc(g.DaemonSets, func(d *appsv1.DaemonSet) bool {
		return s.lastWarning("DaemonSet", d, "SuccessfulCreate") != nil ||
			d.Status.DesiredNumberScheduled == 0 && d.Status.ObservedGeneration > 0
	})
}

func (g *Gateway) notCreated(object, text, command string) Finding {
	f := Finding{
		Severity: Warning, Object: object, Field: "spec.template", Problem: "pods cannot be created: " + text,
		Remedy: "see the message", Command: command,
	}
	if !g.admits() {
		f.Severity = Error
	}
	if p := match(createRefusals, text); p != nil {
		f.Problem, f.Remedy = p.problem+": "+text, strings.ReplaceAll(p.remedy, "NAMESPACE", g.Namespace)
	}
	return f
}

// createError returns why the ReplicaSet of a Deployment cannot create pods.
func (s *Snapshot) createError(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// podProblem is a problem of one or several pods.
type podProblem struct {
	field, problem, remedy string
	logs                   bool
}

func (s *Snapshot) podProblem(pod *corev1.Pod) podProblem {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return podProblem{
				"status.conditions[PodScheduled]", "cannot be scheduled: " + c.Message,
				"add nodes with room, or correct spec.resources, spec.affinity and spec.tolerations of the Dataplane", false,
			}
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		field := "status.containerStatuses[" + c.Name + "]"
		if w := c.State.Waiting; w != nil {
			switch w.Reason {
			case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull":
				return podProblem{
					field, fmt.Sprintf("image %s cannot be pulled: %s", c.Image, cmp.Or(w.Message, w.Reason)),
					"correct spec.image or spec.imagePullSecrets of the Dataplane", false,
				}
			case "CrashLoopBackOff":
				return crash(field, c)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return podProblem{
					field,
					w.Reason + ": " + w.Message,
					"correct the Dataplane as the message says",
					false,
				}
			}
		}
		if last := c.LastTerminationState.Terminated; last != nil && last.Reason == "OOMKilled" {
			return crash(field, c)
		}
	}
	if pod.Status.Phase == corev1.PodPending {
		if e := s.lastWarning("Pod", pod, "Started"); e != nil {
			return podProblem{
				"status.phase", "is pending: " + e.Reason + ": " + e.Message,
				"correct what the event names; a missing ConfigMap or Secret is written by the operator", false,
			}
		}
		return podProblem{
			"status.phase",
			"is pending, without an event",
			"wait, and see its events if it takes minutes",
			false,
		}
	}
	switch dataplane := pod.Labels[labelGateway] != ""; {
	case pod.DeletionTimestamp != nil || ready(pod):
		return podProblem{}
	case dataplane:
		return podProblem{
			"status.conditions[Ready]", "is not ready: no valid config, or a listener is not open",
			"see its log: it names the listener or the connection to the operator", false,
		}
	}
	return podProblem{"status.conditions[Ready]", "is not ready", "see its log", false}
}

// crash describes a container that ends repeatedly.
func crash(field string, c corev1.ContainerStatus) podProblem {
	p := podProblem{
		field, fmt.Sprintf("container %s ends again and again, %s", c.Name, count(int(c.RestartCount), "restart")),
		"see the log of the container that ended", true,
	}
	if last := c.LastTerminationState.Terminated; last != nil {
		p.problem += fmt.Sprintf(": exit code %d %s", last.ExitCode, last.Reason)
		switch {
		case last.Reason == "OOMKilled":
			p.problem = "container " + c.Name + " was killed because it exceeded its memory limit"
			p.remedy, p.logs = "raise the memory limit in spec.resources of the Dataplane: "+memoryOfCalls, false
		case last.ExitCode == 2:
			p.remedy = "correct spec.args or spec.command of the Dataplane: the command line is invalid"
		}
	}
	return p
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ready returns the number of ready pods.
func (g *Gateway) ready() (n int) {
	for _, pod := range g.Pods {
		if ready(pod) {
			n++
		}
	}
	return n
}

// admits reports whether a pod takes new calls.
func (g *Gateway) admits() bool {
	return slices.ContainsFunc(g.Pods, func(pod *corev1.Pod) bool {
		return ready(pod) && pod.DeletionTimestamp == nil && !g.drains(pod.Name)
	})
}

// drains reports whether the dataplane of a pod reports that it drains.
func (g *Gateway) drains(pod string) bool {
	for _, s := range g.Statuses {
		if s.Pod == pod {
			return s.Draining
		}
	}
	return false
}

func podsFact(s *Snapshot, g *Gateway) string {
	if !s.readable("Pod", g.Namespace) {
		return notChecked + ": Pods are not readable"
	}
	fact := fmt.Sprintf("%d/%d ready", g.ready(), len(g.Pods))
	if calls := g.allocations(); len(g.Statuses) > 0 {
		fact += ", " + count(calls, "call")
	}
	return fact
}

// allocations returns the number of allocations of all dataplanes that answered.
func (g *Gateway) allocations() (n int) {
	for _, s := range g.Statuses {
		n += s.AllocationCount
	}
	return n
}

// endpointsRules check that the Services lead to ready pods.
var endpointsRules = []Rule{
	{"Service has endpoints", func(s *Snapshot, g *Gateway) (found []Finding) {
		if !s.readable("EndpointSlice", g.Namespace) {
			return nil
		}
		for _, svc := range g.Services {
			if svc.Spec.Type == corev1.ServiceTypeExternalName || g.endpoints(svc) > 0 {
				continue
			}
			found = append(found, Finding{
				Severity: Error, Object: ref("Service", svc), Field: "spec.selector",
				Problem: "the Service has no ready endpoints: packets of clients are dropped",
				Remedy:  "label the pods as the selector requires; the operator sets the selector",
				Command: fmt.Sprintf(
					"kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s",
					svc.Namespace,
					svc.Name,
				),
			})
		}
		return found
	}},
}

// endpoints returns the number of ready endpoints of a Service of the Gateway.
func (g *Gateway) endpoints(svc *corev1.Service) (n int) {
	for _, slice := range g.Slices {
		if slice.Labels["kubernetes.io/service-name"] != svc.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready ||
				e.Conditions.Serving != nil && *e.Conditions.Serving {
				n++
			}
		}
	}
	return n
}

func endpointsFact(s *Snapshot, g *Gateway) string {
	if !s.readable("EndpointSlice", g.Namespace) {
		return notChecked + ": EndpointSlices are not readable"
	}
	var facts []string
	for _, svc := range g.Services {
		facts = append(facts, fmt.Sprintf("%s %d", svc.Name, g.endpoints(svc)))
	}
	return few(facts)
}
