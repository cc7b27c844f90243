// Package kube tests the operator against a real API server from outside: it applies YAML and observes objects, configs
// and the audit log.
//
// # Files
//
//	conformance_*_test.go     statuses
//	manifests_test.go         manifests and their results, testdata/manifests
//	documented_table_test.go  outcomes of manifests of the existing system's documentation, testdata/documented
//	takeover_test.go          objects of the operator of the existing system
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
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// patience is the timeout of operations that take about a second on an idle machine.
const patience = time.Minute

var control *cluster.Cluster

func TestMain(m *testing.M) {
	bedtest.Parallel(6)
	os.Exit(cluster.Main(m, &control))
}

// stage is the quickstart in a namespace and with a GatewayClass of its own, and an operator for that class.
type stage struct {
	*testing.T
	name      string // of the namespace and the class
	dir       string
	agent     cluster.Access
	operator  *bed.Process
	discovery int
	health    int
	scaler    int
	// ends is an API group whose CRDs, or whose permissions of the operator, the test removes.
	ends string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{T: t, name: strings.ToLower(strings.ReplaceAll(t.Name(), "_", "-")), dir: t.TempDir()}
	root, err := bed.Root()
	s.must(err)
	s.must(bed.Build(t.Context(), root, s.dir, bed.Operator))
	s.agent, err = control.User(s.user(), "system:serviceaccounts", "system:serviceaccounts:"+s.name)
	s.must(err)
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + s.name + "}}")
	s.permit(root)
	files, err := filepath.Glob(filepath.Join(root, "docs/examples/quickstart/*.yaml"))
	s.must(err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		s.must(err)
		s.apply(s.own(string(text)))
	}
	s.start()
	return s
}

// user returns the user name of the operator at the API server.
func (s *stage) user() string { return "system:serviceaccount:" + s.name + ":" + s.account() }

// account returns the name of the operator's ServiceAccount, of its roles and of their bindings.
func (s *stage) account() string { return "operator-" + s.name }

// permit grants the operator the shipped RBAC rules, adapted to the test. At the end of the test it checks that no
// request of the operator was forbidden.
func (s *stage) permit(root string) {
	s.Helper()
	begun := time.Now()
	for _, file := range []string{"rbac.yaml", "policy.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "kustomize/base", file))
		s.must(err)
		s.grant(string(text))
	}
	s.may("create", "leases", s.name)
	s.may("list", "gateways.gateway.networking.k8s.io", "")
	s.Cleanup(func() {
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
			if e.User == s.user() && e.Code == http.StatusForbidden && !ended {
				s.Errorf("forbidden: %s %s/%s %s/%s", e.Verb, e.Resource, e.Subresource, e.Namespace, e.Name)
			}
		}
	})
}

// may waits until a role of the operator is effective, in a namespace or with an empty name in all. The authorizer gets
// Roles, ClusterRoles and their bindings through separate watches.
func (s *stage) may(verb, resource, namespace string) {
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
func (s *stage) grant(rights string) {
	s.Helper()
	own := strings.NewReplacer(
		"namespace: stunner-system", "namespace: "+s.name, "name: stunner-operator", "name: "+s.account(),
		"policyName: stunner-operator", "policyName: "+s.account(),
		":stunner-operator", ":"+s.account(),
	)
	s.apply(own.Replace(rights))
}

// own moves the quickstart into the namespace and class of the test. The Namespace already exists.
func (s *stage) own(text string) string {
	return strings.NewReplacer(
		"namespace: meet", "namespace: "+s.name, "name: calls", "name: "+s.name, "name: default", "name: "+s.name,
		"dataplane: default", "dataplane: "+s.name, "gatewayClassName: calls", "gatewayClassName: "+s.name,
		"- 127.0.0.1", "- 192.0.2.50", "controllerName: stunner.l7mp.io/gateway-operator",
		"controllerName: "+s.controller(),
	).Replace(text)
}

func (s *stage) controller() string { return "stunner.l7mp.io/" + s.name }

// start starts the operator and waits until it is ready.
func (s *stage) start(more ...string) {
	s.Helper()
	s.launch(more...)
	s.await(bed.Answers(fmt.Sprintf("http://127.0.0.1:%d/ready", s.health), http.StatusOK))
}

// launch runs the operator until the test ends or stop is called.
func (s *stage) launch(more ...string) {
	s.Helper()
	var err error
	if s.discovery == 0 {
		s.discovery, err = bed.FreePort()
		s.must(err)
		s.health, err = bed.FreePort()
		s.must(err)
		s.scaler, err = bed.FreePort()
		s.must(err)
	}
	args := append([]string{
		"--provider=kubernetes", "--kubeconfig", s.agent.Kubeconfig, "--namespace", s.name, "--controller-name",
		s.controller(),
		"--scaler-address", fmt.Sprintf("127.0.0.1:%d", s.scaler), "--log=all:TRACE", "--discovery-auth=off",
		"--discovery-address", fmt.Sprintf("127.0.0.1:%d", s.discovery), "--health-address",
		fmt.Sprintf("127.0.0.1:%d", s.health),
	}, more...)
	s.operator, err = bed.Start(
		bed.Command{Name: "operator", Path: filepath.Join(s.dir, "operator"), Args: args, Logs: s.dir},
	)
	s.must(err)
	p := s.operator
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("last log lines of the operator:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		_ = p.Kill()
	})
}

