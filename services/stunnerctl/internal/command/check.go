package command

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/render"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
)

// check is the common part of lint and render: both translate manifests, and fail if an object would not be in force.
type check struct {
	options render.Options
	failOn  string
}

func newCheck() check {
	return check{options: render.DefaultOptions(), failOn: string(manifests.Error)}
}

func (c *check) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.failOn, "fail-on", c.failOn,
		"exit with code 1 for a finding of this severity or a more serious one: error, warning or remark; error means that something would not be in force")
	f.BoolVar(&c.options.SecretsElsewhere, "secrets-elsewhere", false,
		"the certificates that listeners refer to and the manifests lack exist in the cluster: a remark, not an error")
	f.StringVar(&c.options.ControllerName, "controller-name", c.options.ControllerName,
		"controller name of the GatewayClasses to translate")
}

// validate checks the flags.
func (c *check) validate() error {
	if !slices.Contains(manifests.Severities, manifests.Severity(c.failOn)) {
		return usagef("--fail-on %q: use error, warning or remark", c.failOn)
	}
	return nil
}

// run translates the units of manifests. It returns the translation of each unit, and the findings of all units.
func (c *check) run(units []manifests.Unit) (results []render.Result, findings []manifests.Finding) {
	c.options.Now = metav1.NewTime(time.Now())
	for _, u := range units {
		findings = append(findings, u.Findings...)
		result := render.Files(u.Files, c.options)
		results = append(results, result)
		for _, f := range manifests.Findings(result.Problems) {
			if f = u.Locate(f); !slices.Contains(findings, f) {
				findings = append(findings, f)
			}
		}
	}
	manifests.Sort(findings)
	return results, findings
}

// failed returns errChecksFailed if the severity of a finding is at least --fail-on.
func (c *check) failed(findings []manifests.Finding) error {
	if slices.ContainsFunc(findings, func(f manifests.Finding) bool {
		return !f.NotRead && f.Severity.AtLeast(manifests.Severity(c.failOn))
	}) {
		return errChecksFailed
	}
	return nil
}
