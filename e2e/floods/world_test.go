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
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

const (
	home    = "home" // namespace of the operator and of the shared Gateway
	tenants = 3
	workers = 16 // concurrent requests of the flood
)

// hostile are the namespaces of the flood.
var hostile = []string{"flood", "flood-1", "flood-2", "flood-3"}

func tenantOf(i int) string { return fmt.Sprintf("good-%d", i) }

// world is the content of the API server.
type world struct {
	*testing.T
	admin *dynamic.DynamicClient
	pulse *stall.Monitor
	// readers are dataplanes: one for the own Gateway of each tenant, and one for the shared Gateway.
	readers []*reader.Reader
	turn    int
}

func newWorld(t *testing.T, access cluster.Access) *world {
	t.Helper()
	config := rest.CopyConfig(access.Config)
	config.UserAgent = "world"
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, admin: admin, pulse: stall.Start()}
	t.Cleanup(w.pulse.Stop)
	return w
}

// settle creates the objects of the good tenants.
func (w *world) settle() {
	w.Helper()
	objects := []string{
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"home"}}`,
		`{"apiVersion":"stunner.l7mp.io/v1","kind":"Dataplane","metadata":{"name":"default"},"spec":{}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"turn","namespace":"home"},"stringData":{"type":"static","username":"user","password":"password-of-the-test"}}`,
		`{"apiVersion":"stunner.l7mp.io/v1","kind":"GatewayConfig","metadata":{"name":"turn","namespace":"home"},"spec":{"authRef":{"name":"turn"}}}`,
		`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"GatewayClass","metadata":{"name":"turn"},"spec":{"controllerName":"stunner.l7mp.io/gateway-operator",
		  "parametersRef":{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":"turn","namespace":"home"}}}`,
		gateway(home, "shared", `"All"`),
	}
	for i := range tenants {
		ns := tenantOf(i)
		objects = append(objects,
			fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, ns),
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				meta(ns, "media"),
			),
			slice(ns, "media", "media", []string{address(i, 0)}),
			gateway(ns, "own", `"Same"`),
			route(ns, "to-own", []string{parent("", "own")}, rule(`{"name":"media"}`)),
			route(ns, "to-shared", []string{parent(home, "shared")}, rule(`{"name":"media"}`)),
		)
	}
	for _, ns := range hostile {
		objects = append(objects, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, ns))
	}
	for _, o := range objects {
		if err := w.create(w.Context(), o); err != nil {
			w.Fatal(err)
		}
	}
}

// address returns the address of a tenant's endpoint. It differs in each turn.
func address(tenant, turn int) string {
	return fmt.Sprintf("10.%d.%d.%d", tenant+1, turn/250%250+1, turn%250+1)
}

// move changes the address of a tenant's endpoint, and returns it in the form of a config.
func (w *world) move(ctx context.Context, tenant, turn int) (string, error) {
	to := address(tenant, turn)
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/addresses/0","value":%q}]`, to)
	_, err := w.of("discovery.k8s.io/v1", "EndpointSlice").Namespace(tenantOf(tenant)).Patch(
		ctx, "media", types.JSONPatchType, []byte(patch), metav1.PatchOptions{},
	)
	return `"` + to + `"`, err
}

// read starts the readers of the good tenants.
func (w *world) read(ctx context.Context, discovery string) {
	w.readers = nil
	for i := range tenants {
		w.readers = append(w.readers, reader.Read(ctx, discovery, tenantOf(i)+"/own"))
	}
	w.readers = append(w.readers, reader.Read(ctx, discovery, home+"/shared"))
}

// good returns the texts that a config of a good tenant contains.
func good(i int) [][]byte {
	if i < tenants {
		return [][]byte{[]byte(fmt.Sprintf(`"10.%d.`, i+1)), []byte(tenantOf(i) + "/to-own")}
	}
	var all [][]byte
	for i := range tenants {
		all = append(all, []byte(fmt.Sprintf(`"10.%d.`, i+1)), []byte(tenantOf(i)+"/to-shared"))
	}
	return all
}

func complete(i int, s reader.State) bool {
	for _, part := range good(i) {
		if !bytes.Contains(s.Last.Data, part) {
			return false
		}
	}
	return true
}

// incomplete waits until all readers have complete configs, and returns those that do not.
func (w *world) incomplete(most time.Duration) (missing []string) {
	ctx, cancel := context.WithTimeout(w.Context(), max(most, time.Second))
	defer cancel()
	for i, r := range w.readers {
		if _, err := r.Await(ctx, func(s reader.State) bool { return complete(i, s) }); err != nil {
			missing = append(missing, err.Error())
		}
	}
	return missing
}

// pour writes all objects of a flood, runs its churn, and returns the number of objects.
func (w *world) pour(ctx context.Context, f flood) int {
	w.Helper()
	next, written := atomic.Int64{}, atomic.Int64{}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := int(next.Add(1) - 1); i < f.size; i = int(next.Add(1) - 1) {
				for _, o := range f.objects(i) {
					if err := w.create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
						w.Errorf("flood: %v", err)
						return
					}
					written.Add(1)
				}
			}
		})
	}
	group.Wait()
	if f.churn != nil {
		until := time.Now().Add(5 * time.Second)
		for turn := 0; time.Now().Before(until); turn++ {
			f.churn(ctx, w, turn)
		}
	}
	return int(written.Load())
}

