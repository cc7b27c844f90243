package decode

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// The functions here refuse what an API server would refuse, so that what is in force without a cluster can be applied to one. Each
// gets the path of the spec.

// checkMeta checks what all objects have: names, labels and annotations.
func checkMeta(o resource.Object, k kind) (all field.ErrorList) {
	path := field.NewPath("metadata")
	valid, rule := validation.IsDNS1123Subdomain, path.Child("name")
	switch o.(type) {
	case *corev1.Namespace:
		valid = validation.IsDNS1123Label
	case *corev1.Service:
		valid = validation.IsDNS1035Label
	}
	for _, message := range valid(o.GetName()) {
		all = append(all, field.Invalid(rule, o.GetName(), message))
	}
	if !k.cluster {
		for _, message := range validation.IsDNS1123Label(o.GetNamespace()) {
			all = append(all, field.Invalid(path.Child("namespace"), o.GetNamespace(), message))
		}
	}
	all = append(all, metavalidation.ValidateLabels(o.GetLabels(), path.Child("labels"))...)
	return append(all, apivalidation.ValidateAnnotations(o.GetAnnotations(), path.Child("annotations"))...)
}

// count checks the length of a list.
func count(path *field.Path, n, least, most int) field.ErrorList {
	switch {
	case n < least:
		return field.ErrorList{field.Required(path, "must have at least one item")}
	case n > most:
		return field.ErrorList{field.TooMany(path, n, most)}
	}
	return nil
}

// named checks a string that must not be empty.
func named(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "must not be empty")}
	}
	return nil
}

// oneOf checks a string against the words that it may be; empty means unset.
func oneOf[T ~string](path *field.Path, value T, words ...T) field.ErrorList {
	if value == "" || sets.New(words...).Has(value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, words)}
}

func port(path *field.Path, value int32) (all field.ErrorList) {
	for _, message := range validation.IsValidPortNum(int(value)) {
		all = append(all, field.Invalid(path, value, message))
	}
	return all
}

func checkClass(c *gatewayv1.GatewayClass, spec *field.Path) field.ErrorList {
	all := named(spec.Child("controllerName"), string(c.Spec.ControllerName))
	if ref := c.Spec.ParametersRef; ref != nil {
		all = append(all, named(spec.Child("parametersRef", "kind"), string(ref.Kind))...)
		all = append(all, named(spec.Child("parametersRef", "name"), ref.Name)...)
	}
	return all
}

func checkGateway(g *gatewayv1.Gateway, spec *field.Path) field.ErrorList {
	all := named(spec.Child("gatewayClassName"), string(g.Spec.GatewayClassName))
	all = append(all, count(spec.Child("listeners"), len(g.Spec.Listeners), 1, 64)...)
	seen := sets.New[gatewayv1.SectionName]()
	for i, l := range g.Spec.Listeners {
		path := spec.Child("listeners").Index(i)
		all = append(all, checkListener(l, path)...)
		if seen.Has(l.Name) {
			all = append(all, field.Duplicate(path.Child("name"), l.Name))
		}
		seen.Insert(l.Name)
	}
	return all
}

func checkListener(l gatewayv1.Listener, path *field.Path) (all field.ErrorList) {
	for _, message := range validation.IsDNS1123Subdomain(string(l.Name)) {
		all = append(all, field.Invalid(path.Child("name"), l.Name, message))
	}
	all = append(all, port(path.Child("port"), l.Port)...)
	all = append(all, named(path.Child("protocol"), string(l.Protocol))...)
	from := path.Child("allowedRoutes", "namespaces")
	all = append(all, oneOf(from.Child("from"), *l.AllowedRoutes.Namespaces.From,
		gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame, gatewayv1.NamespacesFromSelector, gatewayv1.NamespacesFromNone)...)
	if selector := l.AllowedRoutes.Namespaces.Selector; selector != nil {
		all = append(all, metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, from.Child("selector"))...)
	}
	if l.TLS != nil {
		all = append(all, oneOf(path.Child("tls", "mode"), *l.TLS.Mode, gatewayv1.TLSModeTerminate, gatewayv1.TLSModePassthrough)...)
		for i, ref := range l.TLS.CertificateRefs {
			all = append(all, named(path.Child("tls", "certificateRefs").Index(i).Child("name"), string(ref.Name))...)
		}
	}
	return all
}

