package lint

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		p := c.placeOf(id, cond)
		switch {
		case p.kind == condition.InUse && cond.Reason == condition.ReasonUnused:
			user := resource.KindGateway
			if id.kind == string(stunnerv1.KindStaticService) {
				user = string(resource.KindUDPRoute)
			}
			c.add(decode.Info, id, "", "no %s in the files uses it, so that it has no effect", user)
		case p.kind == condition.Programmed && cond.Reason != condition.ReasonAddressNotUsable, !wrong(p.kind, cond):
			// Programmed depends on Services and pods. What the files decide is in the other conditions.
		default:
			for _, message := range parts(cond.Message) {
				c.condition(p, cond, message)
			}
		}
	}
}

func wrong(kind string, cond metav1.Condition) bool {
	cond.Type = kind
	return condition.Wrong(cond)
}

// parts splits the message of several findings, which condition.Join joins, where the next one begins.
func parts(message string) (all []string) {
	for _, begin := range []string{"; backend ", "; StaticService "} {
		message = strings.ReplaceAll(message, begin, "\x00"+begin[2:])
	}
	return strings.Split(message, "\x00")
}

// published are the ends of messages that only tell what is published.
var published = []string{"; what was published before stays in force", "; no config is published"}

// condition adds the finding from a condition with a problem.
func (c *checker) condition(p place, cond metav1.Condition, message string) {
	for _, end := range published {
		message = strings.TrimSuffix(message, end)
	}
	switch {
	case cond.Reason == condition.ReasonListenersNotValid && p.part == "":
		return // each of the listeners has a finding
	case cond.Reason == condition.ReasonNoMatchingParent && strings.HasSuffix(message, " does not exist"):
		return // route finds it, for routes of all API groups
	}
	severity := decode.Error
	switch p.kind {
	case condition.Accepted, condition.ResolvedRefs, condition.Conflicted, condition.Programmed:
	case condition.InputIgnored:
		severity = decode.Info
	default:
		severity = decode.Warning
	}
	id, field, message := c.locate(p, cond, message)
	if cond.Reason == condition.ReasonInvalidCertificateRef && strings.HasSuffix(message, " does not exist") {
		message = strings.TrimSuffix(message, "does not exist") + certificateMissing
	}
	if text := c.excuse(p, cond, message); text != "" {
		severity, message, cond.Reason = decode.Info, text, ""
	}
	if o, ok := c.located[id]; ok {
		c.addProblem(o, decode.Problem{Severity: severity, Field: field, Message: message, Reason: cond.Reason})
	}
}

// certificateMissing is the end of the message about a certificate that neither is in the files nor is made by an object
// in them.
const certificateMissing = "is not in the files, and no object in them makes it: add it, or a Certificate of cert-manager, " +
	"or check with --secrets-elsewhere of stunnerctl lint"

// excuse returns the remark that replaces an error about something that is usually not among the manifests; "" if the
// error stands.
func (c *checker) excuse(p place, cond metav1.Condition, message string) string {
	switch {
	case cond.Reason == condition.ReasonBackendNotFound && strings.HasSuffix(message, "there is no such Service"):
		key, _, _ := strings.Cut(strings.TrimPrefix(message, "backend "), ":")
		return "Service " + key + " is not in the files, so its endpoints are not checked: create it, or correct backendRefs"
	case strings.HasSuffix(message, certificateMissing):
		_, secret, _ := strings.Cut(strings.TrimSuffix(message, " "+certificateMissing), "Secret ")
		maker := c.makerOf(keyOf(secret), p.id)
		if maker == "" && c.SecretsElsewhere {
			maker = "something else"
		}
		if maker != "" {
			return "Secret " + secret + " is not in the files, so its content is not checked; the listener is served when " +
				maker + " has made it"
		}
	case cond.Reason == condition.ReasonNotAllowed && strings.HasSuffix(message, "from is Selector"):
		if c.view.Namespace(p.id.namespace) == nil {
			return "Namespace " + p.id.namespace + " is not in the files, so it is not checked whether the selector of the " +
				"listener matches its labels: set the labels that allowedRoutes of the listener names"
		}
	case cond.Reason == condition.ReasonAddressNotUsable && strings.Contains(message, "is outside of spec.allowedAddresses"):
		if !c.hasConfigOf(p.id) {
			return message + "; the GatewayConfig is not in the files, and that of the chart allows none"
		}
	}
	return ""
}

// hasConfigOf reports whether the files contain the GatewayConfig of the class of a Gateway.
func (c *checker) hasConfigOf(id identity) bool {
	gw := c.view.Gateway(types.NamespacedName{Namespace: id.namespace, Name: id.name})
	class := c.view.Class(string(gw.Spec.GatewayClassName))
	if class == nil || class.Spec.ParametersRef == nil || class.Spec.ParametersRef.Namespace == nil {
		return false
	}
	p := class.Spec.ParametersRef
	_, ok := c.located[configID(string(*p.Namespace), p.Name)]
	return ok
}

// keyOf parses NAMESPACE/NAME.
func keyOf(text string) types.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// gateway adds the findings of a translated Gateway that are in no status: its notes, and that it has no class.
func (c *checker) gateway(r translate.Result) {
	gw := c.view.Gateway(r.Key)
	id := identityOf(gw)
	for _, note := range r.Notes {
		if note == condition.RoutesOverBudget {
			continue // each of the routes has a finding
		}
		p := place{id: id}
		at, field, message := c.locate(p, metav1.Condition{}, note)
		c.add(decode.Info, at, field, "%s", message)
	}
	switch r.Decision {
	case translate.Classless:
		c.add(decode.Error, id, "spec.gatewayClassName", "%s", c.classMissing(string(gw.Spec.GatewayClassName)))
	case translate.Foreign:
		c.foreign(gw)
	case translate.Served:
		c.withoutRoutes(gw, r)
	}
}