// stop stops the operator and checks that it exits in time.
func (s *stage) stop() {
	s.Helper()
	s.must(s.operator.Stop(5 * time.Second))
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// client returns a client of the API server as Admin.
func (s *stage) client() kubernetes.Interface {
	s.Helper()
	c, err := kubernetes.NewForConfig(control.Admin.Config)
	s.must(err)
	return c
}

func (s *stage) kubectl(args ...string) string {
	s.Helper()
	out, err := control.Kubectl(s.Context(), args...)
	s.must(err)
	return out
}

// apply applies YAML. Namespaced objects without a namespace get the namespace of the test.
func (s *stage) apply(text string) {
	s.Helper()
	s.must(control.Apply(s.Context(), s.name, text))
}

// patch patches an object, named as for get, or a subresource of it.
func (s *stage) patch(object string, kind types.PatchType, patch string, subresource ...string) {
	s.Helper()
	s.must(control.Patch(s.Context(), s.name, object, kind, patch, subresource...))
}

// file returns the path of a new file with a text.
func (s *stage) file(text string) string {
	s.Helper()
	f, err := os.CreateTemp(s.dir, "*.yaml")
	s.must(err)
	_, err = f.WriteString(text)
	s.must(errors.Join(err, f.Close()))
	return f.Name()
}

// get returns a field of an object of the namespace, or "" if the field or the object does not exist.
func (s *stage) get(object, jsonpath string) string {
	s.Helper()
	value, err := control.Field(s.Context(), s.name, object, jsonpath)
	s.must(err)
	return value
}

func (s *stage) await(cond func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	s.must(bed.Until(ctx, cond))
}

// sees waits until a field has a value.
func (s *stage) sees(object, jsonpath, want string) {
	s.Helper()
	s.await(func(ctx context.Context) error {
		got, err := control.Field(ctx, s.name, object, jsonpath)
		if err == nil && got != want {
			err = fmt.Errorf("%s of %s is %q, want %q", jsonpath, object, got, want)
		}
		return err
	})
}

func condition(kind string) string { return `.status.conditions[?(@.type=="` + kind + `")].status` }

// expose writes a load balancer address into the status of the Gateway's Services, one per transport.
func (s *stage) expose(address string) {
	s.Helper()
	for _, name := range []string{"front-door", "front-door-tcp"} {
		s.sees("service/"+name, ".metadata.name", name)
		s.patch(
			"service/"+name, types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[{"ip":"`+address+`"}]}}}`, "status",
		)
	}
}

// config returns the config that the Gateway's dataplanes receive, or an empty config.
func (s *stage) config() (c config.Config) {
	s.Helper()
	body, code := s.read(fmt.Sprintf("http://127.0.0.1:%d/api/v1/configs/%s/front-door", s.discovery, s.name))
	if code == http.StatusOK {
		s.must(json.Unmarshal(body, &c))
	}
	return c
}

// token creates a token of an account of the namespace.
func (s *stage) token(account string, flags ...string) string {
	s.Helper()
	return strings.TrimSpace(s.kubectl(append([]string{"create", "token", account, "-n", s.name}, flags...)...))
}

func (s *stage) read(url string) ([]byte, int) { return s.readAs("", url) }

func (s *stage) readAs(token, url string) ([]byte, int) {
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
func (s *stage) leads() {
	s.Helper()
	s.await(func(context.Context) error {
		if s.metric("stunner_operator_leader") != 1 {
			return errors.New("the operator is not the leader")
		}
		return nil
	})
}

// metric returns the sum of the series of an operator metric.
func (s *stage) metric(name string) (sum float64) {
	s.Helper()
	body, _ := s.read(fmt.Sprintf("http://127.0.0.1:%d/metrics", s.health))
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

// writes returns the operator's write requests in the namespace since a time, without leases, and without statuses that
// are corrections after another operator's write: see setsRight.
func (s *stage) writes(since time.Time) (list []cluster.Entry) {
	s.Helper()
	all, err := control.Audit(since)
	s.must(err)
	answers := func(e cluster.Entry) bool {
		return (e.Resource == "gatewayconfigs" || e.Resource == "staticservices") && slices.ContainsFunc(all, func(
			other cluster.Entry,
		) bool {
			return other.Write() && other.User != e.User && other.Resource == e.Resource &&
				other.Namespace == e.Namespace && other.Name == e.Name && other.Subresource == "status"
		})
	}
	for _, e := range all {
		if e.Write() && e.User == s.user() && e.Namespace == s.name && e.Resource != "leases" && !answers(e) {
			list = append(list, e)
		}
	}
	return list
}
