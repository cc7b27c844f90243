package translate_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Properties hold for the input of every golden case.

// F-10: the results do not depend on the order of the objects.
func TestOrderOfInputIsIrrelevant(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		want := c.bytes(t)
		random := rand.New(rand.NewPCG(1, 2))
		for range 10 {
			random.Shuffle(len(c.objects), func(i, j int) { c.objects[i], c.objects[j] = c.objects[j], c.objects[i] })
			if got := c.bytes(t); !bytes.Equal(got, want) {
				t.Fatalf("the result depends on the order of objects:\n%s", cmp.Diff(string(want), string(got)))
			}
		}
	})
}

// F-10: the same objects give the same bytes in each run.
func TestSameInputGivesSameOutput(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		want := c.bytes(t)
		for range 3 {
			if got := c.bytes(t); !bytes.Equal(got, want) {
				t.Fatalf("the result differs from one run to the next:\n%s", cmp.Diff(string(want), string(got)))
			}
		}
	})
}

func TestInputIsNotModified(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		var before []resource.Object
		for _, o := range c.objects {
			before = append(before, o.DeepCopyObject().(resource.Object))
		}
		translateAll(c.view(), c.options)
		equal := cmp.Comparer(func(a, b *stunnerv1.SecretValue) bool { return a.Equal(b) })
		if diff := cmp.Diff(before, c.objects, equal); diff != "" {
			t.Errorf("translation changed its input (-before +after):\n%s", diff)
		}
	})
}

// bytes returns the whole output of a case.
func (c *testCase) bytes(t *testing.T) []byte {
	t.Helper()
	data, err := json.Marshal(translateAll(c.view(), c.options))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Either a result is complete, or the Gateway is held and the result has no config and no objects. No dataplane rejects
// a published config.
func TestResultsArePublishableOrKept(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) { checkResults(t, translateAll(c.view(), c.options)) })
}

func checkResults(t *testing.T, o outcome) {
	t.Helper()
	for _, r := range o.Gateways {
		if r.Decision.Ours() != (len(r.Status.Conditions) > 0) {
			t.Errorf("%s: %s, and the status has %d conditions", r.Key, r.Decision, len(r.Status.Conditions))
		}
		nothing := r.Config == nil && r.Objects == nil
		switch {
		case r.Decision != translate.Served:
			if !nothing {
				t.Errorf("%s: %s, and yet there is a config or an object", r.Key, r.Decision)
			}
		case r.Config == nil || len(r.Objects) < 2:
			t.Errorf("%s: config or objects are missing", r.Key)
		default:
			if err := r.Config.Validate(); err != nil {
				t.Errorf("%s: config does not validate: %v", r.Key, err)
			}
			if len(r.Config.Listeners) == 0 && !revoked(r) {
				t.Errorf("%s: config has no listener", r.Key)
			}
		}
	}
}

// revoked reports whether a listener must not use its certificate.
func revoked(r translate.Result) bool {
	return slices.ContainsFunc(r.Status.Listeners, func(l gwapiv1.ListenerStatus) bool {
		return slices.ContainsFunc(
			l.Conditions, func(c metav1.Condition) bool { return c.Reason == condition.ReasonRefNotPermitted },
		)
	})
}

// K-02: only the config contains secret values. No other result contains them, in plain text or in base64.
func TestSecretsStayInTheConfig(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		o := translateAll(c.view(), c.options)
		for i := range o.Gateways {
			o.Gateways[i].Config = nil
		}
		shown, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range c.secrets() {
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
				if strings.Contains(string(shown), form) {
					t.Errorf("objects or statuses show the secret %q", secret)
				}
			}
		}
	})
}

