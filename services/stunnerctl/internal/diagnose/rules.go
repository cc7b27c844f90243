package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// Rule checks one property of a Gateway or of the installation. A rule of a Gateway gets the Gateway, and a rule of the
// whole installation gets nil.
type Rule struct {
	Name  string
	Check func(*Snapshot, *Gateway) []Finding
}

// Stage is one part of the path of a call through a Gateway.
type Stage struct {
	Name string
	// Fact describes what was checked, if there is no finding.
	Fact  func(*Snapshot, *Gateway) string
	Rules []Rule
	// Cluster is set for parts that do not exist with a file provider.
	Cluster bool
	// Objects is set for stages that read objects, and not only answers of the operator.
	Objects bool
	// Depends is set if the findings of the stage are consequences of an error of an earlier stage.
	Depends bool
	// If is a condition for the stage; nil means always.
	If func(*Snapshot) bool
}

// GatewayStages are the stages of a Gateway, from the class to the peer. The operator is the first stage, because it
// answers for the running pods.
var GatewayStages = []Stage{
	{Name: "operator", Fact: answerFact, Rules: answerRules},
	hostStage,
	documentsStage,
	{Name: "class", Objects: true, Fact: classFact, Rules: classRules, Depends: true},
	{Name: "parameters", Objects: true, Fact: parametersFact, Rules: parametersRules, Depends: true},
	{Name: "gateway", Objects: true, Fact: gatewayFact, Rules: gatewayRules, Depends: true},
	{Name: "service", Objects: true, Fact: serviceFact, Rules: serviceRules, Depends: true, Cluster: true},
	{Name: "address", Objects: true, Fact: addressFact, Rules: addressRules, Depends: true},
	{Name: "pods", Objects: true, Fact: podsFact, Rules: podsRules, Depends: true, Cluster: true},
	{Name: "endpoints", Objects: true, Fact: endpointsFact, Rules: endpointsRules, Depends: true, Cluster: true},
	{Name: "config", Fact: configFact, Rules: slices.Concat(configRules, continuityRules), Depends: true},
	{Name: "listener", Fact: listenerFact, Rules: listenerRules, Depends: true},
	{Name: "credential", Fact: credentialFact, Rules: credentialRules, Depends: true},
	{Name: "route", Objects: true, Fact: routeFact, Rules: routeRules},
	{Name: "backend", Objects: true, Fact: backendFact, Rules: backendRules},
	{Name: "policy", Fact: policyFact, Rules: policyRules},
	{Name: "media", Fact: mediaFact, Rules: mediaRules},
	{Name: "peer", Fact: peerFact, Rules: peerRules, If: func(s *Snapshot) bool { return s.Asked.Peer != "" }},
	{Name: "client", Fact: clientFact, Rules: clientRules, If: func(s *Snapshot) bool { return s.Asked.hasClient() }},
	{Name: "reach", Fact: reachFact, Rules: slices.Concat(reachRules, pathRules), Depends: true, If: probed},
	{Name: "allocation", Fact: allocationFact, Rules: allocationRules, Depends: true, If: probed},
	{Name: "packets", Fact: packetFact, Rules: packetRules, Depends: true, If: probed},
}

// SharedStages contains the stages of the resources that all Gateways share.
var SharedStages = []Stage{
	{Name: "kinds", Objects: true, Fact: kindsFact, Rules: kindsRules, Cluster: true},
	{Name: "operator", Fact: operatorFact, Rules: operatorRules},
	hostStage,
	{Name: "auth", Fact: authFact, Rules: authRules},
	documentsStage,
	{Name: "admission", Objects: true, Fact: admissionFact, Rules: admissionRules, Cluster: true},
	{Name: "clocks", Fact: clocksFact, Rules: clocksRules},
	{Name: "proxy", Objects: true, Fact: proxyFact, Rules: proxyRules, Cluster: true},
	{Name: "rights", Objects: true, Fact: rightsFact, Rules: rightsRules, Cluster: true},
}

// State is the result of a stage.
type State string

