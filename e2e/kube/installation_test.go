// Package kube tests the operator against a real API server from outside: it applies YAML and observes objects, configs
// and the audit log.
//
// # Files
//
//	installation_test.go    the quickstart with an operator of its own, or with the shared one
//	tenant_test.go          a namespace of the shared operator, and its statuses and configs
//	proxy_test.go           faults between an operator and the API server
//	manifests_test.go       manifests and their results, testdata/manifests
//	places_test.go          the URLs that clients get at each place, testdata/places
//	cases_test.go           manifests in the forms of users, testdata/field
//	documented_*_test.go    outcomes of manifests of the existing system's documentation, testdata/documented
//	rendered_test.go        comparison with stunnerctl render
//	takeover_test.go        objects of the operator of the existing system
//
// The API server is package e2e/internal/cluster, which .ci/kube builds; e2e/internal/objects reads YAML.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// timeout is the timeout of operations that take about a second on an idle machine.
const timeout = time.Minute

var control *cluster.Cluster

func TestMain(m *testing.M) {
	harnesstest.Parallel(6)
	os.Exit(cluster.Main(withShared{m}, &control))
}

// withShared runs the tests of this package. The shared operator ends with them.
type withShared struct{ *testing.M }

func (t withShared) Run() int {
	code := t.M.Run()
	if shared.process != nil {
		_ = shared.process.Kill()
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// installation is the quickstart in a namespace and with a GatewayClass of its own, and an operator for that class.
type installation struct {
	*testing.T
	name      string // of the namespace and the class
	owner     string // of the operator: its namespace, and a part of the names of its account and controller
	dir       string
	access    cluster.Access
	process   *harness.Process
	discovery int
	health    int
	scaler    int
	// ends is an API group. The test removes its CRDs, or the permissions of the operator for them.
	ends string
}

// shared is the installation of the shared operator, for tests that only need a running operator.
var (
	shared  installation
	sharing sync.Once
)

// newInstallation returns an installation with its own operator, which watches only its namespace. Otherwise the
// operators of parallel tests would process the objects of all of them.
func newInstallation(t *testing.T, args ...string) *installation {
	t.Helper()
	s := prepare(t, t.TempDir(), nameOf(t))
	s.start(args...)
	s.Cleanup(s.nothingForbidden(time.Now()))
	return s
}

// newShared returns the quickstart in a namespace and with a class of its own, with the shared operator.
func newShared(t *testing.T) *installation {
	t.Helper()
	s := sharedOperator(t)
	s.name = nameOf(t)
	s.Cleanup(s.nothingForbidden(time.Now()))
	return s.withQuickstart()
}

// sharedOperator returns the installation of the shared operator, which it starts the first time.
func sharedOperator(t *testing.T) *installation {
	t.Helper()
	sharing.Do(func() {
		dir, err := os.MkdirTemp("", "stunner-shared-")
		if err != nil {
			t.Fatal(err)
		}
		s := prepare(t, dir, "shared")
		s.allow("services", "externalIPs", "['192.0.2.0/24']")
		s.allow("workloads", "hostNetwork", "true")
		s.allow("workloads", "offload", "true")
		s.allow("objects", "workloadNames", "['relay', 'stunner']")
		s.run()
		s.awaitReady()
		shared = *s
	})
	if shared.process == nil {
		t.Fatal("the shared operator has not started")
	}
	s := shared
	s.T, s.dir = t, t.TempDir()
	return &s
}

// nameOf returns the name of the namespace of a test.
func nameOf(t *testing.T) string {
	return strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
}

// prepare returns an installation with the permissions of its operator, which is not started yet.
func prepare(t *testing.T, dir, name string) *installation {
	t.Helper()
	s := &installation{T: t, name: name, owner: name, dir: dir}
	root := harnesstest.Root(t)
	s.must(harness.Build(t.Context(), root, dir, harness.Operator))
	for _, port := range []*int{&s.discovery, &s.health, &s.scaler} {
		*port = harnesstest.Port(t)
	}
	var err error
	s.access, err = control.User(s.user(), "system:serviceaccounts", "system:serviceaccounts:"+name)
	s.must(err)
	s.withQuickstart()
	for _, file := range []string{"rbac.yaml", "policy.yaml"} {
		s.grant(harnesstest.Read(t, "kustomize/base/"+file))
	}
	s.may("create", "leases", name)
	s.may("list", "gateways.gateway.networking.k8s.io", "")
	return s
}

// withQuickstart applies the quickstart.
func (s *installation) withQuickstart() *installation {
	s.Helper()
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + s.name + "}}")
	files, err := filepath.Glob(filepath.Join(harnesstest.Root(s.T), "docs/examples/quickstart/*.yaml"))
	s.must(err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		s.must(err)
		s.apply(s.own(string(text)))
	}
	return s
}

// user returns the user name of the operator at the API server.
func (s *installation) user() string { return "system:serviceaccount:" + s.owner + ":" + s.account() }

// account returns the name of the operator's ServiceAccount, of its roles and of their bindings.
func (s *installation) account() string { return "operator-" + s.owner }

// nothingForbidden returns a function that checks that no request of the operator was forbidden since a time. For the
// shared operator, it checks the requests in the namespace of the test.
func (s *installation) nothingForbidden(begun time.Time) func() {
	return func() {
		all, err := control.Audit(begun)
		s.must(err)
		namespaces, err := s.client().CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
		s.must(err)
		active := map[string]bool{}
		for _, n := range namespaces.Items {
			active[n.Name] = n.Status.Phase == corev1.NamespaceActive
		}
		for _, e := range all {
			// In a namespace that is being deleted, and for a CRD that is being deleted, every create request is
			// forbidden.
			ended := e.Namespace != "" && !active[e.Namespace] || s.ends != "" && e.Group == s.ends
			if ended || s.owner != s.name && e.Namespace != s.name {
				continue
			}
			if e.User == s.user() && e.Code == http.StatusForbidden {
				s.Errorf("forbidden: %s %s/%s %s/%s", e.Verb, e.Resource, e.Subresource, e.Namespace, e.Name)
			}
		}
	}
}

// may waits until a role of the operator is effective, in a namespace, or in all if the name is empty. The authorizer
// gets Roles, ClusterRoles and their bindings through separate watches.
func (s *installation) may(verb, resource, namespace string) {
	s.Helper()
	s.await(func(ctx context.Context) error {
		allowed, err := control.May(ctx, s.user(), verb, resource, namespace)
		if err == nil && !allowed {
			err = fmt.Errorf("the operator may not %s %s in namespace %q", verb, resource, namespace)
		}
		return err
	})
}

// grant applies the RBAC rules of an installation with the account of the test.
func (s *installation) grant(rights string) {
	s.Helper()
	own := strings.NewReplacer(
		"namespace: stunner-system", "namespace: "+s.owner, "name: stunner-operator", "name: "+s.account(),
		"policyName: stunner-operator", "policyName: "+s.account(),
		":stunner-operator", ":"+s.account(),
	)
	s.apply(own.Replace(rights))
}

// own moves the quickstart into the namespace and class of the test. The Namespace already exists.
func (s *installation) own(text string) string {
	return strings.NewReplacer(
		"namespace: meet", "namespace: "+s.name, "name: calls", "name: "+s.name, "name: default", "name: "+s.name,
		"dataplane: default", "dataplane: "+s.name, "gatewayClassName: calls", "gatewayClassName: "+s.name,
		"- 127.0.0.1", "- 192.0.2.50", "controllerName: stunner.l7mp.io/gateway-operator",
		"controllerName: "+s.controller(),
	).Replace(text)
}

func (s *installation) controller() string { return "stunner.l7mp.io/" + s.owner }

// start starts the operator, watching its own namespace, and waits until it is ready.
func (s *installation) start(more ...string) {
	s.Helper()
	s.startWatching(s.name, more...)
}

// startWatching starts the operator, watching a list of namespaces, or all namespaces if the list is empty, and waits
// until it is ready.
func (s *installation) startWatching(namespaces string, more ...string) {
	s.Helper()
	s.launch(append([]string{"--watch-namespaces=" + namespaces}, more...)...)
	s.awaitReady()
}

func (s *installation) awaitReady() {
	s.Helper()
	s.await(harness.Answers(fmt.Sprintf("http://127.0.0.1:%d/ready", s.health), http.StatusOK))
}

// launch runs the operator until the test ends or stop is called.
func (s *installation) launch(more ...string) {
	s.Helper()
	s.run(more...)
	p := s.process
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("last log lines of the operator:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		_ = p.Kill()
	})
}

