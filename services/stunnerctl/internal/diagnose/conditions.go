package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wrongStatus is, for each condition type of the operator, the status that means a problem. With "True" the condition
// is a warning.
var wrongStatus = map[string]metav1.ConditionStatus{
	"Accepted": metav1.ConditionFalse, "Programmed": metav1.ConditionFalse, "ResolvedRefs": metav1.ConditionFalse,
	"Autoscaled": metav1.ConditionFalse, "Conflicted": metav1.ConditionTrue,
	"RealmNotDNSName": metav1.ConditionTrue, "InsecureInlineCredentials": metav1.ConditionTrue,
	"GuessableCredentials": metav1.ConditionTrue, "OffloadUnavailable": metav1.ConditionTrue,
	"DeprecatedInput": metav1.ConditionTrue,
}

// warnings are the condition types whose objects are in force nevertheless.
var warnings = []string{
	"Autoscaled", "RealmNotDNSName", "InsecureInlineCredentials", "GuessableCredentials", "OffloadUnavailable",
	"DeprecatedInput",
}

// IsWrong reports whether a condition of the operator reports a problem. Conditions of other controllers do not.
func IsWrong(c metav1.Condition) bool {
	bad, known := wrongStatus[c.Type]
	return known && (c.Status == bad || c.Status == metav1.ConditionUnknown && bad == metav1.ConditionFalse)
}

// wrong returns those conditions of the types that report a problem. Without types it returns those of all types that
// the operator writes.
func wrong(all []metav1.Condition, types ...string) (found []metav1.Condition) {
	for _, c := range all {
		if c.Reason == "Pending" && c.ObservedGeneration == 0 && c.LastTransitionTime.Unix() == 0 {
			continue // the default of the CRD: no operator has written the condition
		}
		if IsWrong(c) && (len(types) == 0 || slices.Contains(types, c.Type)) {
			found = append(found, c)
		}
	}
	return found
}

// The messages of conditions are "[OBJECT: ][FIELD: ]PROBLEM: REMEDY" or "…; REMEDY". A remedy starts with a verb.
var (
	messageObject = regexp.MustCompile(
		`^(GatewayClass|GatewayConfig|Dataplane|StaticService|Service|Secret) ([a-z0-9./-]+): `,
	)
	messageField = regexp.MustCompile(
		`^(?:the API server refuses )?((?:spec|metadata|tls|allowedRoutes)[\w.\[\]"]*|annotation [\w./-]+)`)
	messageBackend = regexp.MustCompile(`^backend [^ :]+: `)
	messageRemedy  = regexp.MustCompile(
		`[:;] ((?:only |a cause is )?(?:use|write|name|set|add|remove|create|rename|mend|` +
			`delete|leave|see|make|install|correct|take|move|have|keep|annotation) .*)$`,
	)
)

// messageNotes are parts of messages that only tell what is published.
var messageNotes = []string{"; what was published before stays in force", "; no config is published"}

// noRemedy is the remedy for a condition whose message and reason are unknown to this release.
const noRemedy = "see the message of the condition"

// textRemedies are remedies for messages without one that occur under several reasons.
var textRemedies = []pattern{
	{text: regexp.MustCompile(`^Secret \S+ does not exist`), remedy: "create the Secret, or name another one"},
	{text: regexp.MustCompile(`^Dataplane \S+ does not exist`), remedy: "create the Dataplane, or name another one"},
	{
		text:   regexp.MustCompile(`^GatewayConfig \S+ does not exist`),
		remedy: "create the GatewayConfig, or name another one",
	},
	{
		text:   regexp.MustCompile(`takes no UDPRoutes of group`),
		remedy: "add the kind to allowedRoutes.kinds of the listener",
	},
	{text: regexp.MustCompile(`must have 1 to 127 characters`), remedy: "set spec.realm to a DNS name"},
	{
		text:   regexp.MustCompile(`is no DNS name`),
		remedy: "set spec.realm to a DNS name, unless a tool needs this realm",
	},
	{
		text:   regexp.MustCompile(`in the kernel as requested: |in user space: `),
		remedy: "see forwarding in the kernel in docs/gateway.md for the reason",
	},
}

