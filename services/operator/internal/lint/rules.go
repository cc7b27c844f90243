package lint

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// rules adds the findings about objects that the translation does not judge. The translation does not read them, or in
// a cluster another controller may use them.
func (c *checker) rules() {
	for _, o := range c.Objects {
		c.contain(o.Object, func() { c.object(o) })
	}
	for _, ref := range c.view.Routes() {
		r := c.view.Route(ref)
		c.contain(r.Origin, func() { c.route(r) })
	}
}

func (c *checker) object(o decode.Located) {
	switch object := o.Object.(type) {
	case *gwapiv1.Gateway:
		c.annotations(o, "metadata.annotations.", object.Annotations)
		for i, l := range object.Spec.Listeners {
			if l.Hostname != nil {
				c.addAt(o, decode.Info, fmt.Sprintf("spec.listeners[%d].hostname", i), finding.Errorf("remove it", "has no effect, because TURN requests contain no host name"))
			}
		}
	case *stunnerv1.GatewayConfig:
		c.annotations(o, "spec.loadBalancerServiceAnnotations.", object.Spec.LoadBalancerServiceAnnotations)
		c.credentials(o, object)
	case *discoveryv1.EndpointSlice:
		c.endpointSlice(o, object)
	case *gwapiv1.ReferenceGrant:
		c.grant(o, object)
	case *unstructured.Unstructured:
		c.other(o, object)
	}
}

// classMissing is the error about a Gateway whose class neither the files nor the chart contain.
func (c *checker) classMissing(name string) error {
	use := []string{"stunner"}
	if own := slices.DeleteFunc(c.view.Classes(), func(n string) bool { return !c.ours(n) }); len(own) > 0 {
		use = own
	}
	return finding.Errorf("add it, or use "+strings.Join(use, " or "), "GatewayClass %s is not in the files, so the Gateway is not checked", name)
}

func (c *checker) ours(class string) bool {
	return string(c.view.Class(class).Spec.ControllerName) == c.Options.ControllerName
}

// foreign adds a finding if a Gateway of another controller is evidently meant for STUNner: its class names a
// GatewayConfig, or a listener has a protocol of TURN.
func (c *checker) foreign(gw *gwapiv1.Gateway) {
	class := c.view.Class(string(gw.Spec.GatewayClassName))
	p := class.Spec.ParametersRef
	turn := slices.ContainsFunc(gw.Spec.Listeners, func(l gwapiv1.Listener) bool {
		return strings.HasPrefix(strings.ToUpper(string(l.Protocol)), "TURN-")
	})
	if turn || p != nil && string(p.Group) == stunnerv1.GroupName {
		c.add(decode.Error, identityOf(class), "spec.controllerName", finding.Errorf(fmt.Sprintf("use %s", c.Options.ControllerName), "is not the controller name of STUNner, so that no Gateway of the class is served"))
	}
}

// withoutRoutes adds a remark about listeners to which no route in the files attaches.
func (c *checker) withoutRoutes(gw *gwapiv1.Gateway, r translate.Result) {
	var bare []int
	for i, l := range r.Status.Listeners {
		if l.AttachedRoutes == 0 {
			bare = append(bare, i)
		}
	}
	if len(bare) == len(r.Status.Listeners) {
		c.add(decode.Info, identityOf(gw), "spec.listeners", finding.Errorf("create a UDPRoute", "no route in the files attaches to the Gateway, so that its clients reach no peer"))
		return
	}
	for _, i := range bare {
		c.add(decode.Info, identityOf(gw), fmt.Sprintf("spec.listeners[%d]", i), finding.Errorf("create a UDPRoute", "no route in the files attaches to the listener, so that its clients reach no peer"))
	}
}

