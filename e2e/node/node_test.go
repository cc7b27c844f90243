//go:build node

// Package node_test runs the installed product on a real cluster of one node, with clients outside of it. `make e2e`
// builds what it needs.
//
// # Files
//
//	migration_test.go  the commands of docs/migration.md
//	existing_test.go   the existing system
//
// The build tag is node. The cluster is package e2e/internal/node, which .ci/kube and .ci/dns build.
package node_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/node"
)

var cluster *node.Cluster

func TestMain(m *testing.M) { os.Exit(node.Main(m, &cluster)) }

// timeout limits operations that take seconds on an idle machine.
const timeout = 3 * time.Minute

// TestPod tests the harness: a pod under the restricted Pod Security Standard runs, and clients reach its UDP and TCP
// ports at the address of its Service.
func TestPod(t *testing.T) {
	s := newTestNamespace(t)
	s.apply("testdata/echo.yaml")
	address := s.address("echo")
	s.until("datagrams are echoed", func(context.Context) error { return bounce(netip.AddrPortFrom(address, 7002)) })
	s.until(
		"the signalling port responds",
		harness.Answers(fmt.Sprintf("http://%s:7000/", address), http.StatusMethodNotAllowed),
	)
}

// bounce sends a datagram to an echo peer and waits for the echo.
func bounce(to netip.AddrPort) error {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	buf := make([]byte, 16)
	n, err := conn.Read(buf)
	if err == nil && string(buf[:n]) != "hello" {
		err = fmt.Errorf("received %q", buf[:n])
	}
	return err
}

// restricted is the label of a namespace with the restricted Pod Security Standard.
const restricted = "pod-security.kubernetes.io/enforce=restricted"

// testNamespace is the namespace of a test, with the restricted Pod Security Standard.
type testNamespace struct {
	*testing.T
	namespace string
}

func newTestNamespace(t *testing.T) testNamespace {
	t.Helper()
	s := testNamespace{t, strings.Trim(
		regexp.MustCompile("[^a-z0-9]+").ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-"),
		"-",
	)}
	s.open()
	t.Cleanup(func() {
		if t.Failed() {
			s.explain()
		}
		s.remove()
	})
	return s
}

// remove deletes the namespace with its content.
func (s testNamespace) remove() {
	s.Helper()
	if _, err := cluster.Kubectl(
		context.Background(), "delete", "namespace", s.namespace, "--wait=false", "--ignore-not-found",
	); err != nil {
		s.Error(err)
	}
}

// open creates the namespace.
func (s testNamespace) open() {
	s.Helper()
	s.kubectl("", "create", "namespace", s.namespace)
	s.kubectl("", "label", "namespace", s.namespace, restricted)
}

// kubectl runs kubectl in the namespace with input on stdin.
func (s testNamespace) kubectl(input string, args ...string) string {
	s.Helper()
	out, err := cluster.Apply(s.Context(), input, append(args, "--namespace="+s.namespace)...)
	if err != nil {
		s.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// apply applies a file and waits until its Deployments are available.
func (s testNamespace) apply(file string) {
	s.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		s.Fatal(err)
	}
	s.kubectl(string(text), "apply", "--server-side", "-f", "-")
	if strings.Contains(string(text), "kind: Deployment") {
		s.wait("condition=Available", "deployment", "--all")
	}
}

func (s testNamespace) wait(condition string, what ...string) {
	s.Helper()
	begun := time.Now()
	s.kubectl("", append([]string{"wait", "--for=" + condition, "--timeout=" + timeout.String()}, what...)...)
	s.Logf("after %s: %s of %s", since(begun), condition, strings.Join(what, " "))
}

// until waits for a condition outside this process.
func (s testNamespace) until(what string, cond func(context.Context) error) {
	s.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx, cond); err != nil {
		s.Fatalf("wait until %s: %v", what, err)
	}
	s.Logf("after %s: %s", since(begun), what)
}

func since(begun time.Time) time.Duration { return time.Since(begun).Round(100 * time.Millisecond) }

// address returns the load balancer address of a Service.
func (s testNamespace) address(service string) (a netip.Addr) {
	s.Helper()
	s.until("the Service "+service+" has an address", func(ctx context.Context) error {
		o, err := cluster.Client.CoreV1().Services(s.namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(o.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("Service %s has no address", service)
		}
		a, err = netip.ParseAddr(o.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return a
}

// pods returns the pods with these labels that are not terminating.
func (s testNamespace) pods(labels string) []corev1.Pod {
	s.Helper()
	return slices.DeleteFunc(s.list(labels), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (s testNamespace) all() []corev1.Pod { return s.list("") }

func (s testNamespace) list(labels string) []corev1.Pod {
	s.Helper()
	ctx := context.WithoutCancel(s.Context()) // the context of the test is canceled before a failure is explained
	all, err := cluster.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		s.Fatal(err)
	}
	return all.Items
}

// explain logs the state of the namespace of a failed test.
func (s testNamespace) explain() {
	commands := []string{
		"get all,gateways,udproutes.stunner.l7mp.io -o wide", "describe pods", "get events --sort-by=.lastTimestamp",
	}
	for _, pod := range s.all() {
		commands = append(commands, "logs --all-containers --tail=50 "+pod.Name)
	}
	for _, args := range commands {
		out, err := cluster.Kubectl(context.Background(), append(strings.Fields(args), "--namespace="+s.namespace)...)
		s.Logf("kubectl %s: %v\n%s", args, err, out)
	}
}
