//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

// TestHostNetwork installs the chart as documented for dataplanes in the host network. Two Gateways share the
// only node. Their calls over UDP continue while the pods of the first Gateway are updated, crash, and are drained, as
// docs/survival.md says. The second Gateway is not disturbed.
func TestHostNetwork(t *testing.T) {
	system := testNamespace{t, home}
	system.prepare()
	system.shell([]string{"helm"}, `cd `+harnesstest.Root(t)+`/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --set stunnerGatewayOperator.workloadPolicy.hostNetwork=true \
  --set 'networkPolicy.discoveryFrom[0].ipBlock.cidr=198.18.0.0/24' --wait`)
	for _, kind := range []string{"Deployment", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) { gatewaysShareTheNode(newSite(t, "host-"+strings.ToLower(kind)), kind) })
	}
}

// hostGateway is a Gateway whose pods run in the host network, with calls over UDP.
type hostGateway struct {
	site
	name                  string
	port, health, metrics int
	relays                int // first port of the range of its relays
	at                    listenerAddress
	calls                 []*call.Call
}

const (
	relayPorts  = 50 // in the range of a Gateway
	callsOfEach = 5
)

// acceptance is the limit of the requirement. newCall is the interval between two new calls while the node changes.
const (
	acceptance = 5 * time.Second
	newCall    = 200 * time.Millisecond
)

// event is a change of the first of two Gateways on a node.
type event struct {
	name string
	// do returns when a pod of the Gateway serves calls again.
	do func(*hostGateway)
	// both is set if the event concerns the second Gateway too.
	both bool
	// silent is set if the calls of the Gateway are interrupted, and long if the interruption takes as long as the
	// start of a container.
	silent, long bool
}

// gatewaysShareTheNode disturbs calls of two Gateways in the host network of one node.
func gatewaysShareTheNode(s site, kind string) {
	s.admit("privileged")
	machine := stall.Start()
	defer machine.Stop()
	first := &hostGateway{site: s, name: "front-door", port: 3478, health: 8086, metrics: 8080, relays: 40000}
	second := &hostGateway{site: s, name: "side-door", port: 3479, health: 8087, metrics: 8081, relays: 41000}
	both := []*hostGateway{first, second}
	for _, g := range both {
		g.create(kind)
	}
	peer := s.echo()
	for _, g := range both {
		g.begin(peer)
	}
	control := event{name: "nothing, for comparison", do: func(*hostGateway) {}}
	s.observe(machine, control, first, second)
	for _, e := range []event{
		{name: "another image", do: (*hostGateway).update, silent: true, long: true},
		{name: "SIGKILL of stunnerd", do: func(g *hostGateway) { g.crash(false) }, silent: true},
		{name: "SIGKILL of the container", do: func(g *hostGateway) { g.crash(true) }, silent: true, long: true},
		{name: "SIGKILL of kubelet and containerd", do: (*hostGateway).restartNode},
	} {
		s.observe(machine, e, first, second)
	}
	// The second Gateway has lost nothing so far.
	s.hangUp(second.calls...)
	second.begin(peer)
	drain := event{name: "drain of the node", do: (*hostGateway).drain, both: true, silent: true}
	if kind == "DaemonSet" {
		drain = event{name: drain.name, do: (*hostGateway).drainOthers}
	}
	s.observe(machine, drain, first, second)
	for _, g := range both {
		for _, c := range g.calls {
			stats := c.End(5 * time.Second)
			s.Logf("call from %s: %s", c.Relay(), stats)
			if stats.Err != nil {
				s.Errorf("%s: %v", g.name, stats.Err)
			}
		}
		metrics := page(s.testNamespace, g.pod().Name, g.metrics, "metrics")
		if n := count(s.T, metrics, "stunner_refused_total", `"capacity"`); n != 0 {
			s.Errorf("%s has refused %v requests because of its capacity", g.name, n)
		}
	}
}

