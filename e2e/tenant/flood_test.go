package tenant

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
)

// Limits for the cost of a flood to others.
const (
	// for the changes of other tenants, in addition to four times their duration without the flood
	floodLatency = 5 * time.Second
	floodMemory  = 96  // growth in MiB
	floodMaps    = 60  // number of ConfigMaps of 900 kB each
	garbage      = 400 // tokens
)

// floodAttempts: the objects of a tenant exhaust neither the memory nor the time of the operator, for any number and
// size of objects.
func floodAttempts() []attempt {
	return []attempt{
		{
			name:  "routes of a tenant lead to many times more endpoints than a config holds",
			apply: gateway("") + flood("there"),
			try: func(n *tenant) {
				n.during(floodMemory, func() {
					for i := range 8 {
						for _, o := range n.read(floodRoute(fmt.Sprintf("way-%d", i), "name: door", 16, 16)) {
							n.must(objects.Apply(n.Context(), n, o))
						}
					}
				})
				n.must(run.admin.DeleteAllOf(n.Context(), &stunnerv1.UDPRoute{}, client.InNamespace(n.name)))
			},
		},
		{
			name: "a tenant has large ConfigMaps with the labels of the operator",
			try: func(n *tenant) {
				n.during(floodMemory, func() {
					for i := range floodMaps {
						n.must(n.Create(n.Context(), &corev1.ConfigMap{
							ObjectMeta: metav1.ObjectMeta{
								Namespace: n.name, Name: fmt.Sprintf("large-%d", i),
								Labels: map[string]string{"stunner.l7mp.io/owned-by": "stunner"},
							},
							Data: map[string]string{"much": strings.Repeat(strconv.Itoa(i%10), 900<<10)},
						}))
					}
				})
				n.must(run.admin.DeleteAllOf(n.Context(), &corev1.ConfigMap{}, client.InNamespace(n.name)))
			},
		},
		{
			name: "a tenant changes its Gateway continuously", apply: gateway(""),
			try: func(n *tenant) {
				n.during(floodMemory, func() {
					for i := range 60 {
						n.annotate("turn", strconv.Itoa(i))
					}
				})
			},
		},
		{
			name: "invalid tokens arrive continuously",
			try: func(n *tenant) {
				n.during(floodMemory, func() {
					var senders sync.WaitGroup
					for i := range 8 {
						senders.Go(func() {
							for j := range garbage / 8 {
								const header = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJzdHVubmVyLWRpc2NvdmVyeSJ9."
								code, _ := n.ask(fmt.Sprintf("%s%d-%d", header, i, j), "/api/v1/configs/"+first)
								switch code {
								case http.StatusUnauthorized, http.StatusServiceUnavailable, http.StatusTooManyRequests:
								default:
									n.Errorf("an invalid token gets status %d", code)
								}
							}
						})
					}
					senders.Wait()
				})
			},
		},
	}
}

// during runs a flood. During and after it, changes of others reach their clients, the operator is ready, and its
// memory grows by a number of MiB at most.
func (n *tenant) during(growth float64, flood func()) {
	n.Helper()
	change := func() time.Duration {
		n.Helper()
		begun := time.Now()
		if err := run.ChangeRoutes(n.Context()); err != nil {
			n.Error(err)
		}
		return time.Since(begun)
	}
	usual, before := change(), n.memory()
	done := make(chan struct{})
	go func() {
		defer close(done)
		flood()
	}()
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		if took := change(); took > floodLatency+4*usual {
			n.Errorf("changes of others take %s, and %s without the flood", took, usual)
		}
		if err := harness.Answers(run.Health+"/ready", http.StatusOK)(n.Context()); err != nil {
			n.Errorf("meanwhile: %v", err)
		}
	}
	n.settle()
	if after := n.memory(); after > before+growth {
		n.Errorf("the memory of the operator has grown by %.0f MiB", after-before)
	}
}

// memory returns the memory of the operator in MiB.
func (n *tenant) memory() float64 {
	n.Helper()
	bytes, err := harness.Metric(n.Context(), run.Health+"/metrics", "process_resident_memory_bytes")
	n.must(err)
	return bytes / (1 << 20)
}
