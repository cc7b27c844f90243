// Package diagnose tests `stunnerctl why` and `stunnerctl doctor` against a real API server and the real operator. Each
// fixture makes one fault, and the first finding names it.
//
//	fixture_test.go       the faults
//	installation_test.go  the operator, Gateways and their dataplanes
//	rights_test.go        users without rights
//	sysdump_test.go       stunnerctl sysdump
//
// There are no nodes: the test writes the statuses and events that a kubelet, kube-proxy, KEDA and a load balancer
// would write, and answers the operator in place of the dataplane.
//
// The rules are in services/stunnerctl/internal/diagnose.
package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// timeout is the timeout of operations that take about a second on an idle machine.
const timeout = 90 * time.Second

const (
	controller = "stunner.l7mp.io/diagnose"
	system     = "stunner-system"
)

var (
	control *cluster.Cluster
	clients kubernetes.Interface
)

func TestMain(m *testing.M) {
	harnesstest.Parallel(6)
	os.Exit(cluster.Main(m, &control))
}

// operator is an operator for all tests of a run.
type operator struct {
	dir string // folder of the programs
	url string // URL of config discovery
}

func (o operator) program(name string) string { return filepath.Join(o.dir, name) }

// startOperator installs the objects that all Gateways share, and starts the operator.
func startOperator(t *testing.T) operator {
	t.Helper()
	o := operator{dir: harnesstest.Build(t, harness.Operator, harness.Stunnerctl)}
	var err error
	if clients, err = kubernetes.NewForConfig(control.Admin.Config); err != nil {
		t.Fatal(err)
	}
	must(t, control.InstallKEDA(t.Context()))
	apply(t, "", harnesstest.Read(t, "e2e/diagnose/testdata/installation.yaml"))
	apply(t, "", harnesstest.Read(t, "kustomize/base/policy.yaml"))
	patch(t, "", "node/node-1", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, "status")
	patch(t, system, "pod/stunner-operator-1", `{"status":{"phase":"Running","podIP":"192.0.2.200","podIPs":[{"ip":"192.0.2.200"}],
		"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	address, health := harnesstest.Address(t), harnesstest.Address(t)
	o.url = "http://" + address
	harnesstest.Start(t, harness.Command{
		Name: "operator", Path: o.program("operator"), Logs: t.TempDir(),
		Args: []string{
			"--provider=kubernetes", "--kubeconfig", control.Admin.Kubeconfig, "--namespace", system, "--controller-name", controller,
			"--discovery-auth=off", "--address=192.0.2.200", "--discovery-address", address, "--health-address", health, "--scaler-address=",
		},
	}, harness.Answers("http://"+health+"/ready", http.StatusOK))
	return o
}

// gateway is a healthy Gateway in a namespace of its own.
type gateway struct {
	operator
	namespace string
	pod       string
	answers   map[string]map[string]any // answers of the dataplane by path
	connected bool
	mu        sync.Mutex // guards answers, which change between the faults of one Gateway
}

// newGateway creates a healthy Gateway. The test acts as its dataplane.
func newGateway(t *testing.T, o operator, name string) *gateway {
	t.Helper()
	g := &gateway{operator: o, namespace: name, connected: true}
	apply(t, "", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	apply(t, name, g.filled(harnesstest.Read(t, "e2e/diagnose/testdata/base.yaml")))
	for _, service := range []string{"front-door", "front-door-tcp"} {
		awaitField(t, name, "service/"+service, ".metadata.name", service)
		patch(t, name, "service/"+service, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`, "status")
	}
	until(t, func(ctx context.Context) error {
		pods, err := clients.CoreV1().Pods(name).List(ctx, metav1.ListOptions{LabelSelector: "app=stunner"})
		if err != nil || len(pods.Items) == 0 {
			return errors.Join(err, errors.New("no pod"))
		}
		g.pod = pods.Items[0].Name
		return clients.CoreV1().Pods(name).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: g.pod, Namespace: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"},
		}, metav1.CreateOptions{})
	})
	patch(t, name, "pod/"+g.pod, `{"status":{"phase":"Running","podIP":"192.0.2.100","podIPs":[{"ip":"192.0.2.100"}],
		"conditions":[{"type":"PodScheduled","status":"True"},{"type":"Ready","status":"True"}],
		"containerStatuses":[{"name":"stunner-daemon","image":"stunnerd","imageID":"","ready":true,"restartCount":0,"state":{"running":{}}}]}}`, "status")
	g.answer(t, "{}")
	awaitField(t, name, "gateway/front-door", `.status.conditions[?(@.type=="Accepted")].status`, "True")
	return g
}

