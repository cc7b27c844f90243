package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Objects of one Gateway: a thousand Gateways have 5,000 UDPRoutes, 2,000 Services and 50,000 endpoints.
const (
	namespaces = 20
	routes     = 5
	services   = 2
	endpoints  = 25 // endpoints of one Service
)

// workers is the number of concurrent requests.
const workers = 32

// userObjects are the objects in the API server that users and the cloud provider wrote.
type userObjects struct {
	*testing.T
	admin *dynamic.DynamicClient
	size  int // Gateways
}

func newUserObjects(t *testing.T, access cluster.Access) *userObjects {
	t.Helper()
	config := rest.CopyConfig(access.Config)
	config.UserAgent = "world"
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &userObjects{T: t, admin: admin}
	var all []string
	for n := range namespaces {
		all = append(all, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespaceOf(n)))
	}
	for _, o := range append(all, shared...) {
		if err := w.create(w.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// secretName is the name of the Secret with the TURN credentials, which the operator reads.
const secretName = "turn"

// shared are the objects that all Gateways have in common.
var shared = []string{
	`{"apiVersion":"stunner.l7mp.io/v1","kind":"Dataplane","metadata":{"name":"default"},"spec":{}}`,
	`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"turn","namespace":"world-0"},
	  "stringData":{"type":"static","username":"user","password":"pass"}}`,
	`{"apiVersion":"stunner.l7mp.io/v1","kind":"GatewayConfig","metadata":{"name":"turn","namespace":"world-0"},"spec":{"authRef":{"name":"turn"}}}`,
	`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"GatewayClass","metadata":{"name":"turn"},
	  "spec":{"controllerName":"stunner.l7mp.io/gateway-operator",
	  "parametersRef":{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":"turn","namespace":"world-0"}}}`,
}

func namespaceOf(gateway int) string { return fmt.Sprintf("world-%d", gateway%namespaces) }

func nameOf(gateway int) string { return fmt.Sprintf("gw-%d", gateway) }

func idOf(gateway int) string { return namespaceOf(gateway) + "/" + nameOf(gateway) }

func backendOf(gateway, service int) string { return fmt.Sprintf("media-%d-%d", gateway, service) }

// grow adds Gateways with their objects up to a number.
func (w *userObjects) grow(size int) {
	w.Helper()
	w.each(w.size, size, func(ctx context.Context, gateway int) error {
		for _, o := range objects(gateway) {
			if err := w.create(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	w.size = size
}

// objects returns a Gateway and its objects.
func objects(gateway int) []string {
	head := func(name string) string {
		return fmt.Sprintf(`"metadata":{"namespace":%q,"name":%q}`, namespaceOf(gateway), name)
	}
	var list []string
	for s := range services {
		name := backendOf(gateway, s)
		list = append(
			list,
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				head(name),
			),
		)
		var each []string
		for e := range endpoints {
			each = append(each, fmt.Sprintf(`{"addresses":[%q]}`, address(gateway, s*endpoints+e, 0)))
		}
		list = append(list, fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4",
			"metadata":{"namespace":%q,"name":%q,"labels":{"kubernetes.io/service-name":%q}},"ports":[{"port":7000,"protocol":"UDP"}],"endpoints":[%s]}`,
			namespaceOf(gateway), name, name, strings.Join(each, ",")))
	}
	for r := range routes {
		list = append(list, fmt.Sprintf(`{"apiVersion":"stunner.l7mp.io/v1","kind":"UDPRoute",%s,"spec":{"parentRefs":[{"name":%q}],"rules":[{"backendRefs":[{"name":%q}]}]}}`,
			head(fmt.Sprintf("route-%d-%d", gateway, r)), nameOf(gateway), backendOf(gateway, r%services)))
	}
	return append(list, fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway",%s,
		"spec":{"gatewayClassName":"turn","listeners":[{"name":"udp","port":3478,"protocol":"TURN-UDP"}]}}`, head(nameOf(gateway))))
}

// address returns the address of an endpoint of a Gateway. It differs in each turn.
func address(gateway, endpoint, turn int) string {
	return fmt.Sprintf("10.%d.%d.%d", (gateway*4+turn/200)%256, turn%200+1, endpoint+1)
}

// expose sets the load balancer address of every Service of a Gateway.
func (w *userObjects) expose() {
	w.Helper()
	w.each(0, w.size, func(ctx context.Context, gateway int) error {
		patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, public(gateway))
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return harness.Until(ctx, func(ctx context.Context) error { // the operator may not have created the Service yet
			_, err := w.in("v1", "services", gateway).Patch(
				ctx, nameOf(gateway), types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status",
			)
			return err
		})
	})
}

func public(gateway int) string { return fmt.Sprintf("198.18.%d.%d", gateway/250, gateway%250+1) }

// move changes the address of the first endpoint of a Gateway, and returns it.
func (w *userObjects) move(ctx context.Context, gateway, turn int) (string, error) {
	moved := address(gateway, 0, turn)
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/addresses/0","value":%q}]`, moved)
	_, err := w.in("discovery.k8s.io/v1", "endpointslices", gateway).
		Patch(ctx, backendOf(gateway, 0), types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return moved, err
}

// in returns the resources of a kind in the namespace of a Gateway.
func (w *userObjects) in(version, plural string, gateway int) dynamic.ResourceInterface {
	return w.admin.Resource(resource(version, plural)).Namespace(namespaceOf(gateway))
}

func resource(version, plural string) schema.GroupVersionResource {
	group, version, grouped := strings.Cut(version, "/")
	if !grouped {
		group, version = "", group
	}
	return schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
}

// create creates an object from JSON.
func (w *userObjects) create(ctx context.Context, text string) error {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		return fmt.Errorf("read %s: %w", text, err)
	}
	plural := strings.ToLower(o.GetKind()) + "s"
	if strings.HasSuffix(o.GetKind(), "s") {
		plural = strings.ToLower(o.GetKind()) + "es"
	}
	_, err := w.admin.Resource(resource(o.GetAPIVersion(), plural)).Namespace(o.GetNamespace()).Create(
		ctx, o, metav1.CreateOptions{},
	)
	return err
}

// each calls do for the Gateways from first to last concurrently, and fails the test if one of the calls fails.
func (w *userObjects) each(first, last int, do func(ctx context.Context, gateway int) error) {
	w.Helper()
	next := atomic.Int64{}
	next.Store(int64(first))
	errs := make([]error, workers)
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for g := next.Add(1) - 1; g < int64(last) && errs[i] == nil; g = next.Add(1) - 1 {
				errs[i] = do(w.Context(), int(g))
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			w.Fatal(err)
		}
	}
}