func (s *installation) run(more ...string) {
	s.Helper()
	loopback := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	args := append([]string{
		"--provider=kubernetes", "--kubeconfig", s.access.Kubeconfig, "--namespace", s.owner, "--controller-name",
		s.controller(), "--log=all:TRACE", "--discovery-auth=off", "--scaler-address", loopback(s.scaler),
		"--discovery-address", loopback(s.discovery), "--health-address", loopback(s.health),
	}, more...)
	var err error
	s.process, err = harness.Start(
		harness.Command{Name: "operator", Path: filepath.Join(s.dir, "operator"), Args: args, Logs: s.dir},
	)
	s.must(err)
}

// stop stops the operator as Kubernetes stops a pod. TestOperatorWaitsForCRDs tests how long this may take.
func (s *installation) stop() {
	s.Helper()
	s.must(s.process.Signal(syscall.SIGTERM))
	select {
	case <-s.process.Done():
	case <-time.After(timeout):
		s.Fatal("the operator does not stop")
	}
}

func (s *installation) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// client returns a client of the API server as Admin.
func (s *installation) client() kubernetes.Interface {
	s.Helper()
	c, err := kubernetes.NewForConfig(control.Admin.Config)
	s.must(err)
	return c
}

func (s *installation) kubectl(args ...string) string {
	s.Helper()
	out, err := control.Kubectl(s.Context(), args...)
	s.must(err)
	return out
}

