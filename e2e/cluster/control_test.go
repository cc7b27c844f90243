package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

const (
	gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door}
spec:
  gatewayClassName: calls
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`
	route = `
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: echo, port: 7001, endPort: 7009}]}]
`
	settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
`
)

func TestRelease(t *testing.T) {
	said, err := kube.Kubectl(t.Context(), "version")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Client Version: v1.35.4", "Server Version: v1.35.4"} {
		if !strings.Contains(said, want) {
			t.Errorf("kubectl says %q, want %q in it", said, want)
		}
	}
}

// TestKinds checks a default of each CRD in an object that the API server has stored.
func TestKinds(t *testing.T) {
	s := newStage(t)
	listener := at(s.create("gateways", gateway), "spec", "listeners").([]any)[0].(map[string]any)
	if got := fmt.Sprint(listener["allowedRoutes"]); got != "map[namespaces:map[from:Same]]" {
		t.Errorf("the listener of a Gateway allows routes of %s", got)
	}
	rule := at(s.create("udproutes", route), "spec", "rules").([]any)[0].(map[string]any)
	if got := fmt.Sprint(rule["backendRefs"]); !strings.Contains(got, "kind:Service") {
		t.Errorf("the backend of a UDPRoute is %s", got)
	}
}

// TestRules checks that the API server validates objects by the rules of their CRDs.
func TestRules(t *testing.T) {
	s := newStage(t)
	for _, c := range []struct{ name, plural, manifest, want string }{
		{"a range without start", "udproutes", strings.Replace(route, "port: 7001, ", "", 1), "endPort needs port"},
		{"an invalid protocol", "gateways", strings.Replace(
			gateway, "TURN-UDP", "not/a/protocol/", 1,
		), "spec.listeners[0].protocol"},
		{"two listeners with one name", "gateways", strings.Replace(
			gateway, "}]", "}, {name: udp, port: 3479, protocol: TURN-TCP}]", 1,
		), "name must be unique"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := object(t, c.manifest)
			_, err := s.in(o.GetAPIVersion(), c.plural).Create(t.Context(), o, metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want Invalid with %q", err, c.want)
			}
		})
	}
}

// TestGarbage checks that an object is deleted with its owner, an object of a CRD.
func TestGarbage(t *testing.T) {
	s := newStage(t)
	owner := s.create("gateways", gateway)
	owned := object(t, settings)
	owned.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
	}})
	maps := s.in("v1", "configmaps")
	if _, err := maps.Create(t.Context(), owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.in(owner.GetAPIVersion(), "gateways").Delete(
		t.Context(), owner.GetName(), metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	s.await(func(ctx context.Context) error {
		_, err := maps.Get(ctx, owned.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the ConfigMap outlives its owner: %w", err)
	})
}

// TestToken requests a ServiceAccount token and reviews it, as one service does with the token of another.
func TestToken(t *testing.T) {
	s := newStage(t)
	s.create("serviceaccounts", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: dataplane}}")
	given, err := s.in("v1", "serviceaccounts").Create(t.Context(), object(t, `
apiVersion: authentication.k8s.io/v1
kind: TokenRequest
metadata: {name: dataplane}
spec: {audiences: [config-discovery]}
`), metav1.CreateOptions{}, "token")
	if err != nil {
		t.Fatal(err)
	}
	token := at(given, "status", "token").(string)

	for audience, want := range map[string]bool{"config-discovery": true, "somebody-else": false} {
		review := object(t, `{apiVersion: authentication.k8s.io/v1, kind: TokenReview}`)
		review.Object["spec"] = map[string]any{"token": token, "audiences": []any{audience}}
		judged, err := s.admin.Resource(resource("authentication.k8s.io/v1", "tokenreviews")).Create(
			t.Context(), review, metav1.CreateOptions{},
		)
		if err != nil {
			t.Fatal(err)
		}
		if got := at(judged, "status", "authenticated") == true; got != want {
			t.Errorf("audience %s: authenticated is %t, want %t: %v", audience, got, want, at(judged, "status"))
		}
		if got, name := at(
			judged, "status", "user", "username",
		), "system:serviceaccount:"+s.namespace+":dataplane"; want && got != name {
			t.Errorf("audience %s: the user is %v, want %s", audience, got, name)
		}
	}
}

// TestControllers follows a Deployment to the EndpointSlice of its pods. The test acts as scheduler and kubelet.
func TestControllers(t *testing.T) {
	s := newStage(t)
	node, err := s.admin.Resource(resource("v1", "nodes")).Create(t.Context(), object(t, `
apiVersion: v1
kind: Node
metadata: {generateName: made-up-}
`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create("services", `
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  ports: [{port: 7001, protocol: UDP}]
`)
	s.create("deployments", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      containers: [{name: echo, image: registry.invalid/echo}]
      nodeName: `+node.GetName())
	pods := s.in("v1", "pods")
	s.await(func(ctx context.Context) error {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 2 {
			return fmt.Errorf("the Deployment has %d pods, want 2", len(list.Items))
		}
		for i, pod := range list.Items {
			status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": "10.1.1.%[1]d", "podIPs": [{"ip": "10.1.1.%[1]d"}],
				"conditions": [{"type": "Ready", "status": "True"}]}}`, i+1)
			if _, err := pods.Patch(
				ctx, pod.GetName(), types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status",
			); err != nil {
				return err
			}
		}
		return nil
	})
	s.await(func(ctx context.Context) error {
		slices, err := s.in("discovery.k8s.io/v1", "endpointslices").List(
			ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=echo"},
		)
		if err != nil {
			return err
		}
		var ready []any
		for _, slice := range slices.Items {
			endpoints, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
			for _, e := range endpoints {
				if got, _, _ := unstructured.NestedBool(e.(map[string]any), "conditions", "ready"); got {
					ready = append(ready, e.(map[string]any)["addresses"])
				}
			}
		}
		if len(ready) != 2 {
			return fmt.Errorf("ready endpoints %v, want 2", ready)
		}
		return nil
	})
}

