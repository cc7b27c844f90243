package translate_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// outcome is the whole translation of a set of objects.
type outcome struct {
	Gateways       []translate.Result
	Routes         []translate.RouteResult
	Classes        []translate.ClassResult
	Configs        map[string]translate.ConditionsResult
	Dataplanes     map[string]translate.ConditionsResult
	StaticServices map[string]translate.ConditionsResult
	Revocations    map[string]translate.ConditionsResult
}

func translateAll(v *resource.View, opt translate.Options) outcome {
	o := outcome{
		Configs:        map[string]translate.ConditionsResult{},
		Dataplanes:     map[string]translate.ConditionsResult{},
		StaticServices: map[string]translate.ConditionsResult{},
		Revocations:    map[string]translate.ConditionsResult{},
	}
	for _, key := range v.Gateways() {
		r := translate.Gateway(v, key, opt)
		if o.Gateways = append(o.Gateways, r); r.OverBudget != nil {
			v.Put(r.OverBudget)
		}
	}
	for _, ref := range v.Routes() {
		o.Routes = append(o.Routes, translate.Route(v, ref, opt))
	}
	for _, name := range v.Classes() {
		o.Classes = append(o.Classes, translate.Class(v, name, opt))
	}
	for _, key := range v.GatewayConfigs() {
		o.Configs[key.String()] = translate.GatewayConfig(v, key, opt)
	}
	for _, name := range v.Dataplanes() {
		o.Dataplanes[name] = translate.Dataplane(v, name, opt)
	}
	for _, key := range v.StaticServices() {
		o.StaticServices[key.String()] = translate.StaticService(v, key, opt)
	}
	for _, key := range v.Revocations() {
		o.Revocations[key.String()] = translate.Revocation(v, key, opt)
	}
	return o
}

// render returns an outcome in the form of the golden files.
func (c *testCase) render(t testing.TB) map[string][]byte {
	t.Helper()
	o := translateAll(c.view(), c.options)
	return map[string][]byte{
		"config.yaml":    o.renderConfigs(t),
		"status.txt":     o.renderStatuses(),
		"objects.yaml":   o.renderObjects(t),
		"services.yaml":  o.renderObjects(t, "Service"),
		"workload.yaml":  o.renderObjects(t, "Deployment", "DaemonSet"),
		"configmap.yaml": o.renderObjects(t, "ConfigMap"),
		"usage.txt":      o.renderUsage(),
		"guards.yaml":    o.renderObjects(t, "NetworkPolicy", "PodDisruptionBudget"),
		"scaling.yaml":   o.renderObjects(t, "ScaledObject", "TriggerAuthentication"),
	}
}

func (o outcome) renderConfigs(t testing.TB) []byte {
	t.Helper()
	var documents [][]byte
	for _, r := range o.Gateways {
		if r.Decision == translate.Served {
			documents = append(documents, mustMarshal(t, r.Config))
		} else {
			documents = append(documents, fmt.Appendf(nil, "# %s is %s\n", r.Key, r.Decision))
		}
		for _, l := range heldListeners(r) {
			documents = append(documents, fmt.Appendf(nil, "# %s waits\n", l))
		}
	}
	return bytes.Join(documents, []byte("---\n"))
}

// renderObjects omits fields that every object has because of its Go type.
func (o outcome) renderObjects(t testing.TB, kinds ...string) []byte {
	t.Helper()
	var documents [][]byte
	for _, r := range o.Gateways {
		for _, object := range r.Objects {
			if len(kinds) > 0 && !slices.Contains(kinds, object.GetObjectKind().GroupVersionKind().Kind) {
				continue
			}
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				t.Fatal(err)
			}
			delete(fields, "status")
			documents = append(documents, mustMarshal(t, fields))
		}
	}
	return bytes.Join(documents, []byte("---\n"))
}

func (o outcome) renderStatuses() []byte {
	var b bytes.Buffer
	for _, r := range o.Classes {
		header(&b, "GatewayClass "+r.Class, r.Ours, r.Status.Conditions)
	}
	for name, r := range sorted(o.Configs) {
		header(&b, "GatewayConfig "+name, r.Ours, r.Conditions)
	}
	for name, r := range sorted(o.Dataplanes) {
		header(&b, "Dataplane "+name, r.Ours, r.Conditions)
	}
	for name, r := range sorted(o.StaticServices) {
		header(&b, "StaticService "+name, r.Ours, r.Conditions)
	}
	for name, r := range sorted(o.Revocations) {
		header(&b, "Revocation "+name, r.Ours, r.Conditions)
	}
	for _, r := range o.Gateways {
		renderGateway(&b, r)
	}
	for _, r := range o.Routes {
		header(&b, "UDPRoute "+r.Route.String(), r.Ours, nil)
		for _, p := range r.Parents {
			fmt.Fprintf(&b, "  parent %s", parentName(p))
			conditions(&b, "    ", p.Conditions)
		}
	}
	return b.Bytes()
}

