package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The pods of a tenant, and the use of their tokens.
const (
	manyPods       = 1_300
	runningPods    = 100 // the number of pods that run; no node reports the others
	streamsOfPod   = 4   // streams of each running pod, the maximum of a pod
	idlePodStreams = 64  // streams of all pods together that never run
	concurrentAsks = 4   // concurrent requests for the sessions of all pods
	longestAnswer  = 512 // KiB, which is the largest answer of a pod
	manyPodsMemory = 200 // MiB that the operator may use, of the 512 in the chart: it uses 155
	concurrentPods = 16
)

// manyPodAttempts: a tenant with very many pods exhausts neither the streams nor the memory of the operator.
func manyPodAttempts() []attempt {
	return []attempt{{
		name:  "very many pods open streams, and answer at the greatest length",
		apply: gateway(""),
		try: func(n *tenant) {
			peak, stop := n.peak()
			var idle, busy, asked atomic.Int64
			n.each(manyPods, func(i int) {
				pod, opened := fmt.Sprintf("pod-%d", i), &idle
				token := n.podToken(pod, labelsOf(n.name, "door"))
				if i < runningPods {
					opened = &busy
					n.must(run.Cluster.Patch(n.Context(), n.name, "pod/"+pod, types.MergePatchType,
						`{"status":{"phase":"Running","podIP":"192.0.2.77","podIPs":[{"ip":"192.0.2.77"}]}}`, "status"))
				}
				for range streamsOfPod {
					if n.follow(token, pod, &asked) == nil {
						opened.Add(1)
					}
				}
			})
			// The watch of the operator may deliver the address of a pod after its streams.
			if idle, busy := idle.Load(), busy.Load(); idle > idlePodStreams || busy < runningPods*streamsOfPod/2 {
				n.Errorf("pods that run have %d streams, others %d: want nearly %d, and at most %d", busy, idle,
					runningPods*streamsOfPod, idlePodStreams)
			}
			admin := n.systemToken("admin")
			n.during(manyPodsMemory, func() {
				n.each(concurrentAsks, func(int) {
					code, body, err := run.get(n.Context(), n.caller, admin, "/api/v1/gateways/"+n.name+"/door/sessions")
					n.must(err)
					n.Logf("sessions: status %d, %d bytes", code, len(body))
				})
			})
			if asked.Load() == 0 {
				n.Error("no pod was asked for its sessions")
			}
			n.authServiceStarts()
			stop()
			n.Logf("%d streams of pods that run, %d of others, %d requests to pods; the operator has used %.0f MiB",
				busy.Load(), idle.Load(), asked.Load(), peak())
			if used := peak(); used > manyPodsMemory {
				n.Errorf("the operator has used %.0f MiB, want at most %d", used, manyPodsMemory)
			}
		},
	}}
}

// authServiceStarts checks that an auth service that starts now gets the configs.
func (n *tenant) authServiceStarts() {
	n.Helper()
	token := n.systemToken("stunner-auth", audience)
	conn, response, err := websocket.Dial(n.Context(), run.Discovery+"/api/v1/configs?watch=true",
		&websocket.DialOptions{HTTPClient: n.caller, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		n.Fatalf("the auth service gets no stream: %v: %v", err, response)
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(32 << 20)
	if _, _, err := conn.Read(n.Context()); err != nil {
		n.Errorf("the auth service gets no config: %v", err)
	}
}

// each calls a function with the numbers below n, in several goroutines.
func (n *tenant) each(number int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(concurrentPods, number) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < number; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	workers.Wait()
}

// peak samples the memory of the operator in MiB until stop is called.
func (n *tenant) peak() (peak func() float64, stop func()) {
	var most float64
	ctx, cancel := context.WithCancel(n.Context())
	var sampler sync.WaitGroup
	sampler.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			most = max(most, n.memory())
		}
	})
	return func() float64 { return most }, func() { cancel(); sampler.Wait() }
}

// follow opens a stream of the tenant's Gateway, announces that it answers requests, and answers each with a body of
// the greatest length. It counts them in asked.
func (n *tenant) follow(token, pod string, asked *atomic.Int64) error {
	conn, _, err := websocket.Dial(n.Context(), run.Discovery+"/api/v1/configs/"+n.name+"/door?watch=true",
		&websocket.DialOptions{HTTPClient: n.caller, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		return err
	}
	n.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(32 << 20)
	ctx := context.WithoutCancel(n.Context())
	if err := conn.Write(ctx, websocket.MessageText,
		[]byte(`{"serves":{"pod":"`+pod+`","kind":"dataplane"}}`)); err != nil {
		return err
	}
	go func() {
		for {
			_, data, err := conn.Read(ctx)
			if err != nil {
				return
			}
			var frame struct{ Request *struct{ ID uint64 } }
			if json.Unmarshal(data, &frame) != nil || frame.Request == nil {
				continue
			}
			asked.Add(1)
			_ = conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"response":{"id":%d,"status":200,"body":{"x":"%s"}}}`,
				frame.Request.ID, strings.Repeat("x", longestAnswer<<10-len(`{"x":""}`))))
		}
	}()
	return nil
}

// systemToken returns a token of an account of the installation.
func (n *tenant) systemToken(account string, audiences ...string) string {
	n.Helper()
	as := *n
	as.Client = run.admin
	return as.tokenOf(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: account}}, nil, audiences...)
}
