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

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// place is the location of a condition: an object, or a listener or a parent of an object.
type place struct {
	id   identity
	part string // path of the listener or parent; empty for the object
}

// placeOf returns the place of a condition of an object.
func (c *checker) placeOf(id identity, problem condition.Problem) place {
	return place{id: id, part: c.pathOf(id, problem.Part)}
}

// named matches a part of an object that is identified by its name instead of its index, and the rest of the path.
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

// apiVersions are the API versions of the kinds of objects in findings.
var apiVersions = map[string]string{
	"GatewayClass": gwapiv1.GroupVersion.String(), "GatewayConfig": stunnerv1.GroupVersion.String(),
	"Dataplane": stunnerv1.GroupVersion.String(), "StaticService": stunnerv1.GroupVersion.String(), "Revocation": stunnerv1.GroupVersion.String(), "Secret": "v1",
}

// locate returns the object and the field of a finding of a condition, and the problem without them. An object that is
// not in the files stays in the problem.
func (c *checker) locate(p place, f finding.Finding) (identity, string, string) {
	problem := f.Problem
	if f.Object != "" {
		id := c.identityOf(f.Object)
		if _, ok := c.located[id]; !ok {
			return p.id, p.part, f.Object + ": " + problem
		}
		p = place{id: id}
		if key, ok := strings.CutPrefix(f.Field, "data."); ok && id.kind == "Secret" {
			return id, c.secretField(id, key), strings.TrimPrefix(problem, fmt.Sprintf("%s key %q ", f.Object, key))
		}
	}
	if name, ok := strings.CutPrefix(f.Field, "annotation "); ok {
		return p.id, "metadata.annotations." + name, problem
	}
	// A problem that starts with the field or with a field that contains it needs no other mention of the field.
	if first, rest, _ := strings.Cut(problem, " "); first != "" && strings.HasPrefix(f.Field+".", first+".") {
		problem = rest
	}
	return p.id, condition.FieldPath(p.part, c.pathOf(p.id, f.Field)), problem
}

// identityOf returns the object that a finding names.
func (c *checker) identityOf(object string) identity {
	kind, name, _ := strings.Cut(object, " ")
	id := identity{apiVersion: apiVersions[kind], kind: kind}
	id.namespace, id.name, _ = cutLast(name, "/")
	return id
}

// secretField returns the path of a key of a Secret as it is written in the file.
func (c *checker) secretField(id identity, key string) string {
	if field := "stringData." + key; c.has(id, field) || c.has(id, "stringData") {
		return field
	}
	return "data." + key
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
