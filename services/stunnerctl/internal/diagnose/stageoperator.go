package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// operatorRules check the operator and config discovery.
var operatorRules = []Rule{
	{"operator runs", func(s *Snapshot, _ *Gateway) []Finding {
		namespace := s.operatorNamespace()
		if s.Folder || !s.readable("Pod", namespace) || s.operatorReady() > 0 {
			return nil
		}
		f := Finding{
			Severity: Error, Object: objectName("Deployment", namespace, s.operatorApp()), Field: "status.readyReplicas",
			Problem: "no pod of the operator is ready: changes do not take effect, running calls continue",
			Remedy:  "see its pods and their log", Command: s.operatorPods(),
		}
		for _, pod := range s.operatorAll() {
			if p := s.podProblem(pod); p.problem != "" {
				f.Object, f.Field, f.Command = ref("Pod", pod), p.field, describe("pod", pod)
				f.Problem = "the operator does not run: " + p.problem
			}
		}
		return []Finding{f}
	}},
	{"config discovery has endpoints", func(s *Snapshot, _ *Gateway) []Finding {
		namespace := s.operatorNamespace()
		if s.Folder || !s.readable("Service", namespace) || !s.readable("EndpointSlice", namespace) {
			return nil
		}
		svc := find[corev1.Service](s, "Service", namespace, discoveryService)
		f := Finding{
			Severity: Error, Object: objectName("Service", namespace, discoveryService), Field: "spec.selector",
			Command: fmt.Sprintf(
				"kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s",
				namespace,
				discoveryService,
			),
		}
		if svc == nil {
			f.Field, f.Problem = "metadata.name", "does not exist: dataplanes cannot connect to the operator"
			f.Remedy = "install it again with the chart or kustomize/base/operator.yaml"
			return []Finding{f}
		}
		if ready, _ := s.endpointsOf(svc); ready > 0 || s.operatorReady() == 0 {
			return nil
		}
		f.Problem = "has no endpoints although the operator is ready: dataplanes cannot connect to it"
		f.Remedy = "correct its selector: app: " + s.operatorApp()
		return []Finding{f}
	}},
	operatorAnswers,
}

const discoveryService = "stunner-config-discovery"

func (s *Snapshot) operatorAll() (pods []*corev1.Pod) {
	for _, pod := range list[corev1.Pod](s, "Pod") {
		if pod.Namespace == s.operatorNamespace() && pod.Labels["app"] == s.operatorApp() {
			pods = append(pods, pod)
		}
	}
	return pods
}

// operatorReady returns the number of ready pods of the operator.
func (s *Snapshot) operatorReady() (n int) {
	for _, pod := range s.operatorAll() {
		if ready(pod) {
			n++
		}
	}
	return n
}

func operatorFact(s *Snapshot, _ *Gateway) string {
	var facts []string
	if n := len(s.operatorAll()); n > 0 {
		facts = append(facts, fmt.Sprintf("%d/%d ready", s.operatorReady(), n))
	}
	if s.Operator != nil {
		facts = append(facts, s.Operator.version())
	}
	return cmp.Or(few(facts), notChecked+": its pods are not readable, and it was not asked")
}

// answerRules check, in the diagnosis of one Gateway, that the operator answers, because the later stages use its
// answers.
var answerRules = []Rule{operatorAnswers}

var operatorAnswers = Rule{"operator answers", func(s *Snapshot, _ *Gateway) []Finding {
	f := Finding{
		Severity: Warning, Object: objectName("Service", s.operatorNamespace(), discoveryService), Field: "spec.ports[cds]",
		Remedy: "see the pods of the operator, or use --operator URL", Command: s.operatorPods(),
	}
	switch {
	case s.Folder:
		f.Object, f.Field = "operator", "discovery.url"
		f.Remedy = "start the operator with this output folder, and see its log"
	case s.Remote:
		f.Object, f.Field, f.Command = "operator", "--operator", ""
		f.Remedy = "check the URL in --operator, and that the operator runs"
	}
	switch u := s.Unreached; {
	case u == nil && s.OperatorError == "":
		return nil
	case u == nil:
		f.Problem = "the operator cannot be asked: " + s.OperatorError
	case u.Denied:
		f.Severity, f.Problem = Info, "you may not connect to the operator, so the running pods were not asked: "+u.Problem
		f.Command = "kubectl auth can-i --list -n " + s.operatorNamespace()
	default:
		f.Problem = "the operator cannot be reached, so the running pods were not asked: " + u.Problem
		if s.Folder { // the operator starts crashed dataplanes again, and sends them their configs
			f.Severity = Error
		}
	}
	if s.Unreached != nil {
		f.Remedy = cmp.Or(s.Unreached.Remedy, f.Remedy)
	}
	return []Finding{f}
}}

func answerFact(s *Snapshot, g *Gateway) string {
	switch {
	case s.Unreached != nil:
		return notChecked + ": the operator cannot be reached"
	case s.Operator != nil:
		return "answers, " + s.Operator.version()
	case g.Live.Status != nil:
		return "answers"
	}
	return notChecked + ": the operator was not asked"
}

// version returns the version without the name of the program.
func (o *Operator) version() string { return strings.TrimPrefix(o.Version, "operator ") }

// notAsked returns why there is no answer of a pod about a subject, such as "sessions".
func (s *Snapshot) notAsked(g *Gateway, subject string) string {
	switch {
	case g.Live.Errors[subject] != "":
		return g.Live.Errors[subject]
	case s.Unreached != nil:
		return s.Unreached.Problem
	}
	return "no pod has answered"
}