// answer makes the dataplane answer like a healthy one, with merged JSON; null means that it is not connected.
func (g *gateway) answer(t *testing.T, text string) {
	t.Helper()
	read := func(text string) (parts map[string]map[string]any) {
		text = strings.ReplaceAll(g.filled(text), "NOW", time.Now().UTC().Format(time.RFC3339))
		must(t, json.Unmarshal([]byte(text), &parts))
		return parts
	}
	answers, change := read(harnesstest.Read(t, "e2e/diagnose/testdata/answers.json")), read(text)
	g.connected = change != nil
	for path, fields := range change {
		if answers[path] == nil {
			answers[path] = map[string]any{}
		}
		maps.Copy(answers[path], fields)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers = answers
}

// filled replaces the placeholders of a text: NS by the namespace, POD by the name of the pod.
func (g *gateway) filled(text string) string {
	text = regexp.MustCompile(`\bNS\b`).ReplaceAllString(text, g.namespace)
	if g.pod != "" {
		text = regexp.MustCompile(`\bPOD\b`).ReplaceAllString(text, g.pod)
	}
	return text
}

// connect connects the dataplane to the operator until the test ends.
func (g *gateway) connect(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var revision func() string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		body := g.answers[strings.TrimPrefix(r.URL.Path, "/")]
		g.mu.Unlock()
		if body == nil {
			http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
			return
		}
		if r.URL.Path == "/status" {
			copied := map[string]any{"revision": revision(), "now": time.Now().UTC().Format(time.RFC3339Nano), "pod": g.pod}
			for name, value := range body {
				if name == "skew" {
					skew, _ := time.ParseDuration(value.(string))
					copied["now"] = time.Now().Add(skew).UTC().Format(time.RFC3339Nano)
					continue
				}
				copied[name] = value
			}
			body = copied
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body)
	})
	id := g.namespace + "/front-door"
	source, err := discovery.Open(g.url, discovery.Options{ID: id, Pod: g.pod, Kind: inspection.Dataplane, Handler: handler})
	must(t, err)
	revision = func() string {
		_, body, err := harness.Get(context.Background(), g.url+"/api/v1/gateways/"+id+"/config")
		var answer struct{ Revision string }
		if err != nil || json.Unmarshal(body, &answer) != nil {
			return ""
		}
		return answer.Revision
	}
	events := source.Watch(ctx)
	go func() {
		for range events {
		}
	}()
}

// finding is a finding of the output -o json.
type finding struct {
	Severity, Stage, Object, Field, Problem, Remedy string
}

// findings runs stunnerctl with the URL of the operator and returns its findings.
func (o operator) findings(ctx context.Context, kubeconfig string, args ...string) ([]finding, error) {
	return o.found(ctx, append(args, "--operator", o.url, "--kubeconfig", kubeconfig)...)
}

// found runs stunnerctl and returns its findings. stunnerctl sends no packets here, because there are no pods;
// e2e/doctor tests them.
func (o operator) found(ctx context.Context, args ...string) ([]finding, error) {
	if args[0] == "why" {
		args = append(args, "--probe=false")
	}
	args = append(args, "-o", "json", "--operator-namespace", system)
	cmd := exec.CommandContext(ctx, o.program("stunnerctl"), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var report struct{ Findings []finding }
	if parseErr := json.Unmarshal(out, &report); parseErr != nil {
		return nil, fmt.Errorf("stunnerctl %v: %w: %w: %s%s", args, err, parseErr, out, stderr.String())
	}
	code := 0
	if slices.ContainsFunc(report.Findings, func(f finding) bool { return f.Severity != "info" }) {
		code = 1
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		return nil, fmt.Errorf("exit code %d, want %d: %s%s", got, code, out, stderr.String())
	}
	return report.Findings, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func apply(t *testing.T, namespace, text string) {
	t.Helper()
	must(t, control.Apply(t.Context(), namespace, text))
}

func patch(t *testing.T, namespace, object, change string, subresource ...string) {
	t.Helper()
	must(t, control.Patch(t.Context(), namespace, object, types.MergePatchType, change, subresource...))
}

// until waits for a condition. The time between two checks grows, because a check may be a run of stunnerctl.
func until(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := cond(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func awaitField(t *testing.T, namespace, object, path, want string) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		got, err := control.Field(ctx, namespace, object, path)
		if err == nil && got != want {
			err = fmt.Errorf("%s of %s is %q, want %q", path, object, got, want)
		}
		return err
	})
}
