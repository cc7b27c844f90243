// Package alert holds what somebody is told of without looking.
package alert

// Prefix begins the name of every alert: an Alertmanager is shared with others.
const Prefix = "Stunner"

// Runbooks is where what to do stands.
const Runbooks = "https://github.com/stunner-gateway/stunner/blob/main/docs/runbooks"

// Severity says how soon somebody has to look.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // now: somebody cannot call
	Warning  Severity = "warning"  // in working hours: it will get worse, or hides something
)

// Alert is one rule.
type Alert struct {
	Name     string // without Prefix
	Severity Severity
	Expr     string
	For      string
	// Summary is a line, Description what is known when it fires; both are templates of Prometheus.
	Summary, Description string
}

// Group is alerts that are about one service.
type Group struct {
	Name   string
	Alerts []Alert
}

// Runbook is the page of an alert.
func Runbook(name string) string { return Runbooks + "/" + Prefix + name + ".md" }

// File is a file of rules as Prometheus reads it.
type File struct {
	Groups []Rules `json:"groups"`
}

// Rules is a group of rules.
type Rules struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule is a rule that alerts.
type Rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Resource is the same for the Prometheus operator.
type Resource struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       File     `json:"spec"`
}

// Metadata is as much of an object's metadata as a rule needs.
type Metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// AsFile is all alerts as Prometheus reads them.
func AsFile() (f File) {
	for _, g := range Groups() {
		rules := Rules{Name: g.Name}
		for _, a := range g.Alerts {
			rules.Rules = append(rules.Rules, Rule{
				Alert: Prefix + a.Name, Expr: a.Expr, For: a.For, Labels: map[string]string{"severity": string(a.Severity)},
				Annotations: map[string]string{"summary": a.Summary, "description": a.Description, "runbook_url": Runbook(a.Name)},
			})
		}
		f.Groups = append(f.Groups, rules)
	}
	return f
}

// AsResource is all alerts as the Prometheus operator reads them.
func AsResource() Resource {
	return Resource{
		APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule",
		Metadata: Metadata{Name: "stunner", Labels: map[string]string{"app.kubernetes.io/name": "stunner"}}, Spec: AsFile(),
	}
}
