package floods

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

const (
	home    = "home" // namespace of the operator and of the shared Gateway
	tenants = 3      // the namespaces of tenants are good-N
	workers = 16     // concurrent requests of the flood
)

// hostile are the namespaces of the flood.
var hostile = []string{"flood", "flood-1", "flood-2", "flood-3"}

// kinds are the kinds of the tenants, of a flood, and of the objects that the operator generates for it.
var kinds = map[string]struct{ version, resource string }{
	"Gateway": {"gateway.networking.k8s.io/v1", "gateways"}, "UDPRoute": {"stunner.l7mp.io/v1", "udproutes"},
	"StaticService": {"stunner.l7mp.io/v1", "staticservices"}, "GatewayConfig": {"stunner.l7mp.io/v1", "gatewayconfigs"},
	"EndpointSlice": {"discovery.k8s.io/v1", "endpointslices"}, "Service": {"v1", "services"},
	"ConfigMap": {"v1", "configmaps"}, "Secret": {"v1", "secrets"}, "Deployment": {"apps/v1", "deployments"},
	"NetworkPolicy":       {"networking.k8s.io/v1", "networkpolicies"},
	"PodDisruptionBudget": {"policy/v1", "poddisruptionbudgets"}, namespaces: {"v1", "namespaces"},
}

const namespaces = "Namespace"

// apiServer is the content of the API server, and the dataplanes of the good tenants.
type apiServer struct {
	*testing.T
	*cluster.Cluster
	admin  *dynamic.DynamicClient
	stalls *stall.Monitor
	// readers are dataplanes: one for each tenant's Gateway, and one for the shared Gateway.
	readers   []*reader.Reader
	turn      int
	creations int // new Gateways of good tenants
}

// newAPIServer creates the objects of the good tenants.
func newAPIServer(t *testing.T, kube *cluster.Cluster) *apiServer {
	t.Helper()
	admin, err := dynamic.NewForConfig(kube.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	a := &apiServer{T: t, Cluster: kube, admin: admin, stalls: stall.Start()}
	t.Cleanup(a.stalls.Stop)
	text := `{apiVersion: v1, kind: Namespace, metadata: {name: home}}
---
{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {}}
---
{apiVersion: v1, kind: Secret, metadata: {name: turn, namespace: home}, stringData: {type: static, username: user, password: password-of-the-test}}
---
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: turn, namespace: home}, spec: {authRef: {name: turn}}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: turn}, spec: {
  controllerName: stunner.l7mp.io/gateway-operator,
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: home}}}
`
	documents := []string{text, gateway(home, "shared", "All")}
	for i := range tenants {
		ns := numbered("good", i)
		documents = append(documents, object(namespaces, "", ns, `"spec":{}`), service(ns, "media"),
			slice(ns, "media", "media", []string{address(i, 0)}), gateway(ns, "own", "Same"),
			route(ns, "to-own", []string{parent("", "own")}, rule(`{"name":"media"}`)),
			route(ns, "to-shared", []string{parent(home, "shared")}, rule(`{"name":"media"}`)))
	}
	for _, ns := range hostile {
		documents = append(documents, object(namespaces, "", ns, `"spec":{}`))
	}
	if err := kube.Apply(t.Context(), "", strings.Join(documents, "\n---\n")); err != nil {
		t.Fatal(err)
	}
	return a
}

// address returns the address of a tenant's endpoint. It differs in each turn.
func address(tenant, turn int) string {
	return fmt.Sprintf("10.%d.%d.%d", tenant+1, turn/250%250+1, turn%250+1)
}

// move changes the address of a tenant's endpoint, and returns it in the form of a config.
func (a *apiServer) move(ctx context.Context, tenant, turn int) (string, error) {
	to := fmt.Sprintf("%q", address(tenant, turn))
	patch := `[{"op":"replace","path":"/endpoints/0/addresses/0","value":` + to + `}]`
	return to, a.Patch(ctx, numbered("good", tenant), "endpointslice/media", types.JSONPatchType, patch)
}

// read starts the readers of the good tenants.
func (a *apiServer) read(ctx context.Context, discovery string) {
	a.readers = nil
	for i := range tenants {
		a.readers = append(a.readers, reader.Read(ctx, discovery, numbered("good", i)+"/own"))
	}
	a.readers = append(a.readers, reader.Read(ctx, discovery, home+"/shared"))
}

// complete reports whether a config has the endpoints and routes of its tenant, or, for the shared Gateway, of all
// tenants.
func complete(reader int, config []byte) bool {
	first, last, suffix := 0, tenants, "/to-shared"
	if reader < tenants {
		first, last, suffix = reader, reader+1, "/to-own"
	}
	for i := first; i < last; i++ {
		for _, part := range []string{fmt.Sprintf(`"10.%d.`, i+1), numbered("good", i) + suffix} {
			if !bytes.Contains(config, []byte(part)) {
				return false
			}
		}
	}
	return true
}

// incomplete waits until all readers have complete configs. It returns the readers without a complete config.
func (a *apiServer) incomplete(most time.Duration) (missing []string) {
	ctx, cancel := context.WithTimeout(a.Context(), max(most, time.Second))
	defer cancel()
	for i, r := range a.readers {
		if _, err := r.Await(ctx, func(s reader.State) bool { return complete(i, s.Last.Data) }); err != nil {
			missing = append(missing, err.Error())
		}
	}
	return missing
}

// pour writes all objects of a flood, runs its churn, and returns the number of objects.
func (a *apiServer) pour(ctx context.Context, f flood) int {
	a.Helper()
	next, written := atomic.Int64{}, atomic.Int64{}
	write := func(objects []string) {
		for _, o := range objects {
			err := a.create(ctx, o)
			for tries := 0; apierrors.IsInternalError(err) && tries < 5; tries++ { // etcd did not answer in time
				err = a.create(ctx, o)
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				a.Errorf("flood: %v", err)
				return
			}
			written.Add(1)
		}
	}
	write(f.first)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := int(next.Add(1) - 1); i < f.size && !a.Failed(); i = int(next.Add(1) - 1) {
				write(f.objects(i))
			}
		})
	}
	group.Wait()
	if f.churn != nil {
		until := time.Now().Add(5 * time.Second)
		for turn := 0; time.Now().Before(until); turn++ {
			f.churn(ctx, a, turn)
		}
	}
	return int(written.Load())
}

// clear deletes the objects of a flood, and the objects that the operator has generated for it: there is no garbage
// collector.
func (a *apiServer) clear() {
	a.Helper()
	for kind := range kinds {
		for _, ns := range hostile {
			if kind == namespaces {
				continue
			}
			err := a.of(kind).Namespace(ns).DeleteCollection(a.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil {
				a.Fatalf("delete %s of %s: %v", kind, ns, err)
			}
		}
	}
}

// of returns the resources of a kind.
func (a *apiServer) of(kind string) dynamic.NamespaceableResourceInterface {
	version, _ := schema.ParseGroupVersion(kinds[kind].version) // the version is valid
	return a.admin.Resource(version.WithResource(kinds[kind].resource))
}

// create creates an object from JSON.
func (a *apiServer) create(ctx context.Context, text string) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		return fmt.Errorf("read %s: %w", text[:min(len(text), 1000)], err)
	}
	_, err := a.of(o.GetKind()).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
	return err
}