func checkParents(spec *field.Path, refs []gatewayv1.ParentReference) field.ErrorList {
	all := count(spec.Child("parentRefs"), len(refs), 0, 32)
	for i, ref := range refs {
		all = append(all, named(spec.Child("parentRefs").Index(i).Child("name"), string(ref.Name))...)
	}
	return all
}

// backend is what the three spellings of a backend have in common.
type backend struct {
	name          string
	port, endPort *int32
}

// checkBackends checks the rules of a route, given as the backends of each.
func checkBackends(spec *field.Path, most int, rules [][]backend) field.ErrorList {
	all := count(spec.Child("rules"), len(rules), 1, most)
	for i, rule := range rules {
		refs := spec.Child("rules").Index(i).Child("backendRefs")
		all = append(all, count(refs, len(rule), 1, 16)...)
		for n, b := range rule {
			all = append(all, b.check(refs.Index(n))...)
		}
	}
	return all
}

func (b backend) check(path *field.Path) field.ErrorList {
	all := named(path.Child("name"), b.name)
	if b.port != nil {
		all = append(all, port(path.Child("port"), *b.port)...)
	}
	switch {
	case b.endPort == nil:
		return all
	case b.port == nil:
		return append(all, field.Required(path.Child("port"), "endPort needs port, the first port of the range"))
	case *b.endPort < *b.port:
		return append(all, field.Invalid(path.Child("endPort"), *b.endPort, "must not be less than port"))
	}
	return append(all, port(path.Child("endPort"), *b.endPort)...)
}

func officialBackends(refs []gatewayv1.BackendRef) (bs []backend) {
	for _, ref := range refs {
		bs = append(bs, backend{name: string(ref.Name), port: ref.Port})
	}
	return bs
}

func checkUDPRoute(r *gatewayv1.UDPRoute, spec *field.Path) field.ErrorList {
	var rules [][]backend
	for _, rule := range r.Spec.Rules {
		rules = append(rules, officialBackends(rule.BackendRefs))
	}
	return append(checkParents(spec, r.Spec.ParentRefs), checkBackends(spec, 1, rules)...)
}

func checkAlphaUDPRoute(r *gatewayv1alpha2.UDPRoute, spec *field.Path) field.ErrorList {
	var rules [][]backend
	for _, rule := range r.Spec.Rules {
		rules = append(rules, officialBackends(rule.BackendRefs))
	}
	return append(checkParents(spec, r.Spec.ParentRefs), checkBackends(spec, 16, rules)...)
}

func checkOwnUDPRoute(r *stunnerv1.UDPRoute, spec *field.Path) field.ErrorList {
	var rules [][]backend
	for _, rule := range r.Spec.Rules {
		var bs []backend
		for _, ref := range rule.BackendRefs {
			bs = append(bs, backend{name: string(ref.Name), port: ref.Port, endPort: ref.EndPort})
		}
		rules = append(rules, bs)
	}
	return append(checkParents(spec, r.Spec.ParentRefs), checkBackends(spec, 16, rules)...)
}

// checkGrant lets no name be empty: an empty one grants no single object, and would be taken for no name, which grants all.
func checkGrant(g *gatewayv1.ReferenceGrant, spec *field.Path) field.ErrorList {
	all := append(count(spec.Child("from"), len(g.Spec.From), 1, 16), count(spec.Child("to"), len(g.Spec.To), 1, 16)...)
	for i, from := range g.Spec.From {
		path := spec.Child("from").Index(i)
		all = append(all, named(path.Child("kind"), string(from.Kind))...)
		all = append(all, named(path.Child("namespace"), string(from.Namespace))...)
	}
	for i, to := range g.Spec.To {
		path := spec.Child("to").Index(i)
		all = append(all, named(path.Child("kind"), string(to.Kind))...)
		if to.Name != nil {
			all = append(all, named(path.Child("name"), string(*to.Name))...)
		}
	}
	return all
}

