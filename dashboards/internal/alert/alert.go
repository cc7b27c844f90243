// Package alert defines the Prometheus alerts.
//
// The rules are in rules.go, and the queries in package query.
package alert

// Prefix is the prefix of all alert names, because an Alertmanager is shared with other applications.
const Prefix = "Stunner"

// Runbooks is the URL of the runbooks.
const Runbooks = "https://github.com/stunner-gateway/stunner/blob/main/docs/runbooks"

// Severity is the urgency of an alert.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // act now: clients cannot connect
	Warning  Severity = "warning"  // act in working hours
)

// Alert is one rule.
type Alert struct {
	Name     string // without Prefix
	Severity Severity
	Expr     string
	For      string
	// Summary is one line, Description a paragraph. Both are Prometheus templates.
	Summary, Description string
}

// Group is the alerts of one service.
type Group struct {
	Name   string
	Alerts []Alert
}

// Runbook returns the URL of the runbook of an alert.
func Runbook(name string) string { return Runbooks + "/" + Prefix + name + ".md" }

// File is a Prometheus rule file.
type File struct {
	Groups []Rules `json:"groups"`
}

// Rules is a rule group.
type Rules struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule is an alerting rule.
type Rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Resource is a PrometheusRule of the Prometheus operator.
type Resource struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       File     `json:"spec"`
}

// Metadata is the metadata of a PrometheusRule.
type Metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// AsFile returns all alerts as a Prometheus rule file.
func AsFile() (f File) {
	for _, g := range Groups() {
		rules := Rules{Name: g.Name}
		for _, a := range g.Alerts {
			rules.Rules = append(rules.Rules, Rule{
				Alert: Prefix + a.Name, Expr: a.Expr, For: a.For,
				Labels: map[string]string{"severity": string(a.Severity)},
				Annotations: map[string]string{
					"summary": a.Summary, "description": a.Description, "runbook_url": Runbook(a.Name),
				},
			})
		}
		f.Groups = append(f.Groups, rules)
	}
	return f
}

// AsResource returns all alerts as a PrometheusRule.
func AsResource() Resource {
	return Resource{
		APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule",
		Metadata: Metadata{Name: "stunner", Labels: map[string]string{"app.kubernetes.io/name": "stunner"}},
		Spec:     AsFile(),
	}
}
