package kube

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// forwardingReplicas are two replicas of the operator that follow each other's reports and watch the same pods.
type forwardingReplicas struct {
	*testing.T
	pods client.Client
	all  [2]*rollouts
	// servers are the streams of reports to the two replicas, by the replica that has received the report.
	servers [2][2]reporter
	ca      trust.Authority
}

func inForwardingReplicas(t *testing.T, run func(*forwardingReplicas)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &forwardingReplicas{T: t, pods: fake.NewClientBuilder().Build()}
		ca, err := trust.Authority{}.Next(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.ca = ca
		index := &podIndex{ready: make(chan struct{}), cache: r.pods}
		close(index.ready)
		for i := range r.all {
			store, log := reports.New(slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler)
			r.all[i] = newRollouts(store, newInbox())
			r.all[i].forwarding = newForwarding(store, index, discovery.NewServer(discovery.ServerOptions{}), log)
			for from := range r.servers {
				r.servers[from][i] = make(reporter)
				go store.Follow(ctx, fmt.Sprint(from), r.servers[from][i])
			}
			go (&tasks{}).do("reports", func(t *task) { r.all[i].run(ctx, t) })
		}
		run(r)
		cancel()
		time.Sleep(time.Minute)
	})
}

// serve starts the lists of the Gateway media/edge in both replicas.
func (r *forwardingReplicas) serve() {
	for _, f := range r.all {
		f.forwarding.setAuthority(r.ca)
		f.forwarding.setGateway(gatewayKey, "uid")
	}
}

// pod creates a running pod of a Gateway in the namespace media.
func (r *forwardingReplicas) pod(gateway, name string, addresses ...string) {
	r.Helper()
	pod := relayPod()
	pod.Name, pod.UID = name, ""
	pod.Labels[resource.RelatedGatewayName] = gateway
	pod.Status.Phase = corev1.PodRunning
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	_ = r.pods.Delete(r.Context(), pod)
	pod.ResourceVersion = ""
	if err := r.pods.Create(r.Context(), pod); err != nil {
		r.Fatal(err)
	}
}

// report sends a report that a replica has received to both replicas. peer is "" or "ADDRESS:PORT SENDER", and SENDER
// is padded.
func (r *forwardingReplicas) report(to int, pod, peer string, draining bool) {
	report := discovery.Report{ID: gatewayKey.String(), Pod: pod, Accepted: true, Draining: draining}
	report.Peer, report.Sender, _ = strings.Cut(peer, " ")
	if report.Sender != "" {
		report.Sender = fmt.Sprintf("%016s", report.Sender)
	}
	r.change(to, discovery.ReportChange{Report: &report})
}

func (r *forwardingReplicas) lose(to int, pod string) {
	r.change(to, discovery.ReportChange{Removed: &discovery.ReportKey{ID: gatewayKey.String(), Pod: pod}})
}

func (r *forwardingReplicas) change(to int, change discovery.ReportChange) {
	for _, stream := range r.servers[to] {
		stream <- change
	}
}

// lists returns the list of the Gateway, and fails if the replicas publish different keys or pods.
func (r *forwardingReplicas) lists() discovery.Peers {
	r.Helper()
	synctest.Wait()
	var both [2]discovery.Peers
	for i, f := range r.all {
		f.forwarding.mu.Lock()
		if g := f.forwarding.gateways[gatewayKey]; g != nil {
			both[i] = g.published
		}
		f.forwarding.mu.Unlock()
	}
	if !reflect.DeepEqual(both[0].Keys, both[1].Keys) || !reflect.DeepEqual(both[0].Pods, both[1].Pods) {
		r.Errorf("one replica publishes %+v, the other %+v", both[0], both[1])
	}
	return both[0]
}

// want checks the listed pods, in the form "NAME@ADDRESS:PORT/OTHER", with a + if draining.
func (r *forwardingReplicas) want(step, want string) {
	r.Helper()
	var words []string
	for _, p := range r.lists().Pods {
		word := p.Pod + "@" + p.Address.String()
		if p.Other.IsValid() {
			word += "/" + p.Other.String()
		}
		words = append(words, word+map[bool]string{true: "+"}[p.Draining])
	}
	if got := strings.Join(words, " "); got != want {
		r.Errorf("%s: listed %q, want %q", step, got, want)
	}
}