func checkGatewayConfig(c *stunnerv1.GatewayConfig, spec *field.Path) field.ErrorList {
	all := oneOf(spec.Child("authType"), c.Spec.AuthType, stunnerv1.AuthPlaintext, stunnerv1.AuthStatic, stunnerv1.AuthLongterm,
		stunnerv1.AuthEphemeral, stunnerv1.AuthTimewindowed, stunnerv1.AuthNone)
	if err := config.CheckRealm(c.Spec.Realm); err != nil {
		all = append(all, field.Invalid(spec.Child("realm"), c.Spec.Realm, err.Error()))
	}
	if c.Spec.AuthLifetime != nil && *c.Spec.AuthLifetime < 1 {
		all = append(all, field.Invalid(spec.Child("authLifetime"), *c.Spec.AuthLifetime, "must be at least 1 second"))
	}
	for _, bound := range []struct {
		name string
		n    int64
	}{
		{"userQuota", int64(c.Spec.UserQuota)}, {"sourceQuota", int64(c.Spec.SourceQuota)},
		{"sessionByteRate", c.Spec.SessionByteRate}, {"userByteRate", c.Spec.UserByteRate},
	} {
		if bound.n < 0 {
			all = append(all, field.Invalid(spec.Child(bound.name), bound.n, "must not be negative; 0 means unset"))
		}
	}
	all = append(all, oneOf(spec.Child("clusterAccess"), c.Spec.ClusterAccess, stunnerv1.ClusterAccessDeny, stunnerv1.ClusterAccessAllow)...)
	all = append(all, oneOf(spec.Child("signingKey"), c.Spec.SigningKey, stunnerv1.SigningKeyShared, stunnerv1.SigningKeyPerGateway)...)
	allowed := spec.Child("allowedAddresses")
	all = append(all, count(allowed, len(c.Spec.AllowedAddresses), 0, 64)...)
	for i, prefix := range c.Spec.AllowedAddresses {
		if _, err := netip.ParsePrefix(string(prefix)); err != nil {
			all = append(all, field.Invalid(allowed.Index(i), prefix, "must be a CIDR prefix such as 192.0.2.0/24"))
		}
	}
	denied := spec.Child("deniedBackends")
	all = append(all, count(denied, len(c.Spec.DeniedBackends), 0, 64)...)
	for i, d := range c.Spec.DeniedBackends {
		if d.Namespace == "" && d.Selector == nil {
			all = append(all, field.Required(denied.Index(i), "namespace or selector must be set"))
		}
		all = append(all, metavalidation.ValidateLabelSelector(d.Selector, metavalidation.LabelSelectorValidationOptions{}, denied.Index(i).Child("selector"))...)
	}
	return all
}