// The ConfigMap is a valid config and does not change with endpoints: it is written only when a user changes a
// declaration.
func TestTheShownConfigDoesNotFollowEndpoints(t *testing.T) {
	configMaps := func(t *testing.T, v *resource.View, opt translate.Options) (texts []string) {
		for _, r := range translateAll(v, opt).Gateways {
			for _, o := range r.ObjectsWith(r.Config) {
				if m, ok := o.(*corev1.ConfigMap); ok {
					texts = append(texts, m.Data[manifest.ConfigMapKey])
				}
			}
		}
		return texts
	}
	forEachCase(t, func(t *testing.T, c *testCase) {
		before := configMaps(t, c.view(), c.options)
		for _, text := range before {
			shown, _, err := config.Parse([]byte(text))
			if err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			if err := shown.Validate(); err != nil {
				for line := range strings.Lines(err.Error()) {
					if !strings.Contains(line, "the secret was left out") {
						t.Errorf("%s\n%s", line, text)
					}
				}
			}
		}
		without := slices.DeleteFunc(slices.Clone(c.objects), func(o resource.Object) bool {
			return o.GetObjectKind().GroupVersionKind().Kind == "EndpointSlice"
		})
		if diff := cmp.Diff(before, configMaps(t, c.viewOf(without), c.options)); diff != "" {
			t.Errorf("without endpoints something else is shown (-with +without):\n%s", diff)
		}
	})
}

// secrets returns the secret values of the case.
func (c *testCase) secrets() []string {
	var secrets []string
	for _, o := range c.objects {
		switch o := o.(type) {
		case *corev1.Secret:
			for key, value := range o.Data {
				if open := []string{"type", "username", "userName", "tls.crt"}; len(value) > 0 &&
					!slices.Contains(open, key) {
					secrets = append(secrets, strings.TrimSpace(string(value)))
				}
			}
		case *stunnerv1.GatewayConfig:
			for _, value := range []*stunnerv1.SecretValue{o.Spec.Password, o.Spec.SharedSecret} {
				if inline, ok := value.Inline(); ok && inline != "" {
					secrets = append(secrets, string(inline))
				}
			}
		}
	}
	return secrets
}

// A translation of objects that already have their translated statuses changes nothing. Otherwise every write would
// cause another translation and another write.
func TestStatusIsAFixedPoint(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		before := translateAll(c.view(), c.options)
		c.writeBack(t, before)
		later := c.options
		later.Now = metav1.NewTime(now.Add(time.Hour)) // before Revocations of the cases expire
		o := translateAll(c.view(), later)
		if diff := cmp.Diff(string(before.renderStatuses()), string(o.renderStatuses())); diff != "" {
			t.Errorf("status changes when it is read back:\n%s", diff)
		}
		for _, r := range o.Gateways {
			for _, c := range r.Status.Conditions {
				if c.LastTransitionTime.After(now.Time) {
					t.Errorf("%s: %s has a new transition time without a transition", r.Key, c.Type)
				}
			}
			for _, l := range r.Status.Listeners {
				for _, c := range l.Conditions {
					if c.LastTransitionTime.After(now.Time) {
						t.Errorf("%s/%s: %s has a new transition time without a transition", r.Key, l.Name, c.Type)
					}
				}
			}
		}
	})
}

// writeBack writes statuses into the objects of the case, like a provider.
func (c *testCase) writeBack(t *testing.T, o outcome) {
	t.Helper()
	v := c.view()
	for _, r := range o.Gateways {
		if r.Decision.Ours() {
			v.Gateway(r.Key).Status = r.Status
		}
	}
	for _, r := range o.Classes {
		if r.Ours {
			v.Class(r.Class).Status = r.Status
		}
	}
	for _, key := range v.GatewayConfigs() {
		v.GatewayConfig(key).Status.Conditions = o.Configs[key.String()].Conditions
	}
	for _, key := range v.StaticServices() {
		v.StaticService(key).Status.Conditions = o.StaticServices[key.String()].Conditions
	}
	for _, key := range v.Revocations() {
		v.Revocation(key).Status.Conditions = o.Revocations[key.String()].Conditions
	}
	for _, name := range v.Dataplanes() {
		v.Dataplane(name).Status.Conditions = o.Dataplanes[name].Conditions
	}
	for i, object := range c.objects {
		for _, r := range o.Routes {
			if r.Ours && v.Route(r.Route).Origin == object {
				c.objects[i] = withParents(t, object, r)
			}
		}
	}
}

