package lint

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// status adds the findings from the conditions of an object.
func (c *checker) status(s translate.ObjectStatus) {
	id := identityOf(s.Object)
	for _, cond := range s.Conditions {
		if cond.Type == condition.InUse && cond.Reason == condition.ReasonUnused {
			user := resource.KindGateway
			if id.kind == string(stunnerv1.KindStaticService) {
				user = string(resource.KindUDPRoute)
			}
			c.add(decode.Info, id, "", finding.Errorf("use it or remove it", "no %s in the files uses it, so that it has no effect", user))
		}
	}
	for _, problem := range s.Problems {
		// Programmed depends on Services and pods. The other conditions contain the problems of the files.
		if problem.Type != condition.Programmed || problem.Reason == condition.ReasonAddressNotUsable {
			for _, f := range problem.Findings {
				c.condition(c.placeOf(id, problem), problem, f)
			}
		}
	}
}

var severities = map[finding.Severity]decode.Severity{
	finding.Error: decode.Error, finding.Warning: decode.Warning, finding.Info: decode.Info,
}

// condition adds a finding of a condition that reports a problem.
func (c *checker) condition(p place, cond condition.Problem, f finding.Finding) {
	switch {
	case cond.Reason == condition.ReasonListenersNotValid && p.part == "":
		return // the listeners have their own findings
	case strings.HasPrefix(f.DependsOn, resource.KindGateway+" "):
		return // function route adds this finding, for routes of all API groups
	}
	severity := severities[cond.Severity()]
	id, field, problem := c.locate(p, f)
	found := finding.Errorf(f.Remedy, "%s", problem)
	if f.DependsOn != "" {
		if excuse := c.excuse(p, cond.Reason, f.DependsOn, problem); excuse != nil {
			severity, found = decode.Info, excuse
		} else if cond.Reason == condition.ReasonInvalidCertificateRef {
			found = certificateMissing(f.DependsOn)
		}
	}
	c.add(severity, id, field, found)
}

// certificateMissing returns the error about a certificate that neither is in the files nor is made by an object in
// them.
func certificateMissing(secret string) error {
	return finding.Errorf("add it, or a Certificate of cert-manager, or check with --secrets-elsewhere of stunnerctl lint",
		"%s is not in the files, and no object in them makes it", secret)
}

// excuse returns a remark that replaces an error, or nil if the error remains an error. An error is replaced if its
// finding depends on an object that is usually not among the manifests.
func (c *checker) excuse(p place, reason, dependsOn, problem string) error {
	switch needed := c.identityOf(dependsOn); needed.kind {
	case "Service":
		return finding.Errorf("create it, or correct backendRefs", "%s is not in the files, so its endpoints are not checked", needed)
	case "Secret":
		if reason != condition.ReasonInvalidCertificateRef {
			return nil
		}
		maker := c.makerOf(types.NamespacedName{Namespace: needed.namespace, Name: needed.name}, p.id)
		if maker == "" && c.SecretsElsewhere {
			maker = "something else"
		}
		if maker != "" {
			return finding.Errorf("the listener is served when "+maker+" has made it",
				"%s is not in the files, so its content is not checked", needed)
		}
	case "Namespace":
		if c.view.Namespace(needed.name) == nil {
			return finding.Errorf("set the labels that allowedRoutes of the listener names",
				"%s is not in the files, so it is not checked whether the selector of the listener matches its labels", needed)
		}
	case resource.KindGatewayConfig:
		if _, ok := c.located[needed]; !ok && reason == condition.ReasonAddressNotUsable {
			return finding.Errorf("leave it out, or have the range added there; the GatewayConfig is not in the files, and that "+
				"of the chart allows none", "%s", problem)
		}
	}
	return nil
}

// gateway adds the findings of a translated Gateway that are in no status: its notes, and that it has no class.
func (c *checker) gateway(r translate.Result) {
	gw := c.view.Gateway(r.Key)
	id := identityOf(gw)
	for _, note := range r.Notes {
		if note.Reason == condition.ReasonBudgetExceeded {
			continue // the routes have their own findings
		}
		for _, f := range note.Findings() {
			at, field, problem := c.locate(place{id: id}, f)
			c.add(decode.Info, at, field, finding.Errorf(f.Remedy, "%s", problem))
		}
	}
	switch r.Decision {
	case translate.Classless:
		c.add(decode.Error, id, "spec.gatewayClassName", c.classMissing(string(gw.Spec.GatewayClassName)))
	case translate.Foreign:
		c.foreign(gw)
	case translate.Served:
		c.withoutRoutes(gw, r)
	}
}