// renderUsage renders condition InUse, which is not part of status.txt because every case would contain it.
func (o outcome) renderUsage() []byte {
	var b bytes.Buffer
	for kind, results := range sorted(map[string]map[string]translate.ConditionsResult{
		"GatewayConfig": o.Configs, "Dataplane": o.Dataplanes, "StaticService": o.StaticServices,
		"Revocation": o.Revocations,
	}) {
		for name, r := range sorted(results) {
			for _, c := range r.Conditions {
				if c.Type == condition.InUse {
					fmt.Fprintf(&b, "%s %s: %s/%s %s\n", kind, name, c.Status, c.Reason, c.Message)
				}
			}
		}
	}
	return b.Bytes()
}

func renderGateway(b *bytes.Buffer, r translate.Result) {
	name := "Gateway " + r.Key.String()
	for _, a := range r.Status.Addresses {
		name += fmt.Sprintf(" [%s %s]", *a.Type, a.Value)
	}
	if !r.Decision.Ours() {
		fmt.Fprintf(b, "%s: %s\n", name, r.Decision)
		return
	}
	header(b, name, true, r.Status.Conditions)
	for _, l := range r.Status.Listeners {
		var groups []string
		for _, k := range l.SupportedKinds {
			groups = append(groups, string(*k.Group))
		}
		kinds := ""
		if len(groups) < 2 {
			kinds = fmt.Sprintf(", takes UDPRoutes of [%s]", strings.Join(groups, " "))
		}
		fmt.Fprintf(b, "  listener %s: routes %d%s", l.Name, l.AttachedRoutes, kinds)
		conditions(b, "    ", l.Conditions)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(b, "  note: %s\n", note.Message())
	}
}

func parentName(p gwapiv1.RouteParentStatus) string {
	name := string(p.ParentRef.Name)
	if p.ParentRef.Namespace != nil {
		name = string(*p.ParentRef.Namespace) + "/" + name
	}
	if p.ParentRef.SectionName != nil {
		name += " section " + string(*p.ParentRef.SectionName)
	}
	if p.ParentRef.Port != nil {
		name += fmt.Sprintf(" port %d", *p.ParentRef.Port)
	}
	if p.ControllerName != translate.DefaultControllerName {
		name += fmt.Sprintf(" of %s", p.ControllerName)
	}
	return name
}

func header(b *bytes.Buffer, name string, ours bool, cs []metav1.Condition) {
	if !ours {
		fmt.Fprintf(b, "%s: not ours\n", name)
		return
	}
	fmt.Fprint(b, name)
	conditions(b, "  ", cs)
}

// good are the healthy conditions. An object with only such conditions is rendered as good.
var good = []string{
	"Accepted=True/Accepted", "Conflicted=False/NoConflicts", "ResolvedRefs=True/ResolvedRefs",
	"Programmed=True/Programmed",
}

// conditions writes type, status and reason of all conditions in one line, and the messages below.
func conditions(b *bytes.Buffer, indent string, cs []metav1.Condition) {
	var words []string
	cs = slices.DeleteFunc(slices.Clone(cs), func(c metav1.Condition) bool { return c.Type == condition.InUse })
	fine := len(cs) > 0
	for _, c := range cs {
		word := fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason)
		fine = fine && c.Message == "" && slices.Contains(good, word)
		words = append(words, word)
	}
	switch {
	case fine:
		fmt.Fprintln(b, ": good")
		return
	case len(cs) == 0:
		fmt.Fprintln(b)
		return
	}
	fmt.Fprintf(b, "\n%s%s\n", indent, strings.Join(words, " "))
	for _, c := range cs {
		if c.Message != "" {
			fmt.Fprintf(b, "%s  %s: %s\n", indent, c.Type, c.Message)
		}
	}
}

// mustMarshal writes secrets in plain text, because the secrets of the cases are not real.
func mustMarshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sorted iterates over a map in the order of its keys.
func sorted[V any](m map[string]V) func(yield func(string, V) bool) {
	return func(yield func(string, V) bool) {
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// scheme contains all kinds of the cases.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		gwapiv1.Install, gwapiv1a2.Install, stunnerv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme,
		appsv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
})

// blank returns an empty object of a kind.
func blank(t testing.TB, meta metav1.TypeMeta) resource.Object {
	t.Helper()
	o, err := scheme().New(meta.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	return o.(resource.Object)
}

// checkHygiene checks every condition against the rules of the API server and of the Gateway API (K-06, K-07).
func checkHygiene(t *testing.T, c *testCase) {
	t.Helper()
	o := translateAll(c.view(), c.options)
	generation := map[string]int64{}
	for _, object := range c.objects {
		generation[identity(object)] = object.GetGeneration()
	}
	check := func(of string, cs []metav1.Condition) {
		for _, condition := range cs {
			if condition.ObservedGeneration != generation[of] {
				t.Errorf(
					"%s: %s: observedGeneration %d, want %d", of, condition.Type, condition.ObservedGeneration,
					generation[of],
				)
			}
			if condition.Reason == "" || condition.LastTransitionTime.IsZero() {
				t.Errorf("%s: %s: reason or transition time is missing", of, condition.Type)
			}
		}
	}
	for _, r := range o.Gateways {
		check("Gateway "+r.Key.String(), r.Status.Conditions)
		for _, l := range r.Status.Listeners {
			check("Gateway "+r.Key.String(), l.Conditions)
		}
	}
	for _, r := range o.Classes {
		check("GatewayClass "+r.Class, r.Status.Conditions)
	}
	for key, r := range o.Configs {
		check("GatewayConfig "+key, r.Conditions)
	}
}
