//go:build node

package node_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// TestDisturbances installs the product once, and disturbs calls as real clusters do. Each disturbance has its own
// namespace, settings and pods.
func TestDisturbances(t *testing.T) {
	system := testNamespace{t, home}
	system.prepare()
	system.follow(nil, block{manual, "kubectl apply --server-side"})
	for _, disturbance := range []struct {
		name string
		run  func(site)
	}{
		{"away", operatorAway},
		{"media", mediaServersChange},
		{"rotation", secretsChange},
		{"variants", servicesDiffer},
		{"foreign", unauthorizedClientsAreRefused},
		{"update", everythingIsUpdated},
		{"drain", nodeIsDrained},
	} {
		t.Run(disturbance.name, func(t *testing.T) { disturbance.run(newSite(t, disturbance.name)) })
	}
}

// site is the namespace of a disturbance, with echo peers and the objects that its Gateways need.
type site struct {
	testNamespace
	secret credential.Secret
}

// settings are the objects for the Gateways of a disturbance. SITE is replaced by its namespace.
const settings = `
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: SITE}
spec:
  allowedNamespaces: {from: All}
  command: [stunnerd]
  args: [--watch, --show-users, --sessions-from=any]
  enableMetricsEndpoint: true
  resources: {requests: {cpu: 10m}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own}
spec: {dataplane: SITE, authRef: {name: turn}}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: to-echo}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: echo, port: 7002}]}]
`

func newSite(t *testing.T, name string) site {
	t.Helper()
	s := site{testNamespace: testNamespace{t, "site-" + name}}
	s.kubectl("", "create", "namespace", s.namespace)
	s.admit("restricted")
	t.Cleanup(func() {
		if t.Failed() {
			s.explain()
			s.ask("status", "refusals")
		}
		for _, left := range [][]string{
			{"delete", "namespace", s.namespace, "--wait=false"}, {"delete", "dataplane", s.namespace},
		} {
			if _, err := cluster.Kubectl(context.Background(), left...); err != nil {
				t.Error(err)
			}
		}
	})
	s.sign("the first secret")
	s.kubectl(strings.ReplaceAll(settings, "SITE", s.namespace), "apply", "--server-side", "-f", "-")
	s.apply("testdata/echo.yaml")
	return s
}

// ask logs pages of the dataplane pods if the disturbance has failed.
func (s site) ask(pages ...string) {
	pods, err := cluster.Client.CoreV1().Pods(s.namespace).List(
		context.Background(), metav1.ListOptions{LabelSelector: dataplanes},
	)
	if err != nil {
		s.Log(err)
		return
	}
	for _, p := range pods.Items {
		for _, page := range pages {
			text, err := cluster.Client.CoreV1().Pods(s.namespace).ProxyGet(
				"http", p.Name, "8086", page, nil,
			).DoRaw(context.Background())
			s.Logf("/%s of %s: %v\n%s", page, p.Name, err, text)
		}
	}
}

// sign changes the shared secret of the Gateways.
func (s *site) sign(secret credential.Secret) {
	s.Helper()
	s.secret = secret
	s.kubectl(fmt.Sprintf(
		"{apiVersion: v1, kind: Secret, metadata: {name: turn}, stringData: {type: ephemeral, secret: %q}}",
		string(secret),
	), "apply", "-f", "-")
}

// Listeners of most disturbances, on the default port.
const (
	udpListener = "{name: udp, port: 3478, protocol: TURN-UDP}"
	tcpListener = "{name: tcp, port: 3478, protocol: TURN-TCP}"
)

// open creates the Gateway front-door with annotations KEY: VALUE, and waits for a ready dataplane pod.
func (s site) open(annotations string, listeners ...string) (pod corev1.Pod) {
	s.Helper()
	s.kubectl(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door, annotations: {%s}}
spec:
  gatewayClassName: stunner
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}
  listeners: [%s]