// remedies are the remedies for the reasons whose messages contain none.
var remedies = map[string]string{
	"AddressNotAssigned":    "see the events of the Service, or set spec.addresses of the Gateway",
	"BackendNotFound":       "create the backend, or correct backendRefs of the route",
	"BudgetExceeded":        "name fewer backends or ports, or raise spec.budget of the GatewayConfig",
	"DataplaneNotFound":     "create the Dataplane, or name another one in spec.dataplane of the GatewayConfig",
	"Invalid":               "correct the field that the message names; the operator retries",
	"InvalidAnnotations":    "correct spec.loadBalancerServiceAnnotations of the GatewayConfig",
	"InvalidAutoscaling":    "correct spec.autoscaling of the Dataplane",
	"InvalidCertificateRef": "create the Secret with tls.crt and tls.key, or correct tls.certificateRefs",
	"InvalidCredentials":    "correct the credentials of the GatewayConfig or its Secret",
	"InvalidParameters":     "create the GatewayConfig, or correct parametersRef",
	"InvalidPatch":          "correct spec.podTemplatePatch of the Dataplane",
	"InvalidPrefix":         "write an IP address or a CIDR prefix in spec.prefixes",
	"InvalidRealm":          "set spec.realm of the GatewayConfig to a DNS name",
	"ListenersNotValid":     "see the conditions of the listeners",
	"NoMatchingParent":      "correct parentRefs of the route: name, namespace, sectionName and port",
	"NotAllowedByListeners": "set allowedRoutes.namespaces of the listener to All or to a Selector of the namespace of the route",
	"Pending":               "see the other conditions of the Gateway and the log of the operator",
	"PortUnavailable":       "use another port for the listener",
	"ProtocolConflict":      "use another port for one of the two listeners",
	"RefNotPermitted":       "create a ReferenceGrant in the namespace of the backend or Secret",
	"SecretKeyNotFound":     "add the key to the Secret",
	"SecretNotFound":        "create the Secret, or name another one in the GatewayConfig",
	"UnsupportedValue":      "use a supported value",
	"AddressNotUsable":      "use an address in spec.allowedAddresses of the GatewayConfig of the class, or leave it out",
	"InvalidDeniedBackends": "correct spec.deniedBackends of the GatewayConfig",
	"InvalidKind":           "name a Service or a StaticService",
	"InvalidRouteKinds":     "name UDPRoute in allowedRoutes.kinds, or leave the field out",
	"KEDAMissing":           "install KEDA, or remove spec.autoscaling from the Dataplane",
	"MetricsOff":            "set spec.enableMetricsEndpoint of the Dataplane to true",
	"OneHost":               "remove spec.autoscaling from the Dataplane",
	"UnsupportedAddress":    "use type IPAddress or Hostname",
	"UnsupportedProtocol":   "use TURN-UDP, TURN-TCP, TURN-TLS or TURN-DTLS",
}

// fromCondition returns the finding of a condition that reports a problem. object is the object with the condition, and
// field the path of the part that has the condition.
func fromCondition(object, part string, c metav1.Condition, command string) Finding {
	message := Clean(c.Message)
	for _, note := range messageNotes {
		message = strings.ReplaceAll(message, note, "")
	}
	f := Finding{Severity: Error, Object: object, Problem: message, Command: command}
	if slices.Contains(warnings, c.Type) {
		f.Severity = Warning
	}
	if m := messageObject.FindStringSubmatch(message); m != nil {
		f.Object, message = m[1]+" "+m[2], message[len(m[0]):]
		f.Problem = message
	}
	if m := messageField.FindStringSubmatch(message); m != nil {
		f.Field = strings.TrimSuffix(m[1], ".")
	} else if messageBackend.MatchString(message) {
		f.Field = "spec.rules[].backendRefs"
	} else {
		f.Field = fmt.Sprintf("status.conditions[%s]", c.Type)
	}
	if part != "" {
		f.Field = part + "." + f.Field
	}
	if m := messageRemedy.FindStringSubmatchIndex(message); m != nil {
		f.Problem, f.Remedy = message[:m[0]], message[m[2]:m[3]]
	}
	if m := messageField.FindStringSubmatch(f.Problem); m != nil && strings.HasPrefix(f.Problem, m[1]+": ") {
		f.Problem = strings.TrimPrefix(f.Problem, m[1]+": ") // Field has it
	}
	f.Problem = cmp.Or(f.Problem, c.Reason)
	if p := match(textRemedies, f.Problem); p != nil {
		f.Remedy = cmp.Or(f.Remedy, p.remedy)
	}
	f.Remedy = cmp.Or(f.Remedy, remedies[c.Reason], noRemedy)
	return f
}