// apply applies YAML. Namespaced objects without a namespace get the namespace of the test.
func (s *installation) apply(text string) {
	s.Helper()
	s.must(control.Apply(s.Context(), s.name, text))
}

// patch patches an object, named as for get, or a subresource of it.
func (s *installation) patch(object string, kind types.PatchType, patch string, subresource ...string) {
	s.Helper()
	s.must(control.Patch(s.Context(), s.name, object, kind, patch, subresource...))
}

// file returns the path of a new file with a text.
func (s *installation) file(text string) string {
	s.Helper()
	f, err := os.CreateTemp(s.dir, "*.yaml")
	s.must(err)
	_, err = f.WriteString(text)
	s.must(errors.Join(err, f.Close()))
	return f.Name()
}

// get returns a field of an object of the namespace, or "" if the field or the object does not exist.
func (s *installation) get(object, jsonpath string) string {
	s.Helper()
	value, err := control.Field(s.Context(), s.name, object, jsonpath)
	s.must(err)
	return value
}

func (s *installation) await(cond func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), timeout)
	defer cancel()
	s.must(harness.Until(ctx, cond))
}

// sees waits until a field has a value.
func (s *installation) sees(object, jsonpath, want string) {
	s.Helper()
	s.await(func(ctx context.Context) error {
		got, err := control.Field(ctx, s.name, object, jsonpath)
		if err == nil && got != want {
			err = fmt.Errorf("%s of %s is %q, want %q", jsonpath, object, got, want)
		}
		return err
	})
}

// says waits until the message of a condition contains a text.
func (s *installation) says(object, kind, text string) {
	s.Helper()
	s.await(func(ctx context.Context) error {
		got, err := control.Field(ctx, s.name, object, `.status.conditions[?(@.type=="`+kind+`")].message`)
		if err == nil && !strings.Contains(got, text) {
			err = fmt.Errorf("condition %s of %s says %q, want it to contain %q", kind, object, got, text)
		}
		return err
	})
}

func condition(kind string) string { return `.status.conditions[?(@.type=="` + kind + `")].status` }

