package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// attempt is one attack of a tenant from its own namespace.
type attempt struct {
	name string
	// apply is the YAML that the tenant applies. TENANT stands for its namespace.
	apply string
	// refused is the error of the API server for the last object; if it is empty, all objects are accepted.
	refused string
	// told maps KIND/NAME to a regular expression that the conditions of the object match.
	told map[string]string
	// try is the attack after apply, with its checks.
	try func(*tenant)
	// also is an additional ClusterRole of the tenant.
	also string
	// reads are the secrets that the tenant may find: its own, or those that another row covers.
	reads []string
}

// families are the attempts by their target.
var families = map[string]func() []attempt{
	"secrets": secretAttempts, "policy": policyAttempts, "addresses": addressAttempts,
	"annotations": annotationAttempts, "backends": backendAttempts,
	"attaching": attachingAttempts, "names": nameAttempts, "numbers": numberAttempts, "tokens": tokenAttempts, "auth": authAttempts,
}

// K-01, K-02, K-03, K-04, K-08, K-09, K-10: no object, token or request of a tenant reads, takes or ends what belongs
// to others, or widens the policy of the class.
func TestTenant(t *testing.T) {
	count := 0
	t.Run("attempts", func(t *testing.T) {
		for family, attempts := range families {
			list := attempts()
			count += len(list)
			t.Run(family, func(t *testing.T) {
				t.Parallel()
				run(t, list)
			})
		}
	})
	floods := floodAttempts()
	t.Logf("%d attempts", count+len(floods))
	for _, flood := range floods { // in sequence: they slow each other down
		t.Run("floods", func(t *testing.T) { run(t, []attempt{flood}) })
	}
	t.Run("no secret is exposed", noSecretIsExposed)
}

// run runs the attempts in parallel, each as its own tenant. After each, the tenant finds no secret of others, and the
// victim works as before.
func run(t *testing.T, attempts []attempt) {
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			n := newTenant(t, a)
			n.apply(a)
			for object, want := range a.told {
				n.told(object, want)
			}
			if a.try != nil {
				a.try(n)
			}
			n.findsNoSecret()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := house.victim.unharmed(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// tenant is the attacker.
type tenant struct {
	*testing.T
	client.Client
	name  string // name of the namespace and of the user
	reads []string
	found map[string]bool // already reported, see finds
	// caller sends requests to the auth service from an address of the tenant.
	caller *http.Client
}

var tenants atomic.Int64

func newTenant(t *testing.T, a attempt) *tenant {
	t.Helper()
	number := tenants.Add(1)
	n := &tenant{T: t, name: fmt.Sprintf("tenant-%d", number), reads: a.reads, found: map[string]bool{}}
	from := &net.TCPAddr{IP: net.IPv4(127, 1, byte(number/250), byte(number%250+1))}
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: from}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	n.caller = &http.Client{Transport: transport}
	n.must(house.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
	roles := []string{"edit", "writes-gateways"}
	if a.also != "" {
		roles = append(roles, a.also)
	}
	for _, role := range roles {
		n.must(house.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: n.name}},
		}))
	}
	access, err := control.User(n.name)
	n.must(err)
	n.Client, err = connect(access.Config)
	n.must(err)
	for _, right := range []authorizationv1.ResourceAttributes{
		{Group: "stunner.l7mp.io", Resource: "gatewayconfigs"},
		{Group: "gateway.networking.k8s.io", Resource: "gateways"},
		{Group: "discovery.k8s.io", Resource: "endpointslices"},
	} {
		if right.Resource == "endpointslices" && a.also == "" {
			continue
		}
		right.Verb, right.Namespace = "patch", n.name
		n.await(func(ctx context.Context) error { // the authorizer observes bindings with a delay
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
			}
			if err := n.Create(ctx, review); err != nil || !review.Status.Allowed {
				return errors.Join(err, fmt.Errorf("%s may not write %s yet", n.name, right.Resource))
			}
			return nil
		})
	}
	return n
}

func (n *tenant) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *tenant) await(cond func(context.Context) error) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	n.must(bed.Until(ctx, cond))
}

// read parses YAML in which TENANT stands for the namespace.
func (n *tenant) read(text string) []*unstructured.Unstructured {
	n.Helper()
	list, err := objects.Read(n.Client, n.name, strings.ReplaceAll(text, "TENANT", n.name))
	n.must(err)
	return list
}