// create creates the Gateway with a Dataplane of its own.
func (g *hostGateway) create(kind string) {
	g.Helper()
	dataplane := g.namespace + "-" + g.name
	g.Cleanup(func() {
		if _, err := cluster.Kubectl(context.Background(), "delete", "dataplane", dataplane); err != nil {
			g.Error(err)
		}
	})
	g.kubectl(strings.NewReplacer(
		"DATAPLANE", dataplane, "NAME", g.name, "KIND", kind, "PORT", fmt.Sprint(g.port),
		"HEALTH", fmt.Sprint(g.health), "METRICS", fmt.Sprint(g.metrics),
		"FROM", fmt.Sprint(g.relays), "TO", fmt.Sprint(g.relays+relayPorts-1),
	).Replace(`
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: DATAPLANE}
spec:
  allowedNamespaces: {from: All}
  dataplaneResource: KIND
  hostNetwork: true
  relayPortRange: {minPort: FROM, maxPort: TO}
  command: [stunnerd]
  args: [--watch, --show-users, --sessions-from=any]
  enableMetricsEndpoint: true
  resources: {requests: {cpu: 10m}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: NAME}
spec: {dataplane: DATAPLANE, authRef: {name: turn}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: NAME
  annotations:
    stunner.l7mp.io/service-type: ClusterIP
    stunner.l7mp.io/health-port: "HEALTH"
    stunner.l7mp.io/metrics-port: "METRICS"
spec:
  gatewayClassName: stunner
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: NAME}}
  listeners: [{name: udp, port: PORT, protocol: TURN-UDP}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: NAME}
spec:
  parentRefs: [{name: NAME}]
  rules: [{backendRefs: [{name: echo, port: 7002}]}]
`), "apply", "--server-side", "-f", "-")
	g.wait("condition=Programmed", "gateway/"+g.name)
	g.until(g.name+" has a ready pod with probes and metrics of its own", func(context.Context) error {
		p, err := g.find("")
		if err != nil {
			return err
		}
		if !ready(p) || !p.Spec.HostNetwork || p.Status.PodIP != p.Status.HostIP {
			return fmt.Errorf("pod %s at %s is not ready", p.Name, p.Status.PodIP)
		}
		for _, want := range []string{
			page(g.testNamespace, p.Name, g.health, "status"), page(g.testNamespace, p.Name, g.metrics, "metrics"),
		} {
			if !strings.Contains(want, g.namespace+"/"+g.name) {
				return fmt.Errorf("pod %s answers for another Gateway: %.200s", p.Name, want)
			}
		}
		return nil
	})
	g.at = listenerAddress{call.UDP, netip.AddrPortFrom(g.nodeIP(), uint16(g.port))}
}

// find returns a pod of the Gateway, other than a given one, whose container runs.
func (g *hostGateway) find(other string) (corev1.Pod, error) {
	g.Helper()
	pods := g.pods("stunner.l7mp.io/related-gateway-name=" + g.name)
	for _, p := range pods {
		if p.Name != other && slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil
		}) {
			return p, nil
		}
	}
	return corev1.Pod{}, fmt.Errorf("none of %d pods of %s runs", len(pods), g.name)
}

func (g *hostGateway) pod() corev1.Pod {
	g.Helper()
	p, err := g.find("")
	if err != nil {
		g.Fatal(err)
	}
	return p
}

// begin makes calls.
func (g *hostGateway) begin(peer netip.AddrPort) {
	g.Helper()
	g.calls = nil
	for range callsOfEach {
		g.calls = append(g.calls, g.dial(g.at, peer))
	}
}

// next waits until another pod than the given one runs.
func (g *hostGateway) next(old string) {
	g.Helper()
	g.until("the next pod of "+g.name+" runs", func(context.Context) error { _, err := g.find(old); return err })
}

