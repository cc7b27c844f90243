//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// dataplanes are the pods of the Gateway front-door.
const dataplanes = "stunner.l7mp.io/related-gateway-name=front-door"

// silence is how long a call may say nothing before it counts as dropped.
const silence = 30 * time.Second

// TestProduct installs the product with its manifests. What follows happens one after the other, to one Gateway.
func TestProduct(t *testing.T) {
	s := stage(t)
	system := place{t, "stunner-system"}
	// The kinds are known a moment after they are made; until then objects of these kinds are refused.
	s.until("the product is installed", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "apply", "--server-side", "-k", "testdata/product")
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			system.explain()
		}
	})
	system.wait("condition=Available", "deployment", "--all")
	s.apply("testdata/echo.yaml")
	s.apply("testdata/gateway.yaml")
	s.wait("condition=Programmed", "gateway", "front-door")
	m := meeting{s, system.address("stunner-auth"), netip.AddrPortFrom(netip.MustParseAddr(s.pods("app=echo")[0].Status.PodIP), 7002)}

	t.Run("call", m.call)
	t.Run("rolling update", m.roll)
	t.Run("eviction", m.evict)
}

// meeting is where calls are made.
type meeting struct {
	place
	auth netip.Addr
	peer netip.AddrPort
}

// call: what the auth service gives out works at the addresses that the Gateway has in its status.
func (m meeting) call(t *testing.T) {
	for network, c := range m.start(t) {
		m.echoes(t, network, c)
		m.end(t, network, c)
	}
}

// roll: calls go on where they are while the dataplane is updated, new ones go to the new pod, and the old one leaves with its last call.
func (m meeting) roll(t *testing.T) {
	m.T = t
	old := m.pods(dataplanes)[0]
	image := old.Spec.Containers[0].Image
	next := image + "-next"
	if err := cluster.Tag(t.Context(), image, next); err != nil {
		t.Fatal(err)
	}
	calls := m.start(t)
	m.kubectl("", "patch", "dataplane", "default", "--type=merge", "-p", `{"spec":{"image":"`+next+`"}}`)
	m.until("only a pod of the new image is wanted", func(context.Context) error {
		if pods := m.pods(dataplanes); len(pods) != 1 || pods[0].Spec.Containers[0].Image != next {
			return fmt.Errorf("%d pods, the first with %s", len(pods), pods[0].Spec.Containers[0].Image)
		}
		return nil
	})
	m.wait("condition=Ready", "pod/"+m.pods(dataplanes)[0].Name)
	t.Run("new call", m.call)
	m.goesOn(t, calls, old.Name)
}

// evict: an eviction, which is what becomes of a pod when its node is drained, waits for the calls.
func (m meeting) evict(t *testing.T) {
	m.T = t
	old := m.pods(dataplanes)[0]
	calls := m.start(t)
	err := cluster.Client.PolicyV1().Evictions(m.namespace).Evict(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: old.Name, Namespace: m.namespace},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.until("another pod takes new calls", func(context.Context) error {
		if pods := m.pods(dataplanes); len(pods) != 1 || pods[0].Name == old.Name {
			return errors.New("there is no other pod")
		}
		return nil
	})
	m.wait("condition=Ready", "pod/"+m.pods(dataplanes)[0].Name)
	m.goesOn(t, calls, old.Name)
}

// goesOn checks that calls were not disturbed, ends them, and waits until the pod that had them is gone.
func (m meeting) goesOn(t *testing.T, calls map[call.Network]*call.Call, pod string) {
	t.Helper()
	for network, c := range calls {
		m.echoes(t, network, c)
	}
	if m.kubectl("", "get", "pod", pod, "--output=jsonpath={.metadata.deletionTimestamp}") == "" {
		t.Errorf("pod %s was not told to end", pod)
	}
	for network, c := range calls {
		m.end(t, network, c)
	}
	m.wait("delete", "pod/"+pod)
}

// echoes waits until a hundred more datagrams have come back.
func (m meeting) echoes(t *testing.T, network call.Network, c *call.Call) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	if err := c.AwaitMore(ctx, 100); err != nil {
		t.Errorf("%s: %v", network, err)
	}
}

// start makes a call by each transport and waits until it is up.
func (m meeting) start(t *testing.T) map[call.Network]*call.Call {
	t.Helper()
	ice, err := m.ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	calls := map[call.Network]*call.Call{}
	for network, protocol := range map[call.Network]config.Protocol{call.UDP: config.TURNUDP, call.TCP: config.TURNTCP} {
		gateway, err := ice.Address(protocol)
		if err != nil {
			t.Fatal(err)
		}
		var c *call.Call
		m.until("a call by "+string(network)+" is made", func(ctx context.Context) error { // kube-proxy may not know the pod yet
			c, err = call.Start(t.Context(), call.Options{
				Gateway: gateway, Network: network, Username: ice.Username, Password: ice.Credential, Peer: m.peer,
			})
			return err
		})
		calls[network] = c
		m.echoes(t, network, c)
	}
	return calls
}

// end ends a call, of which nothing may be missing.
func (m meeting) end(t *testing.T, network call.Network, c *call.Call) {
	t.Helper()
	stats := c.End(5 * time.Second)
	t.Logf("%s: %s", network, stats)
	if stats.Lost != 0 || stats.Err != nil {
		t.Errorf("%s: %s", network, stats)
	}
}

// ask asks for credentials as a web app does, and returns those of the Gateway.
func (m meeting) ask(ctx context.Context) (bed.ICEServer, error) {
	body := fmt.Sprintf(`{"gateways":[{"namespace":%q,"name":"front-door"}]}`, m.namespace)
	url := fmt.Sprintf("http://%s:8088/v1/ice-servers", m.auth)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return bed.ICEServer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	code, answer, err := bed.Do(req)
	var ice bed.ICE
	if err := errors.Join(err, json.Unmarshal(answer, &ice)); err != nil || code != http.StatusCreated || len(ice.Servers) != 1 {
		return bed.ICEServer{}, fmt.Errorf("ask for credentials: status %d, %w: %s", code, err, answer)
	}
	return ice.Servers[0], nil
}