// route adds findings about references of a route that its status does not contain.
func (c *checker) route(r *resource.Route) {
	id, gateways := identityOf(r.Origin), 0
	for i, parent := range r.Parents {
		field := fmt.Sprintf("spec.parentRefs[%d]", i)
		key, ok := r.GatewayOf(parent)
		if !ok {
			c.add(decode.Error, id, field+".kind", finding.Errorf("name a Gateway", "%s of group %q is no Gateway, so that the route does not attach to it", parentKind(parent), ptr.Deref(parent.Group, gwapiv1.GroupName)))
			continue
		}
		if gateways++; c.view.Gateway(key) != nil {
			continue
		}
		severity, found := decode.Info, finding.Errorf("create it, or correct the name",
			"Gateway %s is not in the files, so it is not checked whether the route attaches to it", key)
		if all := c.view.Gateways(); len(all) > 0 {
			severity, found = decode.Error, finding.Errorf("use "+all[0].String()+", or create it", "Gateway %s does not exist", key)
		}
		c.add(severity, id, field+".name", found)
	}
	if len(r.Parents) == 0 {
		c.add(decode.Error, id, "spec.parentRefs", finding.Errorf("name one", "names no Gateway, so that the route has no effect"))
	}
	for i, b := range r.Backends {
		s := c.view.Service(b.Key())
		if b.Group != "" || b.Kind != string(stunnerv1.KindService) || s == nil || s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if len(s.Spec.Selector) == 0 && !c.hasEndpoints(b.Key()) {
			c.add(decode.Info, id, r.BackendField(i)+".name", finding.Errorf("add one", "Service %s has neither a selector nor an EndpointSlice in the files, so that the route leads nowhere", b.Key()))
		}
	}
}

// hasEndpoints reports whether the files contain endpoints of a Service. Kubernetes copies Endpoints to an
// EndpointSlice.
func (c *checker) hasEndpoints(service types.NamespacedName) bool {
	if len(c.view.EndpointSlicesOf(service)) > 0 || c.view.Host() != nil && c.view.Gateway(service) != nil {
		return true
	}
	return slices.ContainsFunc(c.others, func(o decode.Located) bool {
		id := identityOf(o.Object)
		return id.kind == "Endpoints" && id.name == service.Name && (id.namespace == service.Namespace || id.namespace == "")
	})
}

func (c *checker) endpointSlice(o decode.Located, s *discoveryv1.EndpointSlice) {
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		c.addAt(o, decode.Info, "addressType", finding.Errorf("use IPv4 or IPv6, or run the operator with --endpoint-discovery=false", "has no effect: host names of an EndpointSlice are not resolved"))
	}
	service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	field := "metadata.labels." + discoveryv1.LabelServiceName
	switch {
	case service.Name == "":
		c.addAt(o, decode.Info, field, finding.Errorf("set it to the name of a Service", "is missing, so that the EndpointSlice has no effect"))
	case c.view.Service(service) == nil:
		c.addAt(o, decode.Info, field, finding.Errorf("create it", "Service %s is not in the files, so that the EndpointSlice has no effect", service))
	}
}

// annotations adds a remark about each annotation of STUNner that does not exist.
func (c *checker) annotations(o decode.Located, path string, annotations map[string]string) {
	for name := range annotations {
		if strings.HasPrefix(name, stunnerv1.GroupName+"/") && !translate.IsAnnotation(name) {
			c.addAt(o, decode.Info, path+name, finding.Errorf("use one of those in docs/reference/annotations.md, or remove it", "is no annotation of STUNner and has no effect"))
		}
	}
}

// credentials adds a remark about each credential that spec.authRef replaces.
func (c *checker) credentials(o decode.Located, gc *stunnerv1.GatewayConfig) {
	if gc.Spec.AuthRef == nil {
		return
	}
	for _, field := range []string{"spec.authType", "spec.userName", "spec.password", "spec.sharedSecret"} {
		if c.has(identityOf(gc), field) {
			c.addAt(o, decode.Info, field, finding.Errorf("remove it", "has no effect, because spec.authRef names a Secret with the credentials"))
		}
	}
}