// TestRBAC grants a user one right and no other.
func TestRBAC(t *testing.T) {
	s := newStage(t)
	access, err := kube.User("ada", "readers")
	if err != nil {
		t.Fatal(err)
	}
	ada := client(t, access, "ada").Resource(resource("v1", "configmaps")).Namespace(s.namespace)
	if _, err := ada.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("response to a user without rights: %v", err)
	}
	s.create("roles", `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: read}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [list]}]
`)
	s.create("rolebindings", `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: read}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: read}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: readers}]
`)
	s.await(func(ctx context.Context) error { // the API server gets its own rules through a watch
		_, err := ada.List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := ada.Create(t.Context(), object(t, settings), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("response to a create request of a user who may only list: %v", err)
	}
}

// TestAudit: the audit log has each request as soon as it is answered.
func TestAudit(t *testing.T) {
	s := newStage(t)
	since := time.Now()
	counted := client(t, kube.Admin, "counted").Resource(resource("v1", "configmaps")).Namespace(s.namespace)
	var want []cluster.Entry
	did := func(verb string, code int, err error) {
		t.Helper()
		if (err == nil) != (code < 400) {
			t.Fatalf("%s: %v, want code %d", verb, err, code)
		}
		path := "/api/v1/namespaces/" + s.namespace + "/configmaps"
		if verb != "create" {
			path += "/settings"
		}
		want = append(want, cluster.Entry{
			Verb: verb, User: "admin", Agent: "counted", Resource: "configmaps", Namespace: s.namespace,
			Name: "settings", Code: code, Path: path,
		})
	}
	_, err := counted.Create(t.Context(), object(t, settings), metav1.CreateOptions{})
	did("create", 201, err)
	_, err = counted.Create(t.Context(), object(t, settings), metav1.CreateOptions{})
	did("create", 409, err)
	_, err = counted.Get(t.Context(), "settings", metav1.GetOptions{})
	did("get", 200, err)
	_, err = counted.Patch(
		t.Context(), "settings", types.MergePatchType, []byte(`{"data": {"a": "b"}}`), metav1.PatchOptions{},
	)
	did("patch", 200, err)
	did("delete", 200, counted.Delete(t.Context(), "settings", metav1.DeleteOptions{}))

	got, err := kube.Audit(since)
	if err != nil {
		t.Fatal(err)
	}
	got = slices.DeleteFunc(got, func(e cluster.Entry) bool { return e.Agent != "counted" })
	writes := 0
	for i := range got {
		if got[i].Write() {
			writes++
		}
		got[i].Time = time.Time{}
	}
	if !slices.Equal(got, want) {
		t.Errorf("entries\n%+v\nwant\n%+v", got, want)
	}
	if writes != 4 {
		t.Errorf("%d writes, want 4", writes)
	}
	if later, err := kube.Audit(time.Now()); err != nil || slices.ContainsFunc(
		later, func(e cluster.Entry) bool { return e.Agent == "counted" },
	) {
		t.Errorf("entries from now on: %v, %v", later, err)
	}
}

// TestAuditOfWatch: a watch is logged once, at its start.
func TestAuditOfWatch(t *testing.T) {
	s := newStage(t)
	since, seconds := time.Now(), int64(1)
	watched := client(t, kube.Admin, "watcher").Resource(resource("v1", "configmaps")).Namespace(s.namespace)
	watch, err := watched.Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: &seconds})
	if err != nil {
		t.Fatal(err)
	}
	once := func(when string) {
		entries, err := kube.Audit(since)
		if err != nil {
			t.Fatal(err)
		}
		entries = slices.DeleteFunc(entries, func(e cluster.Entry) bool { return e.Agent != "watcher" })
		if len(entries) != 1 || entries[0].Verb != "watch" || entries[0].Code != 200 {
			t.Errorf("%s: entries %+v, want one watch", when, entries)
		}
	}
	once("during the watch")
	for range watch.ResultChan() { // ends with the response
	}
	once("after the watch")
}

// TestPause: while the API server is paused, requests are not answered. They are answered after Resume.
func TestPause(t *testing.T) {
	s := newStage(t)
	maps := s.in("v1", "configmaps")
	if err := kube.Pause(); err != nil {
		t.Fatal(err)
	}
	hasty, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := maps.List(hasty, metav1.ListOptions{})
	patient := make(chan error)
	go func() {
		_, err := maps.List(t.Context(), metav1.ListOptions{})
		patient <- err
	}()
	if err := kube.Resume(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("request with a short timeout: %v", err)
	}
	if err := <-patient; err != nil {
		t.Errorf("request with a long timeout: %v", err)
	}
}

// TestRestart: objects survive a restart of the API server, and connections are refused in between.
func TestRestart(t *testing.T) {
	s := newStage(t)
	before := s.create("configmaps", settings)
	maps := s.in("v1", "configmaps")
	watch, err := maps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := kube.Down(); err != nil {
		t.Fatal(err)
	}
	for range watch.ResultChan() { // ends when the API server exits
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the stopped API server responds")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := kube.Up(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := maps.Get(t.Context(), before.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.GetUID() != before.GetUID() || after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the object has changed over the restart: %v, was %v", after, before)
	}
}
