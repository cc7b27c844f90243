//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// runbook is the page whose commands TestMigration runs.
const runbook = "docs/migration.md"

// TestMigration runs the commands of the runbook in their order, forward and back, on an installation of the existing
// system, during calls. A call may lose nothing, and the Services keep their addresses.
//
// The existing system is simulated: its chart has the same names, and its objects have the same fields and field
// managers. Its operator is an idle program, its config discovery is in this process, and its dataplane is stunnerd
// with the arguments and the environment of the existing dataplane.
func TestMigration(t *testing.T) {
	for _, helm := range []string{"helm", "helm3"} {
		t.Run(helm, func(t *testing.T) { migrate(t, helm) })
	}
}

func migrate(t *testing.T, helm string) {
	m := newExisting(t, helm)
	addresses := m.addresses()
	first := m.pod("")
	m.dial(first)
	auth := m.pollAuth()

	m.step("1 before", block{runbook, "helm get all"}, block{runbook, stopExisting},
		block{runbook, "kubectl label --overwrite crd"})
	m.step("roll back after 1", block{runbook, startExisting})
	m.step("1 again", block{runbook, stopExisting})
	m.served.Close() // config discovery ends with the operator

	generation := m.read("deployment/front-door", ".metadata.generation")
	m.step("2 take over", block{runbook, "helm get values"})
	m.waits()
	m.equal("generation of the Deployment", m.read("deployment/front-door", ".metadata.generation"), generation)
	m.equal("pod", m.pod("").Name, first.Name)
	m.equal("annotation of the existing operator", m.read("service/front-door", ".metadata.annotations.left"), "")
	m.equal("annotation of a user", m.read("service/front-door", ".metadata.annotations.by"), "the-user")
	m.equal("addresses", m.addresses(), addresses)
	auth.stop(m)
	m.dial(first)

	m.back("roll back after 2")
	m.step("1 again", block{runbook, stopExisting})
	m.served.Close()
	m.step("2 again", block{runbook, "helm get values"})
	m.waits()
	m.equal("pod", m.pod("").Name, first.Name)
	m.equal("addresses", m.addresses(), addresses)

	m.step("3 serve the existing dataplanes", block{runbook, "kubectl set env"})
	second := m.pod(first.Name)
	m.equal("image", second.Spec.Containers[0].Image, existingImage)
	m.dial(second)
	if said := m.run(block{runbook, "kubectl logs"}); !strings.Contains(said, "media/"+second.Name) {
		t.Errorf("the log does not name pod %s:\n%s", second.Name, said)
	}

	m.step("4 roll", block{runbook, "kubectl annotate gateway front-door"})
	third := m.pod(second.Name)
	if image := third.Spec.Containers[0].Image; image == existingImage {
		t.Errorf("the image of the new pod is %s", image)
	}
	m.dial(third)
	for _, path := range []string{
		".metadata.annotations.left", ".metadata.labels.left", ".spec.template.metadata.labels.left",
		`.spec.template.spec.containers[0].env[?(@.name=="LEFT")].value`,
	} {
		m.equal(path+" of the Deployment", m.read("deployment/front-door", path), "")
	}
	m.equal("image of side-door", m.read("deployment/side-door", imagePath), existingImage)
	m.step("4 roll the class", block{runbook, "kubectl patch gatewayconfig"})
	m.equal("image of side-door", m.read("deployment/side-door", imagePath), third.Spec.Containers[0].Image)
	m.equal("addresses", m.addresses(), addresses)
	m.end(first)

	m.step("5 check", block{runbook, "kubectl get gateways --all-namespaces\n"}, block{runbook, "kubectl logs"})
	m.step("6 close", block{runbook, "helm upgrade stunner oci"})
	m.equal("pod", m.pod(second.Name).Name, third.Name)
	m.refusesOthers()
	m.end(second)

	m.back("roll back after 6")
	fourth := m.pod(third.Name)
	m.equal("image", fourth.Spec.Containers[0].Image, existingImage)
	m.dial(fourth)
	m.equal("addresses", m.addresses(), addresses)
	m.end(third)
	m.end(fourth)
}

// The beginnings of blocks of commands.
const (
	scaleExisting = "kubectl scale deployment stunner-gateway-operator-controller-manager --namespace stunner-system"
	stopExisting  = scaleExisting + " --replicas=0"
	startExisting = scaleExisting + " --replicas=1"
)

// back rolls back, and writes the objects of the Gateways as the existing operator does at its start.
func (m *existing) back(name string) {
	m.Helper()
	m.serve() // the auth service needs config discovery
	m.step(name, block{runbook, "kubectl scale deployment stunner-operator"})
	m.write("replace", "front-door", "side-door")
}

// waits waits until both Gateways wait for permission to replace their pods.
func (m *existing) waits() {
	m.Helper()
	m.until("the Gateways wait for permission", func(context.Context) error {
		said := m.run(block{runbook, "kubectl get gateways --all-namespaces --output"})
		if strings.Count(said, "created by another operator") != 2 {
			return errors.New(said)
		}
		return nil
	})
}