// apply applies the objects of an attempt, and waits until the operator has observed all of them.
func (n *tenant) apply(a attempt) {
	n.Helper()
	list := n.read(a.apply)
	for i, o := range list {
		err := objects.Apply(n.Context(), n, o)
		if a.refused == "" || i < len(list)-1 {
			n.must(err)
			continue
		}
		if err == nil || !regexp.MustCompile(a.refused).MatchString(err.Error()) {
			n.Errorf("error of the API server: %v, want %s", err, a.refused)
		}
		list = list[:i]
	}
	n.settles(list...)
}

// more applies further objects and waits until the operator has observed them.
func (n *tenant) more(text string) {
	n.Helper()
	n.apply(attempt{apply: text})
}

// settles waits until the operator has observed the generations of objects, and then that of a newer object: the
// operator has finished the first ones by then.
func (n *tenant) settles(list ...*unstructured.Unstructured) {
	n.Helper()
	for _, o := range list {
		if hasConditions(o) {
			n.awaitProcessed(o)
		}
	}
	last := n.read(
		fmt.Sprintf(
			`{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: last-%d}, spec: {prefixes: [198.51.100.0/24]}}`,
			tenants.Add(1),
		),
	)[0]
	n.must(objects.Apply(n.Context(), n, last))
	n.awaitProcessed(last)
}

// awaitProcessed waits until the status of an object has its generation.
func (n *tenant) awaitProcessed(o *unstructured.Unstructured) {
	n.Helper()
	n.await(func(ctx context.Context) error {
		now := o.DeepCopy()
		if err := house.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		for _, c := range conditionsOf(now) {
			if c.Type == "Accepted" && c.ObservedGeneration == now.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("the operator has not processed %s %s: %v", o.GetKind(), o.GetName(), now.Object["status"])
	})
}

// hasConditions reports whether the operator writes the status of an object.
func hasConditions(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "GatewayConfig", "StaticService":
		return true
	case "Gateway":
		class, _, _ := unstructured.NestedString(o.Object, "spec", "gatewayClassName")
		return class == "stunner"
	case "UDPRoute":
		parents, _, _ := unstructured.NestedSlice(o.Object, "spec", "parentRefs")
		return slices.ContainsFunc(
			parents, func(p any) bool { kind, named := p.(map[string]any)["kind"]; return !named || kind == "Gateway" },
		)
	}
	return false
}

// conditionsOf returns all conditions in the status of an object: its own, those of listeners and those of parents.
func conditionsOf(o *unstructured.Unstructured) (all []metav1.Condition) {
	var collect func(any)
	collect = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, v := range value {
				if key != "conditions" {
					collect(v)
					continue
				}
				var list []metav1.Condition
				text, _ := json.Marshal(v)
				_ = json.Unmarshal(text, &list)
				all = append(all, list...)
			}
		case []any:
			for _, v := range value {
				collect(v)
			}
		}
	}
	collect(o.Object["status"])
	return all
}