func checkDataplane(d *stunnerv1.Dataplane, spec *field.Path) field.ErrorList {
	all := oneOf(spec.Child("dataplaneResource"), d.Spec.DataplaneResource, stunnerv1.ResourceDeployment, stunnerv1.ResourceDaemonSet)
	all = append(all, oneOf(spec.Child("offloadEngine"), d.Spec.OffloadEngine,
		stunnerv1.OffloadNone, stunnerv1.OffloadXDP, stunnerv1.OffloadTC, stunnerv1.OffloadAuto)...)
	all = append(all, oneOf(spec.Child("imagePullPolicy"), d.Spec.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	if a := d.Spec.AllowedNamespaces; a != nil {
		path := spec.Child("allowedNamespaces")
		all = append(all, oneOf(path.Child("from"), a.From, stunnerv1.NamespacesFromAll, stunnerv1.NamespacesFromSelector, stunnerv1.NamespacesFromNone)...)
		if a.From == stunnerv1.NamespacesFromSelector && a.Selector == nil {
			all = append(all, field.Required(path.Child("selector"), "from Selector needs it"))
		}
		all = append(all, metavalidation.ValidateLabelSelector(a.Selector, metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	if d.Spec.Replicas != nil && *d.Spec.Replicas < 0 {
		all = append(all, field.Invalid(spec.Child("replicas"), *d.Spec.Replicas, "must not be negative"))
	}
	if d.Spec.WorkloadName != "" {
		for _, message := range validation.IsDNS1123Label(d.Spec.WorkloadName) {
			all = append(all, field.Invalid(spec.Child("workloadName"), d.Spec.WorkloadName, message))
		}
	}
	if d.Spec.DataplaneResource == stunnerv1.ResourceDaemonSet {
		const problem = "needs dataplaneResource Deployment: a DaemonSet has one pod per node"
		if d.Spec.Replicas != nil {
			all = append(all, field.Forbidden(spec.Child("replicas"), problem))
		}
		if d.Spec.Autoscaling != nil {
			all = append(all, field.Forbidden(spec.Child("autoscaling"), problem))
		}
	}
	if d.Spec.RelayPortRange != nil {
		all = append(all, checkRelayPorts(d.Spec.RelayPortRange, spec.Child("relayPortRange"))...)
	}
	if d.Spec.Autoscaling != nil {
		all = append(all, checkAutoscaling(d.Spec.Autoscaling, spec.Child("autoscaling"))...)
	}
	if d.Spec.Service != nil {
		all = append(all, checkOverlay(d.Spec.Service, spec.Child("service"))...)
	}
	return all
}

func checkRelayPorts(r *stunnerv1.RelayPortRange, path *field.Path) (all field.ErrorList) {
	for _, port := range []struct {
		name string
		n    int32
	}{{"minPort", r.MinPort}, {"maxPort", r.MaxPort}} {
		if port.n < config.LowestRelayPort || port.n > math.MaxUint16 {
			all = append(all, field.Invalid(path.Child(port.name), port.n, fmt.Sprintf("must be from %d to %d", config.LowestRelayPort, math.MaxUint16)))
		}
	}
	if r.MaxPort < r.MinPort {
		all = append(all, field.Invalid(path, fmt.Sprintf("%d-%d", r.MinPort, r.MaxPort), "maxPort must not be less than minPort: raise maxPort or lower minPort"))
	}
	return all
}

func checkAutoscaling(a *stunnerv1.Autoscaling, path *field.Path) field.ErrorList {
	all := oneOf(path.Child("trigger"), a.Trigger, stunnerv1.TriggerExternal, stunnerv1.TriggerPrometheus)
	for _, least := range []struct {
		name string
		n    int32
	}{
		{"minReplicas", *a.MinReplicas}, {"maxReplicas", a.MaxReplicas}, {"allocationsPerReplica", *a.AllocationsPerReplica},
	} {
		if least.n < 1 {
			all = append(all, field.Invalid(path.Child(least.name), least.n, "must be at least 1"))
		}
	}
	if a.MaxReplicas < *a.MinReplicas {
		all = append(all, field.Invalid(path.Child("maxReplicas"), a.MaxReplicas, "must not be less than minReplicas"))
	}
	if n := a.PollingInterval; n != nil && (*n < 1 || *n > 3600) {
		all = append(all, field.Invalid(path.Child("pollingInterval"), *n, "must be from 1 to 3600 seconds"))
	}
	if b := a.Behavior; b != nil {
		all = append(all, checkWindow(b.ScaleUp, path.Child("behavior", "scaleUp"))...)
		all = append(all, checkWindow(b.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	switch prometheus := path.Child("prometheus"); {
	case a.Trigger == stunnerv1.TriggerPrometheus && a.Prometheus == nil:
		all = append(all, field.Required(prometheus.Child("serverAddress"), "trigger prometheus needs it: name the Prometheus to ask, or use trigger external"))
	case a.Trigger != stunnerv1.TriggerPrometheus && a.Prometheus != nil:
		all = append(all, field.Forbidden(prometheus, "needs trigger prometheus: set it, or remove prometheus"))
	case a.Prometheus != nil:
		all = append(all, checkPrometheus(a.Prometheus, prometheus)...)
	}
	return all
}

func checkWindow(rules *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if rules == nil {
		return nil
	}
	if seconds := deref(rules.StabilizationWindowSeconds, 0); seconds < 0 || seconds > 3600 {
		return field.ErrorList{field.Invalid(path.Child("stabilizationWindowSeconds"), seconds, "must be from 0 to 3600")}
	}
	return nil
}

func checkPrometheus(p *stunnerv1.PrometheusTrigger, path *field.Path) (all field.ErrorList) {
	address := path.Child("serverAddress")
	switch u, err := url.Parse(p.ServerAddress); {
	case strings.Contains(p.ServerAddress, "@"):
		all = append(all, field.Invalid(address, "<redacted>", "must hold no credentials: use authenticationRef"))
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		all = append(all, field.Invalid(address, p.ServerAddress, "must be an http or https URL such as http://prometheus-operated.monitoring.svc:9090"))
	}
	for i, mode := range p.AuthModes {
		all = append(all, oneOf(path.Child("authModes").Index(i), mode, "apiKey", "basic", "tls", "bearer", "custom", "oauth")...)
	}
	ref := path.Child("authenticationRef")
	switch {
	case p.AuthenticationRef != nil:
		all = append(all, named(ref.Child("name"), p.AuthenticationRef.Name)...)
		return append(all, oneOf(ref.Child("kind"), p.AuthenticationRef.Kind, "TriggerAuthentication", "ClusterTriggerAuthentication")...)
	case len(p.AuthModes) > 0:
		all = append(all, field.Required(ref, "authModes needs it: name the TriggerAuthentication that holds what is shown to Prometheus"))
	}
	return all
}

func checkOverlay(s *stunnerv1.ServiceOverlay, path *field.Path) (all field.ErrorList) {
	if s.LoadBalancerClass != nil {
		for _, message := range validation.IsQualifiedName(*s.LoadBalancerClass) {
			all = append(all, field.Invalid(path.Child("loadBalancerClass"), *s.LoadBalancerClass, message))
		}
	}
	families := path.Child("ipFamilies")
	all = append(all, count(families, len(s.IPFamilies), 0, 2)...)
	for i, f := range s.IPFamilies {
		all = append(all, oneOf(families.Index(i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
	}
	policy := deref(s.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	all = append(all, oneOf(path.Child("ipFamilyPolicy"), policy,
		corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
	if len(s.IPFamilies) == 2 {
		if s.IPFamilies[0] == s.IPFamilies[1] {
			all = append(all, field.Duplicate(families.Index(1), s.IPFamilies[1]))
		}
		if policy == corev1.IPFamilyPolicySingleStack {
			all = append(all, field.Invalid(path.Child("ipFamilyPolicy"), policy, "two ipFamilies need PreferDualStack or RequireDualStack"))
		}
	}
	ranges := path.Child("loadBalancerSourceRanges")
	all = append(all, count(ranges, len(s.LoadBalancerSourceRanges), 0, 256)...)
	for i, prefix := range s.LoadBalancerSourceRanges {
		if _, err := netip.ParsePrefix(prefix); err != nil {
			all = append(all, field.Invalid(ranges.Index(i), prefix, "must be a CIDR prefix such as 198.51.100.0/24"))
		}
	}
	return all
}

// checkStaticService takes what an API server takes, addresses and prefixes without ports.
func checkStaticService(s *stunnerv1.StaticService, spec *field.Path) field.ErrorList {
	all := count(spec.Child("prefixes"), len(s.Spec.Prefixes), 0, 1024)
	for i, prefix := range s.Spec.Prefixes {
		if _, err := config.ParsePrefix(prefix); err != nil {
			all = append(all, field.Invalid(spec.Child("prefixes").Index(i), prefix, "must be an IP address or a prefix such as 198.51.100.0/24"))
		}
	}
	return all
}

func checkService(s *corev1.Service, spec *field.Path) (all field.ErrorList) {
	for i, p := range s.Spec.Ports {
		all = append(all, port(spec.Child("ports").Index(i).Child("port"), p.Port)...)
	}
	return all
}

func checkEndpointSlice(e *discoveryv1.EndpointSlice, _ *field.Path) field.ErrorList {
	path := field.NewPath("addressType")
	return append(named(path, string(e.AddressType)),
		oneOf(path, e.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
}

// deref returns what p points at. A nil pointer and a zero value stand for absent.
func deref[T comparable](p *T, absent T) T {
	var zero T
	if p == nil || *p == zero {
		return absent
	}
	return *p
}