// step runs blocks of the runbook, and checks that all calls continue.
func (m *existing) step(name string, blocks ...block) {
	m.Helper()
	begun := time.Now()
	testNamespace{m.T, home}.follow([]string{m.helm}, blocks...)
	var all []*call.Call
	for _, calls := range m.calls {
		all = append(all, calls...)
	}
	m.goOn(name, all...)
	m.Logf("STEP %s: %s, %d calls continue", name, since(begun), len(all))
}

// run runs a block of the runbook that changes nothing.
func (m *existing) run(b block) string {
	m.Helper()
	return testNamespace{m.T, home}.follow(nil, b)
}

// read returns a field of an object of the namespace.
func (m *existing) read(object, path string) string {
	m.Helper()
	if !strings.Contains(object, "/") {
		path = ".items[*]" + path
	}
	return m.kubectl("", "get", object, "--output=jsonpath={"+path+"}")
}

// equal checks a value.
func (m *existing) equal(what, got, want string) {
	m.Helper()
	if got != want {
		m.Errorf("%s: %q, want %q", what, got, want)
	}
}

// addresses returns the addresses and node ports of the Services of both Gateways.
func (m *existing) addresses() (all string) {
	m.Helper()
	for _, gateway := range []string{"front-door", "side-door"} {
		m.address(gateway)
		for _, path := range []string{
			".spec.clusterIP", ".spec.ports[*].nodePort", ".status.loadBalancer.ingress[*].ip",
		} {
			all += m.read("service/"+gateway, path) + " "
		}
	}
	return all
}

// pod returns the pod of front-door that serves new calls, other than a given one.
func (m *existing) pod(other string) (pod corev1.Pod) {
	m.Helper()
	m.until("a pod serves new calls", func(context.Context) (err error) {
		pod, err = m.serving(other)
		return err
	})
	return pod
}

// dial makes a call by each transport that a pod relays.
func (m *existing) dial(pod corev1.Pod) {
	m.Helper()
	for _, network := range []call.Network{call.UDP, call.TCP} {
		d := listenerAddress{network, netip.AddrPortFrom(m.frontDoor, 3478)}
		m.calls[pod.Name] = append(m.calls[pod.Name], m.dialTo(pod, d, m.peer))
	}
}

// end ends the calls of a pod, which must have lost nothing. A terminating pod then exits.
func (m *existing) end(pod corev1.Pod) {
	m.Helper()
	m.hangUp(m.calls[pod.Name]...)
	delete(m.calls, pod.Name)
	if slices.ContainsFunc(m.all(), func(p corev1.Pod) bool {
		return p.Name == pod.Name && p.DeletionTimestamp != nil
	}) {
		m.awaitExit(pod.Name)
	}
}

// refusesOthers: a pod in the form of the existing system gets no config after the migration.
func (m *existing) refusesOthers() {
	m.Helper()
	url := "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478"
	_, rest, _ := strings.Cut(existingObjects, "    spec: # of pods\n")
	spec, _, _ := strings.Cut(rest, "---\n")
	m.kubectl(strings.NewReplacer("GATEWAY", "front-door", "DISCOVERY_URL", url, "IMAGE", existingImage).Replace(`
apiVersion: v1
kind: Pod
metadata:
  name: late
  labels: {app: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media}
spec:
`+spec), "create", "-f", "-")
	m.wait("jsonpath={.status.phase}=Running", "pod/late")
	time.Sleep(10 * time.Second) // a pod with access is ready after one second
	if ready := m.read("pod/late", `.status.conditions[?(@.type=="Ready")].status`); ready != "False" {
		m.Errorf("a pod without a token is ready: %q", ready)
	}
	m.kubectl("", "delete", "pod/late", "--grace-period=0", "--force")
	service := testNamespace{m.T, home}.kubectl(
		"", "get", "service", "stunner-config-discovery", "--output=jsonpath={.spec.clusterIP}",
	)
	if code, body := m.get("http://"+service+":13478/api/v1/configs", ""); code == http.StatusOK {
		m.Errorf("config discovery answers plain HTTP: %s", body)
	}
}

// poller requests credentials from the auth service continuously.
type poller struct {
	answers, failures atomic.Int64
	last              atomic.Value
	end               context.CancelFunc
	done              chan struct{}
}

func (m *existing) pollAuth() *poller {
	m.Helper()
	url := fmt.Sprintf("http://%s:8088/ice?service=turn&namespace=media&gateway=front-door", m.testNamespace.publish())
	m.until("the auth service responds", harness.Answers(url, http.StatusOK))
	ctx, end := context.WithCancel(m.Context())
	p := &poller{end: end, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			code, body, err := harness.Get(ctx, url)
			switch {
			case ctx.Err() != nil:
			case err != nil || code != http.StatusOK:
				p.failures.Add(1)
				p.last.Store(fmt.Sprintf("status %d, error %v: %s", code, err, body))
			default:
				p.answers.Add(1)
			}
		}
	}()
	return p
}

// stop ends the requests, which must all have been answered.
func (p *poller) stop(m *existing) {
	m.Helper()
	p.end()
	<-p.done
	m.Logf("auth service: %d requests answered, %d failed", p.answers.Load(), p.failures.Load())
	if p.failures.Load() > 0 {
		m.Errorf("requests to the auth service failed, the last with %v", p.last.Load())
	}
}
