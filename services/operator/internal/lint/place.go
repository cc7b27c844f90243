package lint

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// place is where a condition stands: an object, or a listener or parent of it.
type place struct {
	id   identity
	kind string // the type of the condition without prefix
	part string // path of the listener or parent; empty for the object
	name string // of the listener or parent
}

// placeOf returns the place of a condition of ObjectStatus.Conditions.
func (c *checker) placeOf(id identity, cond metav1.Condition) place {
	prefix, kind, found := cutLast(cond.Type, " ")
	if !found {
		return place{id: id, kind: cond.Type}
	}
	p := place{id: id, kind: kind}
	what, name, _ := strings.Cut(prefix, " ")
	p.name = name
	if what == "listener" {
		p.part = c.listenerPath(id, name)
		return p
	}
	i := slices.IndexFunc(c.routeOf(id).Parents, func(r gwapiv1.ParentReference) bool { return string(r.Name) == name })
	p.part = fmt.Sprintf("spec.parentRefs[%d]", i)
	return p
}

// listenerPath returns the path of a listener of a Gateway. The names of listeners are unique.
func (c *checker) listenerPath(id identity, name string) string {
	gw := c.view.Gateway(types.NamespacedName{Namespace: id.namespace, Name: id.name})
	i := slices.IndexFunc(gw.Spec.Listeners, func(l gwapiv1.Listener) bool { return string(l.Name) == name })
	return fmt.Sprintf("spec.listeners[%d]", i)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

func (c *checker) routeOf(id identity) *resource.Route {
	for _, ref := range c.view.Routes() {
		if r := c.view.Route(ref); identityOf(r.Origin) == id {
			return r
		}
	}
	return &resource.Route{}
}

var (
	// messageObject matches the object that a message begins with, if it is not the one with the condition.
	messageObject = regexp.MustCompile(`^(GatewayClass|GatewayConfig|Dataplane|StaticService|Secret) ([a-z0-9./-]+):? (?:key "([^"]*)" )?`)
	// messageField matches the field that a message begins with.
	messageField = regexp.MustCompile(`^((?:spec|metadata)\.[\w.\[\]]*[\w\]]|tls\.(?:certificateRefs(?:\[\d+\])?|mode)|allowedRoutes\.\w+)(?:: | )`)
	// messageAnnotation matches the annotation that a message begins with.
	messageAnnotation = regexp.MustCompile(`^annotation ([\w./-]+): `)
	// messageListener matches the listener that a note of a Gateway begins with.
	messageListener = regexp.MustCompile(`^listener ([a-z0-9.-]+): `)
	messageBackend  = regexp.MustCompile(`^backend ([^ :]+): `)
	messagePrefix   = regexp.MustCompile(`^prefix "([^"]*)" `)
)

// apiVersions are the API versions of the kinds in messageObject.
var apiVersions = map[string]string{
	"GatewayClass": gwapiv1.GroupVersion.String(), "GatewayConfig": stunnerv1.GroupVersion.String(),
	"Dataplane": stunnerv1.GroupVersion.String(), "StaticService": stunnerv1.GroupVersion.String(), "Secret": "v1",
}

// locate returns the object and the field of a message, and the message without them. The messages of conditions are
// "[OBJECT: ][FIELD: ]PROBLEM: REMEDY".
func (c *checker) locate(p place, cond metav1.Condition, message string) (identity, string, string) {
	if m := messageObject.FindStringSubmatch(message); m != nil {
		id := identity{apiVersion: apiVersions[m[1]], kind: m[1], name: m[2]}
		id.namespace, id.name, _ = cutLast(m[2], "/")
		if _, ok := c.located[id]; ok {
			p = place{id: id, kind: p.kind}
			message = message[len(m[0]):]
			if m[3] != "" {
				return id, c.secretField(id, m[3]), message
			}
		}
	}
	if m := messageListener.FindStringSubmatch(message); m != nil {
		p.part = c.listenerPath(p.id, m[1])
		message = message[len(m[0]):]
	}
	if m := messageAnnotation.FindStringSubmatch(message); m != nil {
		return p.id, "metadata.annotations." + m[1], message[len(m[0]):]
	}
	if m := messageField.FindStringSubmatch(message); m != nil {
		field, rest := m[1], message[len(m[0]):]
		if !strings.HasPrefix(field, "spec.") && !strings.HasPrefix(field, "metadata.") {
			field = strings.TrimPrefix(p.part+"."+field, ".")
		}
		return p.id, c.ofReference(p.id, field, rest), rest
	}
	if m := messageBackend.FindStringSubmatch(message); m != nil {
		if field := c.backendField(p.id, m[1], cond.Reason); field != "" {
			return p.id, field, message
		}
	}
	if m := messagePrefix.FindStringSubmatch(message); m != nil && p.id.kind == "StaticService" {
		s := c.view.StaticService(types.NamespacedName{Namespace: p.id.namespace, Name: p.id.name})
		return p.id, fmt.Sprintf("spec.prefixes[%d]", slices.Index(s.Spec.Prefixes, m[1])), message
	}
	return p.id, cmp.Or(c.fieldOfReason(p, cond, message), p.part), message
}

// ofReference returns the field of a reference that the rest of a message is about, if the field is a reference.
func (c *checker) ofReference(id identity, field, rest string) string {
	part := ".name"
	switch {
	case strings.HasPrefix(rest, "needs "):
		return field
	case strings.HasPrefix(rest, "names a "):
		part = ".kind"
	}
	if c.has(id, field+part) {
		return field + part
	}
	return field
}

// secretField returns the path of a key of a Secret, as the file has it.
func (c *checker) secretField(id identity, key string) string {
	if field := "stringData." + key; c.has(id, field) || c.has(id, "stringData") {
		return field
	}
	return "data." + key
}

// listenerFields are the fields of a listener that a reason is about.
var listenerFields = map[string]string{
	condition.ReasonUnsupportedProtocol:   "protocol",
	condition.ReasonPortUnavailable:       "port",
	condition.ReasonProtocolConflict:      "port",
	condition.ReasonUnsupportedValue:      "tls.mode",
	condition.ReasonInvalidRouteKinds:     "allowedRoutes.kinds",
	condition.ReasonInvalidCertificateRef: "tls.certificateRefs",
}

// fieldOfReason returns the path of the field that a condition without a field in its message is about.
func (c *checker) fieldOfReason(p place, cond metav1.Condition, message string) string {
	switch {
	case strings.HasPrefix(p.part, "spec.listeners") && strings.HasPrefix(message, "protocol "):
		return p.part + ".protocol"
	case strings.HasPrefix(p.part, "spec.listeners") && strings.HasPrefix(message, "another listener is called"):
		return p.part + ".name"
	case strings.HasPrefix(p.part, "spec.listeners") && listenerFields[cond.Reason] != "":
		return p.part + "." + listenerFields[cond.Reason]
	case strings.HasPrefix(p.part, "spec.parentRefs") && cond.Reason == condition.ReasonNoMatchingParent:
		for _, field := range []string{".sectionName", ".port", ".name"} {
			if c.has(p.id, p.part+field) {
				return p.part + field
			}
		}
	case strings.HasPrefix(message, "UDPRoute "): // of the same name
		return "metadata.name"
	case p.kind == condition.GuessableCredentials:
		for _, field := range []string{"spec.authRef", "spec.sharedSecret", "spec.password"} {
			if c.has(p.id, field) {
				return field
			}
		}
	}
	return ""
}

// backendFields are the fields of a backendRef that a reason is about.
var backendFields = map[string]string{
	condition.ReasonInvalidKind: "kind", condition.ReasonUnsupportedValue: "port",
}

// backendField returns the path of the backendRef of a route that names an object.
func (c *checker) backendField(id identity, backend, reason string) string {
	r := c.routeOf(id)
	paths := backendPaths(r.Origin)
	for i, b := range r.Backends {
		if b.Key().String() == backend && i < len(paths) {
			field := paths[i] + "." + cmp.Or(backendFields[reason], "name")
			if !c.has(id, field) {
				return paths[i] + ".name"
			}
			return field
		}
	}
	return ""
}

// backendPaths returns the paths of the backendRefs of a route, in the order of resource.Route.Backends.
func backendPaths(o resource.Object) (paths []string) {
	add := func(rule, backends int) {
		for b := range backends {
			paths = append(paths, fmt.Sprintf("spec.rules[%d].backendRefs[%d]", rule, b))
		}
	}
	switch o := o.(type) {
	case *stunnerv1.UDPRoute:
		for i, rule := range o.Spec.Rules {
			add(i, len(rule.BackendRefs))
		}
	case *gwapiv1.UDPRoute:
		for i, rule := range o.Spec.Rules {
			add(i, len(rule.BackendRefs))
		}
	case *gwapiv1a2.UDPRoute:
		for i, rule := range o.Spec.Rules {
			add(i, len(rule.BackendRefs))
		}
	}
	return paths
}

// makerOf returns the object in the files that makes a Secret when it is applied; "" if there is none. It knows the
// kinds of cert-manager, External Secrets and Sealed Secrets. gateway has the listener that refers to the Secret.
func (c *checker) makerOf(secret types.NamespacedName, gateway identity) string {
	for _, o := range c.others {
		u := unstructuredOf(o)
		namespace := cmp.Or(o.GetNamespace(), "default")
		if namespace != secret.Namespace {
			continue
		}
		made := ""
		switch id := identityOf(o.Object); {
		case id.kind == "Certificate" && strings.HasPrefix(id.apiVersion, "cert-manager.io/"):
			made = textAt(u, "spec", "secretName")
		case id.kind == "ExternalSecret":
			made = cmp.Or(textAt(u, "spec", "target", "name"), id.name)
		case id.kind == "SealedSecret":
			made = cmp.Or(textAt(u, "spec", "template", "metadata", "name"), id.name)
		}
		if made == secret.Name {
			return identityOf(o.Object).String()
		}
	}
	if gw := c.view.Gateway(types.NamespacedName{Namespace: gateway.namespace, Name: gateway.name}); gw != nil {
		for _, annotation := range []string{"cert-manager.io/issuer", "cert-manager.io/cluster-issuer"} {
			if gw.Annotations[annotation] != "" {
				return "cert-manager"
			}
		}
	}
	return ""
}

func parentKind(p gwapiv1.ParentReference) string {
	return string(ptr.Deref(p.Kind, resource.KindGateway))
}