// expose writes a load balancer address into the status of the Gateway's Services, one per transport.
func (s *installation) expose(address string) {
	s.Helper()
	for _, name := range []string{"front-door", "front-door-tcp"} {
		s.sees("service/"+name, ".metadata.name", name)
		s.patch(
			"service/"+name, types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[{"ip":"`+address+`"}]}}}`, "status",
		)
	}
}

// config returns the config that the Gateway's dataplanes receive, or an empty config.
func (s *installation) config() (c config.Config) {
	s.Helper()
	body, code := s.page(fmt.Sprintf("http://127.0.0.1:%d/api/v1/configs/%s/front-door", s.discovery, s.name))
	if code == http.StatusOK {
		s.must(json.Unmarshal(body, &c))
	}
	return c
}

// token creates a token of an account of the namespace.
func (s *installation) token(account string, flags ...string) string {
	s.Helper()
	return strings.TrimSpace(s.kubectl(append([]string{"create", "token", account, "-n", s.name}, flags...)...))
}

func (s *installation) page(url string) ([]byte, int) { return s.readAs("", url) }

func (s *installation) readAs(token, url string) ([]byte, int) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, nil)
	s.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	s.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	s.must(err)
	return body, resp.StatusCode
}

// leads waits until the operator is the leader.
func (s *installation) leads() {
	s.Helper()
	s.await(func(context.Context) error {
		if s.metric("stunner_operator_leader") != 1 {
			return errors.New("the operator is not the leader")
		}
		return nil
	})
}

// metric returns the sum of the series of an operator metric.
func (s *installation) metric(name string) (sum float64) {
	s.Helper()
	body, _ := s.page(fmt.Sprintf("http://127.0.0.1:%d/metrics", s.health))
	for line := range strings.Lines(string(body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); base == name {
			var n float64
			_, err := fmt.Sscan(value, &n)
			s.must(err)
			sum += n
		}
	}
	return sum
}

// writes returns the operator's write requests in the namespace since a time, without leases.
func (s *installation) writes(since time.Time) (list []cluster.Entry) {
	s.Helper()
	all, err := control.Audit(since)
	s.must(err)
	for _, e := range all {
		if e.Write() && e.User == s.user() && e.Namespace == s.name && e.Resource != "leases" {
			list = append(list, e)
		}
	}
	return list
}

// set changes fields of an object by a JSON merge patch. The object is named as for get.
func (s *installation) set(object, patch string) {
	s.Helper()
	s.patch(object, types.MergePatchType, patch)
}

// setStatus changes fields of the status of an object.
func (s *installation) setStatus(object, status string) {
	s.Helper()
	s.patch(object, types.MergePatchType, `{"status":`+status+`}`, "status")
}

// label sets a label of an object, or removes it if the value is empty. Labels of a Gateway are copied to its objects.
func (s *installation) label(object, key, value string) {
	s.Helper()
	s.set(object, metadata("labels", key, value))
}

// annotate sets an annotation of an object, or removes it if the value is empty.
func (s *installation) annotate(object, key, value string) {
	s.Helper()
	s.set(object, metadata("annotations", key, value))
}

// metadata returns a patch of one label or annotation.
func metadata(field, key, value string) string {
	text := fmt.Sprintf("%q", value)
	if value == "" {
		text = "null"
	}
	return fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, field, key, text)
}

// processed changes a label of the Gateway, and waits until its Deployment has the label. The operator has then
// processed all earlier changes of the Gateway.
func (s *installation) processed() {
	s.Helper()
	mark := fmt.Sprint("n", time.Now().UnixNano())
	s.label("gateway/front-door", "mark", mark)
	s.sees("deployment/front-door", ".metadata.labels.mark", mark)
}

// remove deletes objects, named as for get.
func (s *installation) remove(objects ...string) {
	s.Helper()
	for _, object := range objects {
		s.must(control.Delete(s.Context(), s.name, object))
	}
}

// accounts creates ServiceAccounts.
func (s *installation) accounts(names ...string) {
	s.Helper()
	for _, name := range names {
		s.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: " + name + "}}")
	}
}

// bind binds a ClusterRole to a user, in a namespace.
func (s *installation) bind(role, user, namespace string) {
	s.Helper()
	name := strings.ReplaceAll(user, ":", "-") + "-" + role
	s.apply(fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: %q, namespace: %q},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %q},
  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %q}]}`, name, namespace, role, user))
}

// withTLS creates a certificate in Secret door, and adds a TLS listener with it to the Gateway.
func (s *installation) withTLS() (certify func()) {
	s.Helper()
	chain, private, err := harness.Certificate()
	s.must(err)
	certify = func() {
		s.Helper()
		s.apply(fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: door}, type: kubernetes.io/tls,\n"+
			" stringData: {tls.crt: %q, tls.key: %q}}", chain, private))
	}
	certify()
	s.patch("gateway/front-door", types.JSONPatchType, `[{"op":"add","path":"/spec/listeners/-","value":
		{"name":"tls","port":5349,"protocol":"TURN-TLS","tls":{"certificateRefs":[{"name":"door"}]}}}]`)
	return certify
}
