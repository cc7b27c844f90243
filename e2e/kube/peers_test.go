package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// forwarder is a dataplane pod that takes part in forwarding.
type forwarder struct {
	guarded
	pod, id string
	source  discovery.Source
	lists   chan discovery.Peers
}

// forwarder connects a pod to the operator until the test ends. gateway is the Gateway in the labels of the pod.
func (g guarded) forwarder(ca, pod, gateway string) *forwarder {
	g.Helper()
	token := filepath.Join(g.files, pod)
	g.must(os.WriteFile(token, []byte(g.podToken(pod)), 0o600))
	f := &forwarder{guarded: g, pod: pod, id: g.name + "/" + gateway, lists: make(chan discovery.Peers, 64)}
	f.source = g.source("wss://127.0.0.1:%d", discovery.Options{ID: f.id, TokenFile: token, CAFile: ca})
	ctx, cancel := context.WithCancel(g.Context())
	events := f.source.Watch(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events {
			if e.Peers != nil {
				f.lists <- *e.Peers
			}
		}
	}()
	g.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

func (f *forwarder) report(peer string, sender byte) {
	r := discovery.Report{ID: f.id, Pod: f.pod, Accepted: true, Peer: peer}
	r.Sender = discovery.Sender{sender}.String()
	f.source.(discovery.Reporter).Report(r)
}

// until waits for a list of these pods, in the form "NAME@ADDRESS:PORT".
func (f *forwarder) until(want ...string) (last discovery.Peers) {
	f.Helper()
	var got []string
	f.await(func(context.Context) error {
		for len(f.lists) > 0 {
			got, last = nil, <-f.lists
			for _, p := range last.Pods {
				got = append(got, fmt.Sprintf("%s@%s", p.Pod, p.Address))
			}
			if reflect.DeepEqual(got, want) {
				return nil
			}
		}
		return fmt.Errorf("pod %s has the list %v, want %v", f.pod, got, want)
	})
	return last
}

// K-01: the pods of a Gateway get each other's addresses and the same keys. An address of another pod is refused, and
// the pods of another Gateway get nothing.
func TestDiscovery_SendsPeersToThePodsOfTheirGateway(t *testing.T) {
	t.Parallel()
	g := guard(t, "strict")
	g.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: second
  namespace: %s
  labels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: %s}
spec:
  serviceAccountName: dataplane
  containers: [{name: stunnerd, image: example.net/stunnerd}]
`, g.name, g.name))
	for pod, address := range map[string]string{"dataplane": "10.1.0.1", "second": "10.1.0.2", "neighbour": "10.1.0.3"} {
		g.kubectl("patch", "pod", pod, "-n", g.name, "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q},{"ip":"fd00::%s"}]}}`, address, address, address[len(address)-1:]))
	}
	_, ca := g.mount()
	first, second, other := g.forwarder(ca, "dataplane", "front-door"), g.forwarder(ca, "second", "front-door"),
		g.forwarder(ca, "neighbour", "back-door")
	first.report("10.1.0.1:4000", 1)
	second.report("[fd00::2]:4000", 2)
	other.report("10.1.0.3:4000", 3)
	both := []string{"dataplane@10.1.0.1:4000", "second@[fd00::2]:4000"}
	here, there := first.until(both...), second.until(both...)
	if len(here.Keys) != 2 || here.Keys[0] == here.Keys[1] || !reflect.DeepEqual(here, there) {
		t.Errorf("one pod has the list %+v, the other %+v", here, there)
	}
	second.report("10.1.0.1:4000", 2) // the address of the first pod
	g.await(func(context.Context) error {
		if n := g.metric("stunner_operator_discovery_refused_total"); n != 1 {
			return fmt.Errorf("%.0f refusals, want 1", n)
		}
		return nil
	})
	first.until("dataplane@10.1.0.1:4000")
	second.report("10.1.0.2:4001", 4)
	both[1] = "second@10.1.0.2:4001"
	first.until(both...)
	second.until(both...)
	if n := len(other.lists); n != 0 {
		t.Errorf("a pod of another Gateway gets the list %+v", <-other.lists)
	}
}