// kinds are the kinds of a flood, and of the objects that the operator generates for it: there is no garbage collector.
var kinds = [][2]string{
	{"gateway.networking.k8s.io/v1", "Gateway"}, {"stunner.l7mp.io/v1", "UDPRoute"},
	{"stunner.l7mp.io/v1", "StaticService"}, {"stunner.l7mp.io/v1", "GatewayConfig"},
	{"discovery.k8s.io/v1", "EndpointSlice"}, {"v1", "Service"}, {"v1", "ConfigMap"}, {"v1", "Secret"},
	{"apps/v1", "Deployment"}, {"networking.k8s.io/v1", "NetworkPolicy"},
	{"policy/v1", "PodDisruptionBudget"},
}

// clear deletes the objects of a flood.
func (w *world) clear() {
	w.Helper()
	for _, kind := range kinds {
		for _, ns := range hostile {
			err := w.of(kind[0], kind[1]).Namespace(ns).DeleteCollection(
				w.Context(), metav1.DeleteOptions{}, metav1.ListOptions{},
			)
			if err != nil {
				w.Fatalf("delete %s of %s: %v", kind[1], ns, err)
			}
		}
	}
}

// of returns the resources of a kind.
func (w *world) of(version, kind string) dynamic.NamespaceableResourceInterface {
	group, v, grouped := strings.Cut(version, "/")
	if !grouped {
		group, v = "", group
	}
	plural := strings.ToLower(kind) + "s"
	switch {
	case strings.HasSuffix(kind, "s"):
		plural = strings.ToLower(kind) + "es"
	case strings.HasSuffix(kind, "Policy"):
		plural = strings.ToLower(strings.TrimSuffix(kind, "y")) + "ies"
	}
	return w.admin.Resource(schema.GroupVersionResource{Group: group, Version: v, Resource: plural})
}

// create creates an object from JSON.
func (w *world) create(ctx context.Context, text string) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		return fmt.Errorf("read %s: %w", text[:min(len(text), 1000)], err)
	}
	_, err := w.of(o.GetAPIVersion(), o.GetKind()).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// Manifests.

func meta(namespace, name string, more ...string) string {
	return fmt.Sprintf(
		`"metadata":{"namespace":%q,"name":%q%s}`, namespace, name, strings.Join(append([]string{""}, more...), ","),
	)
}

// gateway returns a Gateway that allows routes of its own namespace ("Same") or of all ("All").
func gateway(namespace, name, from string, more ...string) string {
	return fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway",%s,"spec":{"gatewayClassName":"turn",
		"listeners":[{"name":"udp","port":3478,"protocol":"TURN-UDP","allowedRoutes":{"namespaces":{"from":%s}}}]}}`, meta(namespace, name, more...), from)
}

func parent(namespace, name string) string {
	if namespace == "" {
		return fmt.Sprintf(`{"name":%q}`, name)
	}
	return fmt.Sprintf(`{"name":%q,"namespace":%q}`, name, namespace)
}

func rule(backends ...string) string { return `{"backendRefs":[` + strings.Join(backends, ",") + `]}` }

func route(namespace, name string, parents []string, rules ...string) string {
	return fmt.Sprintf(`{"apiVersion":"stunner.l7mp.io/v1","kind":"UDPRoute",%s,"spec":{"parentRefs":[%s],"rules":[%s]}}`,
		meta(namespace, name), strings.Join(parents, ","), strings.Join(rules, ","))
}

func slice(namespace, name, service string, addresses []string) string {
	var each []string
	for _, a := range addresses {
		each = append(each, fmt.Sprintf(`{"addresses":[%q]}`, a))
	}
	return fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4",%s,"ports":[{"port":7000,"protocol":"UDP"}],"endpoints":[%s]}`,
		meta(
			namespace, name, fmt.Sprintf(`"labels":{"kubernetes.io/service-name":%q}`, service),
		), strings.Join(each, ","))
}

// static returns a StaticService with 1,024 prefixes.
func static(namespace, name string, seed int) string {
	var all []string
	for i := range 1024 {
		all = append(all, fmt.Sprintf("%q", fmt.Sprintf("172.%d.%d.%d/32", 16+seed%16, i/250, i%250)))
	}
	return fmt.Sprintf(
		`{"apiVersion":"stunner.l7mp.io/v1","kind":"StaticService",%s,"spec":{"prefixes":[%s]}}`, meta(namespace, name),
		strings.Join(all, ","),
	)
}

// wide returns rules with n × 16 backends, each of which is a StaticService with 1,024 prefixes at another port.
func wide(n int, name string) (rules []string) {
	port := 1000
	for range n {
		var backends []string
		for range 16 {
			port++
			backends = append(
				backends,
				fmt.Sprintf(`{"group":"stunner.l7mp.io","kind":"StaticService","name":%q,"port":%d}`, name, port),
			)
		}
		rules = append(rules, rule(backends...))
	}
	return rules
}