`, annotations, strings.Join(listeners, ", ")), "apply", "-f", "-")
	s.until("a pod serves the Gateway", func(context.Context) (err error) { pod, err = s.serving(""); return err })
	return pod
}

// serving returns the dataplane pod, other than a given one, that is ready and not terminating.
func (s site) serving(other string) (corev1.Pod, error) {
	s.Helper()
	for _, p := range s.pods(dataplanes) {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.Name != other {
				return p, nil
			}
		}
	}
	return corev1.Pod{}, errors.New("no dataplane pod is ready")
}

// echoOf returns the address of an echo peer's UDP port.
func echoOf(p corev1.Pod) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(p.Status.PodIP), 7002)
}

// echo returns the address of one of the echo peers.
func (s site) echo() netip.AddrPort { s.Helper(); return echoOf(s.pods("app=echo")[0]) }

// listenerAddress is an address of a Gateway with a transport.
type listenerAddress struct {
	network call.Network
	at      netip.AddrPort
}

// options returns options of a call with a new credential.
func (s site) options(w listenerAddress, peer netip.AddrPort) call.Options {
	s.Helper()
	c, err := credential.Authority{Realm: stunnerv1.DefaultRealm, SharedSecret: s.secret}.Mint(
		"caller", time.Hour, time.Now(),
	)
	if err != nil {
		s.Fatal(err)
	}
	return call.Options{
		Gateway: w.at, Network: w.network, Username: c.Username, Password: string(c.Password), Peer: peer,
		Interval: interval,
	}
}

// dial makes a call, and waits for the first echoes. It retries while kube-proxy has no endpoint for the pod yet.
func (s site) dial(w listenerAddress, peer netip.AddrPort) *call.Call {
	s.Helper()
	return s.dialWith(s.options(w, peer))
}

func (s site) dialWith(o call.Options) (c *call.Call) {
	s.Helper()
	s.until(fmt.Sprintf("a call over %s to %s is set up", o.Network, o.Peer), func(ctx context.Context) (err error) {
		c, err = call.Start(s.Context(), o)
		return err
	})
	s.goOn("made", c)
	return c
}

// dialTo makes a call that is relayed by a given pod. For a short time, new calls may still reach a terminating pod.
func (s site) dialTo(pod corev1.Pod, d listenerAddress, peer netip.AddrPort) (c *call.Call) {
	s.Helper()
	s.until(fmt.Sprintf("a call over %s is relayed by pod %s", d.network, pod.Name), func(context.Context) error {
		made, err := call.Start(s.Context(), s.options(d, peer))
		if err != nil {
			return err
		}
		if relay := netip.MustParseAddrPort(made.Relay().String()); relay.Addr().String() != pod.Status.PodIP {
			made.End(0)
			return fmt.Errorf("it is relayed by %s", relay)
		}
		c = made
		return nil
	})
	s.goOn("made", c)
	return c
}

// usual returns the addresses of the Gateway's Services.
func (s site) usual() []listenerAddress {
	s.Helper()
	return []listenerAddress{
		{call.UDP, netip.AddrPortFrom(s.address("front-door"), 3478)},
		{call.TCP, netip.AddrPortFrom(s.address("front-door-tcp"), 3478)},
	}
}

// interval is the time between two datagrams of a call. On a machine where a process may wait a second for a CPU, the
// socket buffers can hold this many.
const interval = 40 * time.Millisecond

// goOn checks that each call receives fifty more echoes.
func (s site) goOn(after string, calls ...*call.Call) {
	s.Helper()
	for _, c := range calls {
		ctx, cancel := context.WithTimeout(s.Context(), silence)
		if err := c.AwaitMore(ctx, 50); err != nil {
			s.Errorf("%s: a call was dropped: %v", after, err)
		}
		cancel()
	}
}

// hangUp ends calls, which must have lost nothing.
func (s site) hangUp(calls ...*call.Call) {
	s.Helper()
	for _, c := range calls {
		stats := c.End(5 * time.Second)
		s.Logf("call from %s: %s", c.Relay(), stats)
		if stats.Lost != 0 || stats.Err != nil {
			s.Errorf("call from %s: %s", c.Relay(), stats)
		}
	}
}

// awaitExit waits until a terminating pod has exited, which it does after its last call.
func (s site) awaitExit(pod string) {
	s.Helper()
	s.until("pod "+pod+" has ended", func(ctx context.Context) error {
		_, err := cluster.Client.CoreV1().Pods(s.namespace).Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second) // an exited pod does not respond
		defer cancel()
		sessions, unread := cluster.Client.CoreV1().Pods(s.namespace).ProxyGet(
			"http", pod, "8086", "sessions", nil,
		).DoRaw(ctx)
		return fmt.Errorf("it has sessions: %s %w", sessions, errors.Join(err, unread))
	})
}

// refused checks that a call is refused with a STUN error.
func (s site) refused(o call.Options, code string) {
	s.Helper()
	if err := refusal(o, code); err != nil {
		s.Error(err)
	}
}

// refusal returns nil if a call is refused with a STUN error.
func refusal(o call.Options, code string) error {
	c, err := call.Start(context.Background(), o)
	if err == nil {
		c.End(0)
	}
	if !errors.Is(err, call.ErrRefused) || !strings.Contains(err.Error(), "error "+code) {
		return fmt.Errorf("call over %s to %s: error %v, want error %s", o.Network, o.Peer, err, code)
	}
	return nil
}

// page reads a page of a pod through the API server's proxy.
func page(s testNamespace, pod string, port int, path string) string {
	s.Helper()
	return s.kubectl(
		"", "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/%s", s.namespace, pod, port, path),
	)
}

// count adds the series of a metric whose labels contain the given texts.
func count(t *testing.T, metrics, name string, labels ...string) (sum float64) {
	t.Helper()
lines:
	for line := range strings.Lines(metrics) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ') // labels may contain spaces
		series, value := line[:max(at, 0)], line[at+1:]
		if base, _, _ := strings.Cut(series, "{"); base != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, l) {
				continue lines
			}
		}
		var n float64
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// clients returns the client addresses that a dataplane pod reports.
func (s site) clients(pod string) (addresses []netip.Addr) {
	s.Helper()
	var all struct {
		Sessions []struct {
			Client netip.AddrPort `json:"client"`
		} `json:"sessions"`
	}
	if err := json.Unmarshal([]byte(page(s.testNamespace, pod, 8086, "sessions")), &all); err != nil {
		s.Fatal(err)
	}
	for _, one := range all.Sessions {
		addresses = append(addresses, one.Client.Addr())
	}
	return addresses
}

// pool returns a certificate pool with a chain.
func pool(chain []byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(chain)
	return p
}

// copied applies a file with a name replaced by another.
func (s site) copied(file, name, other string) {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	s.kubectl(strings.NewReplacer(
		"name: "+name+"\n", "name: "+other+"\n", "{app: "+name+"}", "{app: "+other+"}",
	).Replace(string(text)), "apply", "--server-side", "-f", "-")
	s.wait("condition=Available", "deployment/"+other)
}
