package lint

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// place is where a condition stands: an object, or a listener or parent of it.
type place struct {
	id   identity
	kind string // the type of the condition without prefix
	part string // path of the listener or parent; empty for the object
}

// placeOf returns the place of a condition of an object.
func (c *checker) placeOf(id identity, problem condition.Problem) place {
	return place{id: id, kind: problem.Type, part: c.pathOf(id, problem.Part)}
}

// named matches a part of an object with its name in place of its index, and what follows.
var named = regexp.MustCompile(`^spec\.(listeners|parentRefs)\[([^\]]*[^\]0-9][^\]]*)\](.*)$`)

// pathOf returns the path of a field with indices in place of names.
func (c *checker) pathOf(id identity, field string) string {
	m := named.FindStringSubmatch(field)
	switch {
	case m == nil:
		return field
	case m[1] == "listeners":
		return c.listenerPath(id, m[2]) + m[3]
	}
	i := slices.IndexFunc(c.routeOf(id).Parents, func(r gwapiv1.ParentReference) bool { return translate.ParentName(r) == m[2] })
	return fmt.Sprintf("spec.parentRefs[%d]%s", i, m[3])
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
	messageBackend = regexp.MustCompile(`^backend ([^ :]+): `)
	messagePrefix  = regexp.MustCompile(`^prefix "([^"]*)" `)
)

// apiVersions are the API versions of the kinds of objects in findings.
var apiVersions = map[string]string{
	"GatewayClass": gwapiv1.GroupVersion.String(), "GatewayConfig": stunnerv1.GroupVersion.String(),
	"Dataplane": stunnerv1.GroupVersion.String(), "StaticService": stunnerv1.GroupVersion.String(), "Secret": "v1",
}

// locate returns the object and the field of a finding of a condition with a reason, and the problem without them. An
// object that is not in the files stays in the problem.
func (c *checker) locate(p place, reason string, f finding.Finding) (identity, string, string) {
	problem := f.Problem
	if kind, name, ok := strings.Cut(f.Object, " "); ok {
		id := identity{apiVersion: apiVersions[kind], kind: kind}
		id.namespace, id.name, _ = cutLast(name, "/")
		if _, ok := c.located[id]; !ok {
			return p.id, cmp.Or(c.fieldOfReason(p, reason, problem), p.part), f.Object + ": " + problem
		}
		p = place{id: id, kind: p.kind}
		if key, ok := strings.CutPrefix(f.Field, "data."); ok && kind == "Secret" {
			return id, c.secretField(id, key), strings.TrimPrefix(problem, fmt.Sprintf("Secret %s key %q ", name, key))
		}
	}
	if name, ok := strings.CutPrefix(f.Field, "annotation "); ok {
		return p.id, "metadata.annotations." + name, problem
	}
	if m := messageBackend.FindStringSubmatch(problem); m != nil {
		if field := c.backendField(p.id, m[1], reason); field != "" {
			return p.id, field, problem
		}
	}
	if m := messagePrefix.FindStringSubmatch(problem); m != nil && p.id.kind == "StaticService" {
		s := c.view.StaticService(types.NamespacedName{Namespace: p.id.namespace, Name: p.id.name})
		return p.id, fmt.Sprintf("spec.prefixes[%d]", slices.Index(s.Spec.Prefixes, m[1])), problem
	}
	if f.Field != "" && f.Field != "spec.rules[].backendRefs" {
		field := c.pathOf(p.id, f.Field)
		problem = strings.TrimPrefix(problem, f.Field+" ")
		if !strings.HasPrefix(field, "spec.") && !strings.HasPrefix(field, "metadata.") {
			field = strings.TrimPrefix(p.part+"."+field, ".")
		}
		return p.id, c.ofReference(p.id, field, problem), problem
	}
	return p.id, cmp.Or(c.fieldOfReason(p, reason, problem), p.part), problem
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
func (c *checker) fieldOfReason(p place, reason, message string) string {
	switch {
	case strings.HasPrefix(p.part, "spec.listeners") && strings.HasPrefix(message, "protocol "):
		return p.part + ".protocol"
	case strings.HasPrefix(p.part, "spec.listeners") && strings.HasPrefix(message, "another listener is called"):
		return p.part + ".name"
	case strings.HasPrefix(p.part, "spec.listeners") && listenerFields[reason] != "":
		return p.part + "." + listenerFields[reason]
	case strings.HasPrefix(p.part, "spec.parentRefs") && reason == condition.ReasonNoMatchingParent:
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