// grant adds a remark about each entry of a ReferenceGrant that permits no reference of STUNner.
func (c *checker) grant(o decode.Located, g *gwapiv1.ReferenceGrant) {
	from := map[string][]string{
		gwapiv1.GroupName:   {resource.KindGateway, string(resource.KindUDPRoute)},
		stunnerv1.GroupName: {resource.KindGatewayConfig, string(resource.KindUDPRoute)},
	}
	to := map[string][]string{"": {"Secret", "Service"}, stunnerv1.GroupName: {"StaticService"}}
	for i, f := range g.Spec.From {
		if !slices.Contains(from[string(f.Group)], string(f.Kind)) {
			c.addAt(o, decode.Info, fmt.Sprintf("spec.from[%d].kind", i), finding.Errorf(fmt.Sprintf("use Gateway or UDPRoute of group %s, or GatewayConfig or UDPRoute of group %s", gwapiv1.GroupName, stunnerv1.GroupName), "%s of group %q refers to no object for STUNner, so that the entry has no effect", f.Kind, f.Group))
		}
	}
	for i, t := range g.Spec.To {
		if !slices.Contains(to[string(t.Group)], string(t.Kind)) {
			c.addAt(o, decode.Info, fmt.Sprintf("spec.to[%d].kind", i), finding.Errorf(fmt.Sprintf("use Secret or Service, or StaticService of group %s", stunnerv1.GroupName), "no object of STUNner refers to %s of group %q, so that the entry has no effect", t.Kind, t.Group))
		}
	}
}

// standardKinds are the kinds of the Gateway API that STUNner does not read.
var standardKinds = []string{
	"BackendTLSPolicy", "GRPCRoute", "HTTPRoute", "ListenerSet", "TCPRoute", "TLSRoute",
}

// ownKinds are the API groups of kinds whose names also exist in other groups.
var ownKinds = map[string]string{
	"GatewayClass": gwapiv1.GroupName, "Gateway": gwapiv1.GroupName, "ReferenceGrant": gwapiv1.GroupName,
	"GatewayConfig": stunnerv1.GroupName, "Dataplane": stunnerv1.GroupName, "StaticService": stunnerv1.GroupName,
	"Revocation": stunnerv1.GroupName,
	"UDPRoute":   stunnerv1.GroupName, "Service": "", "Secret": "", "Namespace": "", "EndpointSlice": discoveryv1.GroupName,
}

// other adds findings about an object of a kind that STUNner does not read.
func (c *checker) other(o decode.Located, u *unstructured.Unstructured) {
	gvk := u.GroupVersionKind()
	group, named := ownKinds[gvk.Kind]
	switch {
	case named && group != gvk.Group:
		c.addAt(o, decode.Info, "apiVersion", finding.Errorf(fmt.Sprintf("use group %q, which STUNner reads", group), "%s of group %q is not read", gvk.Kind, gvk.Group))
	case gvk.Group == gwapiv1.GroupName && !slices.Contains(standardKinds, gvk.Kind):
		c.addAt(o, decode.Error, "kind", finding.Errorf("use GatewayClass, Gateway, UDPRoute or ReferenceGrant", "%s has no kind %s", gvk.Group, gvk.Kind))
	case gvk.Group == gwapiv1.GroupName:
		parents, _, _ := unstructured.NestedSlice(u.Object, "spec", "parentRefs")
		for i, p := range parents {
			ref, _ := p.(map[string]any)
			key := types.NamespacedName{Namespace: textAt(ref, "namespace"), Name: textAt(ref, "name")}
			if key.Namespace == "" {
				key.Namespace = u.GetNamespace()
			}
			if gw := c.view.Gateway(key); gw != nil && c.view.Class(string(gw.Spec.GatewayClassName)) != nil &&
				c.ours(string(gw.Spec.GatewayClassName)) {
				c.addAt(o, decode.Error, fmt.Sprintf("spec.parentRefs[%d].name", i), finding.Errorf("use a UDPRoute", "Gateway %s is served by STUNner, to which no %s attaches", key, gvk.Kind))
			}
		}
	}
}

func unstructuredOf(o decode.Located) map[string]any {
	return o.Object.(*unstructured.Unstructured).Object
}

func textAt(fields map[string]any, path ...string) string {
	text, _, _ := unstructured.NestedString(fields, path...)
	return text
}
