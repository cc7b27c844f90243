package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// tenant is a namespace whose Gateways have the class of an installation. It may use another client of the API server.
type tenant struct {
	*installation
	client.Client
	class string
}

// newTenant returns a tenant of the shared operator.
func newTenant(t *testing.T) *tenant {
	t.Helper()
	n := sharedOperator(t).tenant(t)
	n.Cleanup(n.nothingForbidden(time.Now()))
	return n
}

// tenant returns a tenant in the namespace of a test.
func (s *installation) tenant(t *testing.T) *tenant {
	t.Helper()
	n := (&tenant{installation: s, class: s.name}).in(nameOf(t))
	n.T = t
	ctrllog.SetLogger(logr.Discard())
	scheme, err := objects.Scheme()
	n.must(err)
	n.Client, err = client.New(control.Admin.Config, client.Options{Scheme: scheme})
	n.must(err)
	if n.name != s.name {
		n.namespace("")
	}
	return n
}

// in returns the tenant in another namespace.
func (n *tenant) in(namespace string) *tenant {
	own, other := *n.installation, *n
	own.name, other.installation = namespace, &own
	return &other
}

// namespace creates the namespace of the tenant, or another namespace, and returns the tenant in it.
func (n *tenant) namespace(suffix string) *tenant {
	n.Helper()
	other := n.in(n.name + suffix)
	n.must(n.Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other.name}}))
	return other
}

// awaitText polls look until it returns the wanted text.
func (n *tenant) awaitText(want string, look func(context.Context) (string, error)) {
	n.Helper()
	n.await(func(ctx context.Context) error {
		got, err := look(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("got\n\t%s\nwant\n\t%s", got, want)
		}
		return err
	})
}

// objects reads YAML. NAMESPACE, CLASS and CONTROLLER are replaced by the values of the test, and a missing namespace
// is filled in.
func (n *tenant) objects(text string) []*unstructured.Unstructured {
	n.Helper()
	text = strings.NewReplacer("NAMESPACE", n.name, "CLASS", n.class, "CONTROLLER", n.controller()).Replace(text)
	list, err := objects.Read(n.Client, n.name, text)
	n.must(err)
	return list
}

// apply applies the objects in YAML. Cluster-scoped objects are deleted at the end of the test.
func (n *tenant) apply(text string) {
	n.Helper()
	for _, o := range n.objects(text) {
		n.must(n.try(o))
		if o.GetNamespace() == "" {
			n.Cleanup(func() { n.must(client.IgnoreNotFound(n.Delete(context.Background(), o))) })
		}
	}
}

func (n *tenant) try(o *unstructured.Unstructured) error {
	return objects.Apply(n.Context(), n.Client, o)
}

// remove deletes the objects in YAML.
func (n *tenant) remove(text string) {
	n.Helper()
	for _, o := range n.objects(text) {
		n.must(n.Delete(n.Context(), o))
	}
}

// patch merges JSON into an object, by default in the namespace of the tenant.
func (n *tenant) patch(o client.Object, json string) {
	n.Helper()
	if o.GetNamespace() == "" {
		o.SetNamespace(n.name)
	}
	n.must(n.Patch(n.Context(), o, client.RawPatch(types.MergePatchType, []byte(json))))
}

// expose writes the address of a load balancer into the status of a Service.
func (n *tenant) expose(service, address string) {
	n.Helper()
	ingress := []corev1.LoadBalancerIngress{}
	if address != "" {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: address})
	}
	n.await(func(ctx context.Context) error {
		svc := &corev1.Service{}
		if err := n.read(ctx, service, svc); err != nil {
			return err
		}
		svc.Status.LoadBalancer.Ingress = ingress
		return n.Status().Update(ctx, svc)
	})
}

// read reads an object of the namespace.
func (n *tenant) read(ctx context.Context, name string, o client.Object) error {
	return n.Get(ctx, types.NamespacedName{Namespace: n.name, Name: name}, o)
}

// awaitDeleted waits until an object does not exist.
func (n *tenant) awaitDeleted(name string, o client.Object) {
	n.Helper()
	n.await(func(ctx context.Context) error {
		if err := n.read(ctx, name, o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%T %s still exists: %v", o, name, err)
		}
		return nil
	})
}

// config returns the config that the dataplanes of a Gateway receive, or an empty config.
func (n *tenant) config(ctx context.Context, gateway string) (c config.Config, err error) {
	return n.configAt(ctx, gateway, "")
}

// configAt returns the config that a dataplane on a node receives.
func (n *tenant) configAt(ctx context.Context, gateway, node string) (c config.Config, err error) {
	code, body, err := harness.Get(
		ctx, fmt.Sprintf("http://127.0.0.1:%d/api/v1/configs/%s/%s?node=%s", n.discovery, n.name, gateway, node),
	)
	if err == nil && code == http.StatusOK {
		err = json.Unmarshal(body, &c)
	}
	return c, err
}

// serves waits until the config of a Gateway has exactly these listeners, each given as name and public address.
func (n *tenant) serves(gateway string, listeners ...string) {
	n.Helper()
	n.awaitText(strings.Join(listeners, ", "), func(ctx context.Context) (string, error) {
		c, err := n.config(ctx, gateway)
		var found []string
		for _, l := range c.Listeners {
			found = append(found, strings.TrimPrefix(l.Name, n.name+"/"+gateway+"/")+" "+l.PublicAddress)
		}
		return strings.Join(found, ", "), err
	})
}