// All replicas publish the same pods: those that have reported an address of their own to any replica.
func TestAllReplicasPublishTheSamePeers(t *testing.T) {
	inForwardingReplicas(t, func(r *forwardingReplicas) {
		r.pod("edge", "a", "10.0.0.1", "fd00::1")
		r.pod("edge", "b", "10.0.0.2")
		r.pod("edge", "old", "10.0.0.3")
		r.pod("other", "c", "10.0.0.4")
		r.serve()
		r.report(0, "a", "10.0.0.1:4000 a", false)
		r.report(0, "old", "", false)
		r.want("a pod has not reported yet", "")
		r.report(1, "b", "10.0.0.2:4000 b", false)
		r.want("all pods have reported", "a@10.0.0.1:4000/fd00::1 b@10.0.0.2:4000")
		if got := r.lists(); len(got.Keys) != 2 || got.Generation == 0 {
			r.Errorf("published %+v", got)
		}
		r.report(1, "c", "10.0.0.4:4000 c", false)
		r.report(1, "unknown", "10.0.0.5:4000 d", false)
		r.want("a pod of another Gateway", "a@10.0.0.1:4000/fd00::1 b@10.0.0.2:4000")
		r.report(1, "b", "10.0.0.1:4000 b", false)
		r.want("the address of another pod", "a@10.0.0.1:4000/fd00::1 b@10.0.0.2:4000")
		r.report(0, "a", "[fd00::1]:4000 a", true)
		r.report(1, "b", "10.0.0.2:4001 b2", false)
		r.want("other address, draining, restarted", "a@[fd00::1]:4000/10.0.0.1+ b@10.0.0.2:4001")
		r.report(1, "new", "10.0.0.6:4000 e", false)
		r.pod("edge", "new")
		time.Sleep(5 * time.Second)
		r.want("a pod without an address yet", "a@[fd00::1]:4000/10.0.0.1+ b@10.0.0.2:4001")
		r.pod("edge", "new", "10.0.0.6")
		time.Sleep(time.Second)
		r.want("it has an address", "a@[fd00::1]:4000/10.0.0.1+ b@10.0.0.2:4001 new@10.0.0.6:4000")
		r.report(1, "copy", "10.0.0.7:4000 a", false)
		r.pod("edge", "copy", "10.0.0.7")
		time.Sleep(time.Second)
		r.want("the sender of another pod", "a@[fd00::1]:4000/10.0.0.1+ b@10.0.0.2:4001 new@10.0.0.6:4000")
		r.report(1, "new", "", false)
		r.want("a pod stops to forward", "a@[fd00::1]:4000/10.0.0.1+ b@10.0.0.2:4001")
	})
}

// A pod stays in the list for 30 s after its report is lost, unless another pod has its address.
func TestLostPeersStayForHalfAMinute(t *testing.T) {
	inForwardingReplicas(t, func(r *forwardingReplicas) {
		r.pod("edge", "a", "10.0.0.1")
		r.pod("edge", "b", "10.0.0.2")
		r.serve()
		r.report(0, "a", "10.0.0.1:4000 a", false)
		r.report(1, "b", "10.0.0.2:4000 b", false)
		first := r.lists().Generation
		r.lose(1, "b")
		time.Sleep(peerRetention - time.Second)
		r.want("lost for 29 s", "a@10.0.0.1:4000 b@10.0.0.2:4000")
		r.report(0, "b", "10.0.0.2:4000 b", false)
		time.Sleep(time.Minute)
		r.want("connected to the other replica", "a@10.0.0.1:4000 b@10.0.0.2:4000")
		if got := r.lists().Generation; got != first {
			r.Errorf("an unchanged list has generation %d, want %d", got, first)
		}
		r.lose(0, "b")
		time.Sleep(peerRetention + time.Second)
		r.want("lost for 31 s", "a@10.0.0.1:4000")
		if got := r.lists().Generation; got <= first {
			r.Errorf("a changed list has generation %d after %d", got, first)
		}
		r.lose(0, "a")
		r.pod("edge", "c", "10.0.0.1")
		r.report(1, "c", "10.0.0.1:4000 c", false)
		r.want("another pod has the address of the lost one", "c@10.0.0.1:4000")
		r.lose(1, "c")
		time.Sleep(time.Minute)
		r.want("all are lost", "")
	})
}