// says returns the conditions of the object KIND/NAME of the namespace as text.
func (n *tenant) says(ctx context.Context, object string) (string, error) {
	kind, name, _ := strings.Cut(object, "/")
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kinds[kind])
	if err := house.Get(ctx, types.NamespacedName{Namespace: n.name, Name: name}, o); err != nil {
		return "", err
	}
	var lines []string
	for _, c := range conditionsOf(o) {
		if c.ObservedGeneration == o.GetGeneration() {
			lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// kinds are the kinds by their short names.
var kinds = map[string]schema.GroupVersionKind{
	"gateway":       {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"},
	"route":         {Group: "stunner.l7mp.io", Version: "v1", Kind: "UDPRoute"},
	"officialroute": {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "UDPRoute"},
	"config":        {Group: "stunner.l7mp.io", Version: "v1", Kind: "GatewayConfig"},
	"static":        {Group: "stunner.l7mp.io", Version: "v1", Kind: "StaticService"},
}

// told checks the conditions of an object. They may change once more after the generation was observed, when the
// operator has read a Secret.
func (n *tenant) told(object, want string) {
	n.Helper()
	expression := regexp.MustCompile(want)
	ctx, cancel := context.WithTimeout(n.Context(), moment)
	defer cancel()
	if err := bed.Until(ctx, func(ctx context.Context) error {
		text, err := n.says(ctx, object)
		if err == nil && !expression.MatchString(text) {
			err = fmt.Errorf("conditions of %s:\n%s\nwant %s", object, text, want)
		}
		return err
	}); err != nil {
		n.Error(err)
	}
}

// readable are the namespaced resources that can be listed.
var readable = sync.OnceValues(func() ([]schema.GroupVersionKind, error) {
	client, err := discovery.NewDiscoveryClientForConfig(control.Admin.Config)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredNamespacedResources()
	if err != nil {
		return nil, err
	}
	var found []schema.GroupVersionKind
	for _, l := range lists {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "list") {
				found = append(found, version.WithKind(r.Kind))
			}
		}
	}
	return found, nil
})

// findsNoSecret searches for secrets of others in all objects that the tenant may read, and in the config of its own
// dataplane.
func (n *tenant) findsNoSecret() {
	n.Helper()
	all, err := readable()
	n.must(err)
	seen := 0
	for _, gvk := range all {
		if n.eachOf(gvk, n.finds) {
			seen++
		}
	}
	if seen < 20 {
		n.Errorf("the tenant may read only %d kinds", seen)
	}
}

// eachOf calls each for every object of a kind in the namespace. It reports whether the tenant may read that kind.
func (n *tenant) eachOf(gvk schema.GroupVersionKind, each func(where string, text []byte)) bool {
	n.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk)
	err := n.List(n.Context(), list, client.InNamespace(n.name))
	if apierrors.IsForbidden(err) {
		return false
	}
	n.must(err)
	for _, o := range list.Items {
		unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
		text, err := json.Marshal(o.Object)
		n.must(err)
		each(o.GetKind()+" "+o.GetName(), text)
	}
	return true
}

// finds reports secrets of others in a text as errors.
func (n *tenant) finds(where string, text []byte) {
	n.Helper()
	for _, secret := range house.markers.in(text) {
		if said := where + " holds: " + secret; !slices.Contains(n.reads, secret) && !n.found[said] {
			n.found[said] = true
			n.Error(said)
		}
	}
}

// config returns the config of a Gateway of the tenant; empty if there is none.
func (n *tenant) config(gateway string) (c config.Config) {
	n.Helper()
	code, body := n.ask(n.doorToken(gateway), "/api/v1/configs/"+n.name+"/"+gateway)
	if code == 404 {
		return c
	}
	if code != 200 {
		n.Fatalf("config discovery: status %d: %s", code, body)
	}
	n.finds("config of "+gateway, body)
	n.must(json.Unmarshal(body, &c))
	return c
}

// reachesNone checks that the config of a Gateway of the tenant opens none of the addresses.
func (n *tenant) reachesNone(gateway string, addresses ...string) {
	n.Helper()
	for _, c := range n.config(gateway).Clusters {
		for _, endpoint := range c.Endpoints {
			for _, a := range addresses {
				if opens(c, endpoint, a) {
					n.Errorf("clients of the tenant's Gateway reach %s through %s of cluster %s", a, endpoint, c.Name)
				}
			}
		}
	}
}

// opens reports whether an endpoint of a cluster is an address, or a prefix with it and without an exception for it.
func opens(c config.Cluster, endpoint, address string) bool {
	host, _, _ := strings.Cut(endpoint, ":<")
	a := netip.MustParseAddr(address)
	if p, err := netip.ParsePrefix(host); err == nil {
		return (p.Contains(a) || p.Addr().Is6() && p.Contains(netip.AddrFrom16(a.As16()))) &&
			(p.IsSingleIP() || !slices.Contains(c.Except, address))
	}
	e, err := netip.ParseAddr(host)
	return err == nil && e.Unmap() == a
}

// service returns a Service of the namespace, or nil.
func (n *tenant) service(name string) *corev1.Service {
	n.Helper()
	svc := &corev1.Service{}
	err := house.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: name}, svc)
	if apierrors.IsNotFound(err) {
		return nil
	}
	n.must(err)
	return svc
}

// isRefused checks that the API server rejected a request.
func (n *tenant) isRefused(err error, want string) {
	n.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		n.Errorf("error of the API server: %v, want %s", err, want)
	}
}