// reaches waits until the clusters of a Gateway's config have exactly these endpoints.
func (n *tenant) reaches(gateway string, endpoints ...string) {
	n.Helper()
	slices.Sort(endpoints)
	n.awaitText(strings.Join(endpoints, " "), func(ctx context.Context) (string, error) {
		c, err := n.config(ctx, gateway)
		routed := map[string]bool{}
		for _, l := range c.Listeners {
			for _, r := range l.Routes {
				routed[r] = true
			}
		}
		var found []string
		for _, cluster := range c.Clusters {
			if routed[cluster.Name] {
				found = append(found, cluster.Endpoints...)
			}
		}
		slices.Sort(found)
		return strings.Join(slices.Compact(found), " "), err
	})
}

// Statuses are compared as one line of text, so that a test must name every condition. A true condition is its type,
// followed by its reason if the reason differs from the type. A false condition begins with an exclamation mark.
const (
	programmed  = "Accepted Programmed"
	served      = "Accepted !Conflicted:NoConflicts Programmed ResolvedRefs"
	homeless    = "Accepted !Programmed:AddressNotAssigned"
	unexposed   = "Accepted !Conflicted:NoConflicts !Programmed:Pending ResolvedRefs"
	routed      = "Accepted ResolvedRefs"
	notAllowed  = "!Accepted:NotAllowedByListeners ResolvedRefs"
	bothKinds   = "stunner.l7mp.io/UDPRoute gateway.networking.k8s.io/UDPRoute"
	listsRoutes = "%s: %d routes, kinds [%s], %s"
)

// brief formats the conditions of an object in one line. A condition of another generation is marked.
func brief(conditions []metav1.Condition, generation int64) string {
	var words []string
	for _, c := range conditions {
		word := c.Type
		if c.Reason != c.Type {
			word += ":" + c.Reason
		}
		if c.Status != metav1.ConditionTrue {
			word = "!" + word
		}
		if c.ObservedGeneration != generation {
			word += fmt.Sprintf("(of generation %d, want %d)", c.ObservedGeneration, generation)
		}
		words = append(words, word)
	}
	slices.SortFunc(
		words, func(a, b string) int { return strings.Compare(strings.TrimLeft(a, "!"), strings.TrimLeft(b, "!")) },
	)
	return strings.Join(words, " ")
}

// gateway waits until a Gateway has these conditions.
func (n *tenant) gateway(name, want string) {
	n.Helper()
	n.awaitText(want, func(ctx context.Context) (string, error) {
		gw := &gwapiv1.Gateway{}
		err := n.read(ctx, name, gw)
		return brief(gw.Status.Conditions, gw.Generation), err
	})
}

// listener formats the expected status of a listener: number of routes, supported kinds, conditions.
func listener(name string, routes int, kinds, conditions string) string {
	return fmt.Sprintf(listsRoutes, name, routes, kinds, conditions)
}

// listeners waits until the status of a Gateway has exactly these listeners, in any order.
func (n *tenant) listeners(gateway string, want ...string) {
	n.Helper()
	slices.Sort(want)
	n.awaitText(strings.Join(want, "\n\t"), func(ctx context.Context) (string, error) {
		gw := &gwapiv1.Gateway{}
		err := n.read(ctx, gateway, gw)
		var lines []string
		for _, l := range gw.Status.Listeners {
			var kinds []string
			for _, k := range l.SupportedKinds {
				kinds = append(kinds, fmt.Sprintf("%s/%s", *k.Group, k.Kind))
			}
			lines = append(lines, listener(
				string(l.Name), int(l.AttachedRoutes), strings.Join(kinds, " "), brief(l.Conditions, gw.Generation),
			))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n\t"), err
	})
}

// addresses waits until the status of a Gateway has these addresses.
func (n *tenant) addresses(gateway string, want ...string) {
	n.Helper()
	n.awaitText(strings.Join(want, " "), func(ctx context.Context) (string, error) {
		gw := &gwapiv1.Gateway{}
		err := n.read(ctx, gateway, gw)
		var found []string
		for _, a := range gw.Status.Addresses {
			found = append(found, a.Value)
		}
		return strings.Join(found, " "), err
	})
}

// route waits until the status of a UDPRoute of our group has exactly these parents, each given as GATEWAY/SECTION and
// its conditions. Statuses of other controllers are ignored: operators of other tests also write a status for a Gateway
// that does not exist.
func (n *tenant) route(name string, want ...string) {
	n.Helper()
	n.awaitText(strings.Join(want, "\n\t"), func(ctx context.Context) (string, error) {
		r := &stunnerv1.UDPRoute{}
		err := n.read(ctx, name, r)
		return n.parents(r.Status.RouteStatus, r.Generation), err
	})
}

func (n *tenant) parents(s gwapiv1.RouteStatus, generation int64) string {
	var lines []string
	for _, p := range s.Parents {
		if string(p.ControllerName) != n.controller() {
			continue
		}
		section := gwapiv1.SectionName("")
		if p.ParentRef.SectionName != nil {
			section = *p.ParentRef.SectionName
		}
		lines = append(lines, fmt.Sprintf("%s/%s: %s", p.ParentRef.Name, section, brief(p.Conditions, generation)))
	}
	return strings.Join(lines, "\n\t")
}

// certify creates a Secret with a certificate for the loopback address.
func (n *tenant) certify(name string) {
	n.Helper()
	chain, private, err := harness.Certificate()
	n.must(err)
	n.must(n.Create(n.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: bytes.Clone(chain), corev1.TLSPrivateKeyKey: bytes.Clone(private),
		},
	}))
}