// After its start, a replica publishes no list without some pods for 30 s, because they may be about to connect.
func TestTheFirstListIsComplete(t *testing.T) {
	inForwardingReplicas(t, func(r *forwardingReplicas) {
		r.pod("edge", "a", "10.0.0.1")
		r.pod("edge", "b", "10.0.0.2")
		r.serve()
		r.report(0, "a", "10.0.0.1:4000 a", false)
		time.Sleep(peerRetention - time.Second)
		if got := r.lists(); got.Generation != 0 {
			r.Errorf("published %+v", got)
		}
		time.Sleep(2 * time.Second)
		r.want("after 30 s", "a@10.0.0.1:4000")
	})
}

// Keys are renewed at midnight UTC without a change of pods, with the CA, and with the Gateway. Without a CA there are
// none, and no list.
func TestForwardingKeysAreRenewed(t *testing.T) {
	inForwardingReplicas(t, func(r *forwardingReplicas) {
		r.pod("edge", "a", "10.0.0.1")
		for _, f := range r.all {
			f.forwarding.setGateway(gatewayKey, "uid")
		}
		r.report(0, "a", "10.0.0.1:4000 a", false)
		time.Sleep(time.Minute)
		if got := r.lists(); got.Generation != 0 {
			r.Errorf("published without a CA: %+v", got)
		}
		r.serve()
		r.want("with a CA", "a@10.0.0.1:4000")
		before := r.lists()
		time.Sleep(time.Until(time.Now().UTC().Truncate(24*time.Hour).Add(24*time.Hour)) - time.Second)
		if got := r.lists(); !reflect.DeepEqual(got, before) {
			r.Errorf("before midnight %+v, at first %+v", got, before)
		}
		time.Sleep(2 * time.Second)
		after := r.lists()
		if len(after.Keys) != 2 || after.Keys[0] == before.Keys[0] || after.Keys[1] != before.Keys[0] ||
			after.Generation <= before.Generation || !reflect.DeepEqual(after.Pods, before.Pods) {
			r.Errorf("after midnight %+v, before %+v", after, before)
		}
		for _, f := range r.all {
			f.forwarding.setGateway(gatewayKey, "another")
		}
		replaced := r.lists()
		if replaced.Keys[0].ID != after.Keys[0].ID || replaced.Keys[0] == after.Keys[0] {
			r.Error("a Gateway of the same name has the same key")
		}
		var err error
		if r.ca, err = (trust.Authority{}).Next(time.Now()); err != nil {
			r.Fatal(err)
		}
		for _, f := range r.all {
			f.forwarding.setAuthority(r.ca)
		}
		if got := r.lists(); got.Keys[0] == replaced.Keys[0] {
			r.Error("another CA has the same key")
		}
		for _, f := range r.all {
			f.forwarding.removeGateway(gatewayKey)
			f.forwarding.removeGateway(gatewayKey)
		}
		r.report(0, "a", "10.0.0.1:4001 a", false)
		if got := r.lists(); got.Generation != 0 {
			r.Errorf("published for a deleted Gateway: %+v", got)
		}
	})
}

// K-01: a reported address for forwarding is refused if it is not an address of the pod of the token.
func TestPeersAreVerifiedWithTheWatchedPods(t *testing.T) {
	pod, host := relayPod(), relayPod()
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	host.Name, host.Spec.HostNetwork, host.Status.PodIPs = "host", true, []corev1.PodIP{{IP: "192.0.2.1"}}
	fresh := relayPod()
	fresh.Name = "fresh"
	a := newAsked(t, nil, nil, pod, host, fresh)
	for _, c := range []struct {
		id, pod, address string
		refused          bool
	}{
		{"media/door", "relay", "10.0.0.1", false}, {"media/door", "relay", "fd00::1", false},
		{"media/door", "relay", "10.0.0.2", true}, {"media/other", "relay", "10.0.0.1", true},
		{"media/door", "host", "192.0.2.1", false}, {"media/door", "host", "192.0.2.2", true},
		{"media/door", "fresh", "10.0.0.9", false}, {"media/door", "missing", "10.0.0.9", false},
	} {
		r := discovery.Report{Pod: c.pod, Peer: "[" + c.address + "]:4000", Sender: "0123456789abcdef"}
		if !strings.Contains(c.address, ":") {
			r.Peer = c.address + ":4000"
		}
		peer, err := r.AsPeer()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.verifyPeer(c.id, peer); (err != nil) != c.refused {
			t.Errorf("%s of %s at %s: %v", c.pod, c.id, c.address, err)
		}
	}
	unread := &authorizer{pods: newPodIndex()}
	if err := unread.verifyPeer("media/door", discovery.Peer{Pod: "relay"}); err != nil {
		t.Errorf("before the pods are known: %v", err)
	}
}