// The states.
const (
	OK      State = "ok"
	Noted   State = "noted" // only infos
	Warned  State = "warning"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// notChecked is the beginning of the fact of a stage whose objects or answers could not be read.
const notChecked = "not checked"

// Step is a stage that was checked, or that was skipped because an earlier stage failed or nothing could be read.
type Step struct {
	Stage string `json:"stage"`
	State State  `json:"state"`
	// Fact says what was checked, or why the stage was not checked.
	Fact string `json:"fact,omitempty"`
}

// Report is the result of a diagnosis.
type Report struct {
	// Subject is the Gateway, or empty.
	Subject string `json:"subject,omitempty"`
	// Steps are the stages in their order.
	Steps []Step `json:"steps,omitempty"`
	// Findings are ordered by severity, and within a severity in the order of the stages.
	Findings []Finding `json:"findings"`
}

// Wrong reports whether a finding is a problem.
func (r Report) Wrong() bool { return Wrong(r.Findings) }

// Wrong reports whether one of the findings is a problem.
func Wrong(findings []Finding) bool { return slices.ContainsFunc(findings, Finding.Wrong) }

// run runs the rules of stages. After an error, it skips the stages that depend on it. If stop is set, it skips all
// later stages.
func (s *Snapshot) run(stages []Stage, g *Gateway, stop bool) (r Report) {
	r.Findings = []Finding{}
	failed := false
	for _, stage := range stages {
		if stage.Cluster && s.Folder || stage.Objects && s.Remote || stage.If != nil && !stage.If(s) {
			continue
		}
		if failed && (stop || stage.Depends) {
			r.Steps = append(r.Steps, Step{Stage: stage.Name, State: Skipped})
			continue
		}
		var found []Finding
		for _, rule := range stage.Rules {
			found = append(found, rule.Check(s, g)...)
		}
		found = grouped(found)
		step := Step{Stage: stage.Name, State: OK, Fact: Clean(s.inTermsOfProvider(stage.Fact(s, g)))}
		for i := range found {
			found[i] = s.cleaned(found[i])
			found[i].Stage = stage.Name
			step.State = worse(step.State, found[i].Severity)
		}
		if step.State == OK && strings.HasPrefix(step.Fact, notChecked) {
			step.State = Skipped
		}
		failed = failed || step.State == Failed
		r.Steps, r.Findings = append(r.Steps, step), append(r.Findings, found...)
	}
	r.Findings = sorted(r.Findings)
	return r
}

// grouped merges equal findings about several pods into one.
func grouped(found []Finding) (groups []Finding) {
	type key struct {
		severity               Severity
		field, problem, remedy string
	}
	at, pods := map[key]int{}, map[key]int{}
	for _, f := range found {
		k := key{f.Severity, f.Field, f.Problem, f.Remedy}
		if _, again := at[k]; again && strings.HasPrefix(f.Object, "Pod ") {
			pods[k]++
			continue
		}
		at[k] = len(groups)
		groups = append(groups, f)
	}
	for k, more := range pods {
		groups[at[k]].Problem += fmt.Sprintf(" (and %s)", count(more, "other pod"))
	}
	return groups
}

func worse(s State, found Severity) State {
	states := []State{OK, Noted, Warned, Failed}
	now := map[Severity]State{Info: Noted, Warning: Warned, Error: Failed}[found]
	return states[max(slices.Index(states, s), slices.Index(states, now))]
}

// Why checks the stages of one Gateway in order, and stops at the first stage with an error.
func Why(s *Snapshot, namespace, name string) Report {
	r := Report{Subject: "Gateway " + namespace + "/" + name}
	g := s.gateway(namespace, name)
	if g == nil {
		r.Findings = sorted(append(s.run([]Stage{documentsStage}, nil, true).Findings, s.noGateway(namespace, name)))
		return r
	}
	walked := s.run(GatewayStages, g, true)
	r.Steps, r.Findings = walked.Steps, walked.Findings
	shared := s.run(append([]Stage{hostStage}, rightsStage...), nil, false)
	r.Findings = sorted(append(r.Findings, shared.Findings...))
	return r
}

// Doctor checks the installation and every Gateway of a namespace, or of all namespaces if it is empty. For each
// Gateway it skips the stages that depend on an earlier error.
func Doctor(s *Snapshot, namespace string) []Report {
	installation := s.run(SharedStages, nil, false)
	installation.Subject = "Installation"
	reports := []Report{installation}
	gateways, others := s.gateways(namespace)
	for _, g := range gateways {
		r := s.run(GatewayStages, g, false)
		r.Subject = ref("Gateway", g)
		reports = append(reports, r)
	}
	if f := s.noGateways(namespace, len(gateways), others); f != nil {
		reports[0].Findings = sorted(append(reports[0].Findings, *f))
	}
	return reports
}

// All returns the findings of all reports, ordered by severity.
func All(reports []Report) []Finding {
	all := []Finding{}
	for _, r := range reports {
		all = append(all, r.Findings...)
	}
	return sorted(all)
}
