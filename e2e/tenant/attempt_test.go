package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
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
	// object is KIND/NAME, and told a regular expression that its conditions match.
	object, told string
	// try is the attack after apply, with its checks.
	try func(*tenant)
	// also is an additional ClusterRole of the tenant.
	also string
}

// families are the attempts by their target.
var families = map[string]func() []attempt{
	"secrets": secretAttempts, "policy": policyAttempts, "addresses": addressAttempts,
	"annotations": annotationAttempts, "backends": backendAttempts,
	"attaching": attachingAttempts, "names": nameAttempts, "numbers": numberAttempts, "tokens": tokenAttempts,
	"auth": authAttempts,
}

// K-01, K-02, K-03, K-04, K-08, K-09, K-10: no object, token or request of a tenant reads, takes or ends resources of
// others, or widens the policy of the class.
func TestTenant(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	run = start(t)
	t.Run("attempts", func(t *testing.T) {
		for family, attempts := range families {
			t.Run(family, func(t *testing.T) {
				t.Parallel()
				for _, a := range attempts() {
					t.Run(a.name, func(t *testing.T) {
						t.Parallel()
						newTenant(t, a).attack(a)
					})
				}
			})
		}
	})
	t.Run("others are as before", othersAreAsBefore)
	// In sequence, because floods slow each other down.
	for _, a := range append(floodAttempts(), manyPodAttempts()...) {
		t.Run("floods/"+a.name, func(t *testing.T) { newTenant(t, a).attack(a) })
	}
	t.Run("no secret is exposed", noSecretIsExposed)
}

func (n *tenant) attack(a attempt) {
	n.apply(a)
	if a.object != "" {
		n.says(a.object, a.told)
	}
	if a.try != nil {
		a.try(n)
	}
}

// tenant is the attacker.
type tenant struct {
	*testing.T
	client.Client
	name string // of the namespace and of the user
	// caller sends requests to the product from an address of the tenant.
	caller *http.Client
}

var tenants atomic.Int64

func newTenant(t *testing.T, a attempt) *tenant {
	t.Helper()
	number := tenants.Add(1)
	n := &tenant{T: t, name: fmt.Sprintf("tenant-%d", number)}
	t.Logf("namespace %s", n.name)
	n.caller = run.caller(fmt.Sprintf("127.1.%d.%d", number/250, number%250+1))
	t.Cleanup(n.caller.CloseIdleConnections)
	n.must(run.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
	roles := []string{"edit", "writes-gateways"}
	right := authorizationv1.ResourceAttributes{
		Group: "gateway.networking.k8s.io", Resource: "gateways", Verb: "patch", Namespace: n.name,
	}
	if a.also != "" {
		roles = append(roles, a.also)
		right.Group, right.Resource = "discovery.k8s.io", "endpointslices"
	}
	for _, role := range roles {
		n.must(run.admin.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: n.name}},
		}))
	}
	access := rest.CopyConfig(run.Cluster.Admin.Config)
	access.Impersonate = rest.ImpersonationConfig{UserName: n.name}
	var err error
	n.Client, err = run.connect(access)
	n.must(err)
	n.await(func(ctx context.Context) error { // the authorizer observes bindings with a delay, in their order
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}
		if err := n.Create(ctx, review); err != nil || !review.Status.Allowed {
			return errors.Join(err, fmt.Errorf("%s may not write %s yet", n.name, right.Resource))
		}
		return nil
	})
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
	ctx, cancel := context.WithTimeout(n.Context(), limit)
	defer cancel()
	n.must(harness.Until(ctx, cond))
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
	if len(list) > 0 {
		n.settle(list...)
	}
}

// more applies further objects and waits until the operator has observed them.
func (n *tenant) more(text string) {
	n.Helper()
	n.apply(attempt{apply: text})
}

// kinds are the kinds by their short names.
var kinds = map[string]schema.GroupVersionKind{
	"gateway":       {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"},
	"route":         {Group: "stunner.l7mp.io", Version: "v1", Kind: "UDPRoute"},
	"officialroute": {Group: "gateway.networking.k8s.io", Version: "v1", Kind: "UDPRoute"},
	"config":        {Group: "stunner.l7mp.io", Version: "v1", Kind: "GatewayConfig"},
	"static":        {Group: "stunner.l7mp.io", Version: "v1", Kind: "StaticService"},
	"service":       {Version: "v1", Kind: "Service"},
}

// object returns an object KIND/NAME of the namespace, with its name only.
func (n *tenant) object(name string) *unstructured.Unstructured {
	kind, name, _ := strings.Cut(name, "/")
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kinds[kind])
	o.SetNamespace(n.name)
	o.SetName(name)
	return o
}

// conditions returns the conditions of an object of the namespace as text.
func (n *tenant) conditions(ctx context.Context, object string) (string, error) {
	o := n.object(object)
	if err := run.admin.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
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

// says checks the conditions of an object. They may change once more after the generation was observed, when the
// operator has read a Secret.
func (n *tenant) says(object, want string) {
	n.Helper()
	expression := regexp.MustCompile(want)
	ctx, cancel := context.WithTimeout(n.Context(), soon)
	defer cancel()
	if err := harness.Until(ctx, func(ctx context.Context) error {
		text, err := n.conditions(ctx, object)
		if err == nil && !expression.MatchString(text) {
			err = fmt.Errorf("conditions of %s:\n%s\nwant %s", object, text, want)
		}
		return err
	}); err != nil {
		n.Error(err)
	}
}

// config returns the config of a Gateway of the tenant; empty if there is none.
func (n *tenant) config(gateway string) (c config.Config) {
	n.Helper()
	code, body := n.ask(n.dataplaneToken(gateway), "/api/v1/configs/"+n.name+"/"+gateway)
	if code == http.StatusNotFound {
		return c
	}
	if code != http.StatusOK {
		n.Fatalf("config discovery: status %d: %s", code, body)
	}
	n.must(json.Unmarshal(body, &c))
	return c
}

// reachesNone checks that the config of the tenant's Gateway opens none of the addresses.
func (n *tenant) reachesNone(addresses ...string) {
	n.Helper()
	for _, c := range n.config("door").Clusters {
		for _, endpoint := range c.Endpoints {
			for _, a := range addresses {
				if opens(c, endpoint, a) {
					n.Errorf("clients of the tenant's Gateway reach %s through %s of cluster %s", a, endpoint, c.Name)
				}
			}
		}
	}
}

// reachesNoneOf returns reachesNone as an attack.
func reachesNoneOf(addresses ...string) func(*tenant) {
	return func(n *tenant) { n.Helper(); n.reachesNone(addresses...) }
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
	err := run.admin.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: name}, svc)
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

// patch changes an object of the namespace as the tenant.
func (n *tenant) patch(o client.Object, fields map[string]any) error {
	text, err := json.Marshal(fields)
	n.must(err)
	return n.Patch(n.Context(), o, client.RawPatch(types.MergePatchType, text))
}

// annotate sets an annotation of the tenant's Gateway.
func (n *tenant) annotate(name, value string) {
	n.Helper()
	n.must(n.patch(n.object("gateway/door"), map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{name: value}},
	}))
}