// update replaces the image of the Dataplane.
func (g *hostGateway) update() {
	old := g.pod()
	image := old.Spec.Containers[0].Image
	next := image + "-next"
	if err := cluster.Tag(g.Context(), image, next); err != nil {
		g.Fatal(err)
	}
	g.kubectl(
		"", "patch", "dataplane", g.namespace+"-"+g.name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"image":%q}}`, next),
	)
	g.next(old.Name)
	if now := g.pod().Spec.Containers[0].Image; now != next {
		g.Errorf("the next pod has image %s", now)
	}
}

// crash kills stunnerd, or its supervisor and with it the container, and waits for the next process.
func (g *hostGateway) crash(container bool) {
	before := daemonOf(g.T, g.pod())
	victim := before.child
	if container {
		victim = before.supervisor
	}
	send(g.T, syscall.SIGKILL, victim)
	g.until("another process runs", func(context.Context) error {
		switch now, err := findDaemon(before.pod); {
		case err != nil:
			return err
		case now.child == before.child:
			return errors.New("the process is the same")
		}
		return nil
	})
}

// restartNode restarts kubelet and container engine of the node. The pods stay.
func (g *hostGateway) restartNode() {
	before := daemonOf(g.T, g.pod())
	if err := cluster.Restart(g.Context()); err != nil {
		g.Fatal(err)
	}
	if now := daemonOf(g.T, g.pod()); now.child != before.child || now.pod.UID != before.pod.UID {
		g.Errorf("pod %s has been restarted", before.pod.Name)
	}
}

// drain drains the only node, except its echo peers, which represent media servers on another node. When the pods of
// both Gateways have ended, it stops the drain, which waits for other pods, and uncordons the node.
func (g *hostGateway) drain() {
	old := g.pod()
	g.drainUntil("the pods of the Gateways have ended", func(context.Context) error {
		if pods := g.running("app!=echo"); len(pods) > 0 {
			return fmt.Errorf("%s is there", pods[0].Name)
		}
		return nil
	})
	g.next(old.Name)
}

// drainOthers drains the node until another pod is evicted. The pods of DaemonSets stay.
func (g *hostGateway) drainOthers() {
	g.drainUntil("a pod of the operator is evicted", func(context.Context) error {
		for _, p := range (testNamespace{g.T, home}).all() {
			if p.Spec.NodeName == "" {
				return nil
			}
		}
		return errors.New("all pods are on the node")
	})
}

// running returns the pods with these labels that are on a node, including terminating pods.
func (g *hostGateway) running(labels string) []corev1.Pod {
	g.Helper()
	return slices.DeleteFunc(g.list(labels), func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
}

// drainUntil drains the node until a condition holds, and uncordons it.
func (g *hostGateway) drainUntil(what string, cond func(context.Context) error) {
	g.Helper()
	node := g.pod().Spec.NodeName
	ctx, cancel := context.WithCancel(g.Context())
	defer cancel()
	drained := make(chan error, 1)
	go func() {
		_, err := cluster.Kubectl(
			ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app!=echo",
		)
		drained <- err
	}()
	g.until(what, cond)
	cancel()
	if err := <-drained; err != nil && ctx.Err() == nil {
		g.Error(err)
	}
	if _, err := cluster.Kubectl(g.Context(), "uncordon", node); err != nil {
		g.Fatal(err)
	}
}

// observe causes an event while new calls are made. It checks that the calls of both Gateways continue and that new
// calls are accepted afterwards. It logs the longest gap of each call.
func (s site) observe(machine *stall.Monitor, e event, first, second *hostGateway) {
	s.Helper()
	for _, g := range []*hostGateway{first, second} {
		for _, c := range g.calls {
			c.Lap()
		}
	}
	untouched := second.pod()
	knocks := []*knocking{first.knock(), second.knock()}
	e.do(first)
	there := time.Now()
	first.accepts(e, there, machine)
	if e.both {
		second.next(untouched.Name)
		second.accepts(e, time.Now(), machine)
	}
	s.allGoOn(e.name, append(slices.Clone(first.calls), second.calls...))
	var gaps [2][]time.Duration
	for i, g := range []*hostGateway{first, second} {
		for _, c := range g.calls {
			gaps[i] = append(gaps[i], c.Lap().Round(time.Millisecond))
		}
		accepted, failed := knocks[i].end()
		s.Logf("%s: %s: longest gap of each call %v; meanwhile %d new calls were accepted and %d were not",
			e.name, g.name, gaps[i], accepted, len(failed))
		for _, err := range failed {
			if disturbed := e.silent && (g == first || e.both); !disturbed || strings.Contains(err.Error(), "error 508") {
				s.Errorf("%s: new call at %s: %v", e.name, g.name, err)
			}
		}
	}
	if e.long && slices.Max(gaps[1]) >= slices.Min(gaps[0]) {
		s.Errorf("%s: calls of the other Gateway were silent for as long", e.name)
	}
	if now := second.pod(); !e.both && (now.UID != untouched.UID ||
		now.Status.ContainerStatuses[0].RestartCount != untouched.Status.ContainerStatuses[0].RestartCount) {
		s.Errorf("%s: the pod of the other Gateway is now %s, was %s", e.name, now.Name, untouched.Name)
	}
}

// allGoOn checks concurrently that each call receives fifty more echoes.
func (s site) allGoOn(after string, calls []*call.Call) {
	s.Helper()
	var waiting sync.WaitGroup
	for _, c := range calls {
		waiting.Go(func() { s.goOn(after, c) })
	}
	waiting.Wait()
}

// accepts waits until the Gateway accepts a new call.
func (g *hostGateway) accepts(e event, there time.Time, machine *stall.Monitor) {
	g.Helper()
	g.until(g.name+" accepts a new call", func(ctx context.Context) error { return g.try(ctx, time.Second) })
	took := machine.Since(there)
	g.Logf("%s: %s accepts a new call %s after its pod was there", e.name, g.name, took.Round(time.Millisecond))
	if took > acceptance {
		g.Errorf("%s: %s accepted no new call for %s", e.name, g.name, took)
	}
}

// try makes a call and ends it after the first echo.
func (g *hostGateway) try(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := call.Start(ctx, g.options(g.at, g.calls[0].Peer()))
	if err != nil {
		return err
	}
	defer c.End(0)
	return c.Await(ctx, 1)
}

// knocking is a sequence of new calls at a Gateway.
type knocking struct {
	stop     context.CancelFunc
	ended    sync.WaitGroup
	accepted int
	failed   []error
}

// knock makes new calls, one after the other, until the end.
func (g *hostGateway) knock() *knocking {
	ctx, cancel := context.WithCancel(g.Context())
	k := &knocking{stop: cancel}
	k.ended.Go(func() {
		tick := time.NewTicker(newCall)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			switch err := g.try(g.Context(), silence); {
			case err == nil:
				k.accepted++
			default:
				k.failed = append(k.failed, err)
			}
		}
	})
	return k
}

// end ends the sequence. It returns the number of accepted calls, and the errors of the others.
func (k *knocking) end() (accepted int, failed []error) {
	k.stop()
	k.ended.Wait()
	return k.accepted, k.failed
}