// withParents converts through unstructured objects, in which routes of all API groups have the same status.
func withParents(t *testing.T, route resource.Object, r translate.RouteResult) resource.Object {
	t.Helper()
	fields := untyped(t, route)
	status := untyped(t, &struct {
		Parents any `json:"parents"`
	}{r.Parents})
	fields["status"] = status
	return typed(t, route, fields)
}

// Objects of a folder or of an API server with older schemas may lack any field. The translation must not panic.
func TestMissingObjectsCauseNoPanic(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		random := rand.New(rand.NewPCG(3, 4))
		for range 12 {
			damaged := slices.Clone(c.objects)
			for range 1 + random.IntN(4) {
				i := random.IntN(len(damaged))
				fields := untyped(t, damaged[i])
				removeOne(random, fields)
				damaged[i] = typed(t, damaged[i], fields)
			}
			opt := c.options
			checkResults(t, translateAll(c.viewOf(damaged), opt))
		}
	})
}

// removeOne removes a random nested field, except for names.
func removeOne(random *rand.Rand, fields map[string]any) {
	keys := slices.Sorted(maps.Keys(fields))
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == "apiVersion" || k == "metadata" })
	if len(keys) == 0 {
		return
	}
	key := keys[random.IntN(len(keys))]
	switch value := fields[key].(type) {
	case map[string]any:
		if len(value) > 0 && random.IntN(4) > 0 {
			removeOne(random, value)
			return
		}
	case []any:
		if len(value) > 0 && random.IntN(4) > 0 {
			if inner, ok := value[random.IntN(len(value))].(map[string]any); ok {
				removeOne(random, inner)
				return
			}
		}
	}
	delete(fields, key)
}

func untyped(t testing.TB, v any) map[string]any {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func typed(t testing.TB, like resource.Object, fields map[string]any) resource.Object {
	t.Helper()
	gvk := like.GetObjectKind().GroupVersionKind()
	o := blank(t, metav1.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind})
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, o); err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o
}

func forEachCase(t *testing.T, check func(*testing.T, *testCase)) {
	t.Helper()
	for _, file := range caseFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) { check(t, load(t, file)) })
	}
}

// BenchmarkGateway translates one Gateway among others. The cost must not depend on their number.
func BenchmarkGateway(b *testing.B) {
	for _, others := range []int{10, 100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			c := load(b, filepath.Join("testdata", "a_gateway_and_a_route_make_a_config.txtar"))
			v := resource.NewView(append(c.objects, replicated(c, others)...))
			key := c.view().Gateways()[0]
			b.ReportAllocs()
			for b.Loop() {
				if translate.Gateway(v, key, c.options).Config == nil {
					b.Fatal("no config")
				}
			}
		})
	}
}

// replicated returns copies of the objects of a case, each in a namespace of its own.
func replicated(c *testCase, times int) []resource.Object {
	var objects []resource.Object
	for i := range times {
		for _, o := range c.objects {
			if o.GetNamespace() == "turn" {
				twin := o.DeepCopyObject().(resource.Object)
				twin.SetNamespace(fmt.Sprintf("turn-%d", i))
				objects = append(objects, twin)
			}
		}
	}
	return objects
}

// BenchmarkGateway shows the time; this test fails if allocations grow with the number of Gateways.
func TestCostDoesNotDependOnOtherGateways(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_gateway_and_a_route_make_a_config.txtar"))
	key := c.view().Gateways()[0]
	cost := func(others int) float64 {
		v := resource.NewView(append(slices.Clone(c.objects), replicated(c, others)...))
		return testing.AllocsPerRun(20, func() { translate.Gateway(v, key, c.options) })
	}
	few, many := cost(1), cost(2_000)
	if many > few*1.05 {
		t.Errorf("%.0f allocations among 2000 Gateways, %.0f alone", many, few)
	}
}
