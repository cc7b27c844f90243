//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// dataplanes selects the pods of the Gateway front-door.
const dataplanes = "stunner.l7mp.io/related-gateway-name=front-door"

// TestProduct installs the product on an empty cluster in each documented way, makes calls, and uninstalls it during
// calls. Afterwards only CRDs are left.
func TestProduct(t *testing.T) {
	for _, w := range installMethods {
		t.Run(w.name, func(t *testing.T) {
			s := newTestNamespace(t)
			if w.literal {
				s.namespace = home
			}
			before := inventory(t)
			said := s.install(w)
			m := s.newCaller()
			t.Run("call", m.call)
			if w.literal {
				return
			}
			if w.thorough {
				t.Run("notes", func(t *testing.T) { m.notes(t, said) })
				t.Run("first call", m.first)
				t.Run("rolling update", m.roll)
				t.Run("eviction", m.evict)
			}
			t.Run("uninstall", func(t *testing.T) { m.uninstall(t, w, before) })
		})
	}
}

// notes: the commands in the chart's notes create a Gateway.
func (m caller) notes(t *testing.T, said string) {
	m.T = t
	_, rest, found := strings.Cut(said, "\nNext, create a Gateway:\n")
	var commands strings.Builder
	for line := range strings.Lines(rest) {
		command, indented := strings.CutPrefix(line, "  ")
		if !indented && strings.TrimSpace(line) != "" {
			break
		}
		commands.WriteString(command)
	}
	if !found || commands.Len() == 0 {
		t.Fatalf("the notes contain no commands:\n%s", said)
	}
	m.shell(nil, commands.String())
	testNamespace{t, home}.kubectl("", "delete", "gateway/front-door")
}

// first measures the time from creating a Gateway to the first relayed datagram.
func (m caller) first(t *testing.T) {
	s := newTestNamespace(t)
	s.kubectl("", "apply", "--kustomize", harnesstest.Root(t)+"/"+example)
	s.kubectl("", "delete", "gateway/front-door")
	s.wait("condition=Available", "deployment/echo")
	s.until("the dataplane pods are deleted", func(context.Context) error {
		if pods := s.pods(dataplanes); len(pods) > 0 {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		return nil
	})
	begun := time.Now()
	step := func(what string) { t.Logf("%7s  %s", since(begun), what) }
	s.kubectl("", "apply", "--filename", harnesstest.Root(t)+"/"+example+"/gateway.yaml")
	step("Gateway applied")
	s.until("the pod runs", func(context.Context) error {
		if pods := s.pods(dataplanes); len(pods) == 0 || len(pods[0].Status.ContainerStatuses) == 0 ||
			pods[0].Status.ContainerStatuses[0].State.Running == nil {
			return errors.New("no pod runs")
		}
		return nil
	})
	step("the pod runs")
	s.wait("condition=Ready", "pod", "--selector="+dataplanes)
	step("pod ready")
	s.wait("condition=Programmed", "gateway/front-door")
	step("Gateway programmed")
	here := caller{testNamespace: s, auth: m.auth, peer: s.echo()}
	c := here.dial(t, call.UDP)
	step("first datagram relayed over UDP: time from kubectl apply to the first relayed byte")
	here.end(t, call.UDP, c)
}

// L-5, R-08: while the dataplane is updated, calls continue on the old pod, new calls use the new pod, and the old pod
// exits after its last call.
func (m caller) roll(t *testing.T) {
	m.T = t
	old := m.pods(dataplanes)[0]
	image := old.Spec.Containers[0].Image
	next := image + "-next"
	if err := cluster.Tag(t.Context(), image, next); err != nil {
		t.Fatal(err)
	}
	calls := m.start(t)
	m.kubectl("", "patch", "dataplane", "default", "--type=merge", "-p", `{"spec":{"image":"`+next+`"}}`)
	m.until("only a pod with the new image is left", func(context.Context) error {
		if pods := m.pods(dataplanes); len(pods) != 1 || pods[0].Spec.Containers[0].Image != next {
			return fmt.Errorf("%d pods, the first with %s", len(pods), pods[0].Spec.Containers[0].Image)
		}
		return nil
	})
	m.wait("condition=Ready", "pod/"+m.pods(dataplanes)[0].Name)
	t.Run("new call", m.call)
	m.goesOn(t, calls, old.Name)
}

// an evicted pod, as in a node drain, exits after its last call.
func (m caller) evict(t *testing.T) {
	m.T = t
	old := m.pods(dataplanes)[0]
	calls := m.start(t)
	err := cluster.Client.PolicyV1().Evictions(m.namespace).Evict(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: old.Name, Namespace: m.namespace},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.until("another pod accepts new calls", func(context.Context) error {
		if pods := m.pods(dataplanes); len(pods) != 1 || pods[0].Name == old.Name {
			return errors.New("there is no other pod")
		}
		return nil
	})
	m.wait("condition=Ready", "pod/"+m.pods(dataplanes)[0].Name)
	m.goesOn(t, calls, old.Name)
}

// kinds matches objects that may be left after uninstallation: CRDs, the objects that the API server generates for
// them, and the namespace, which Helm does not delete.
var kinds = regexp.MustCompile(`^(CustomResourceDefinition|APIService|ValidatingAdmissionPolicy|ValidatingAdmissionPolicyBinding) ` +
	`|^Namespace <none> ` + home + `$|^(ServiceAccount ` + home + ` default|ConfigMap ` + home + ` kube-root-ca.crt)$`)

// uninstall: calls continue when the product is uninstalled, because the Gateway and its dataplane stay. After the
// Gateway is deleted too, only CRDs are left, and no deletion hangs.
func (m caller) uninstall(t *testing.T, w installMethod, before objects) {
	m.T = t
	calls := m.start(t)
	m.withdraw()
	m.follow(w.programs, w.uninstall)
	system := testNamespace{t, home}
	system.until("the pods of the product are deleted", func(context.Context) error {
		if pods := system.all(); len(pods) > 0 {
			return fmt.Errorf("%d pods are left, such as %s", len(pods), pods[0].Name)
		}
		return nil
	})
	if phase := system.kubectl("", "get", "namespace", home, "--output=jsonpath={.status.phase}"); phase != "Active" {
		t.Errorf("the namespace, which may contain Gateways, is %s", phase)
	}
	for network, c := range calls {
		m.echoes(t, network, c)
		m.end(t, network, c)
	}
	m.kubectl("", "delete", "--timeout="+timeout.String(), "gateways.gateway.networking.k8s.io", "--all")
	for _, kind := range []string{"udproutes.stunner.l7mp.io", "deployment", "service"} {
		m.kubectl("", "delete", "--timeout="+timeout.String(), kind, "--all")
	}
	m.until("only CRDs are left", func(ctx context.Context) error {
		more, err := before.since(ctx)
		var left []string
		for _, o := range more {
			if !kinds.MatchString(o) {
				left = append(left, o)
			}
		}
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left: %s", strings.Join(left, ", ")))
		}
		return err
	})
}
