package tenant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/objects"
)

// Limits for the cost of a flood to others.
const (
	floodLatency = 5 * time.Second // of a change of the victim, on a loaded machine
	floodMemory  = 96              // MiB more than before
	floodMaps    = 60              // ConfigMaps of 900 kB
	garbage      = 400             // tokens
)

// floodAttempts: the objects of a tenant, whatever their number and size, use up neither the memory of the operator nor
// its time.
func floodAttempts() []attempt {
	return []attempt{
		{
			name:  "routes of a tenant lead to many times more endpoints than a config holds",
			apply: gateway("") + flood("there"),
			try: func(n *tenant) {
				n.during(func() {
					var list []*unstructured.Unstructured
					for i := range 8 {
						list = append(list, n.read(
							strings.ReplaceAll(floodRoute(n.name, "door", 16, 16), "NAME", fmt.Sprintf("way-%d", i)),
						)...)
					}
					for _, o := range list {
						n.must(objects.Apply(n.Context(), n, o))
					}
				})
				n.remove("UDPRoute", "stunner.l7mp.io/v1")
			},
		},
		{
			name:  "a tenant has large ConfigMaps with the labels of the operator",
			apply: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: idle}}`,
			try: func(n *tenant) {
				n.during(func() {
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
				n.must(house.DeleteAllOf(n.Context(), &corev1.ConfigMap{}, client.InNamespace(n.name)))
			},
		},
		{
			name:  "a tenant changes its Gateway continuously",
			apply: gateway(""),
			try: func(n *tenant) {
				n.during(func() {
					for i := range 60 {
						n.must(n.Patch(n.Context(), n.read(gateway(""))[0], mergePatch(map[string]any{
							"metadata": map[string]any{"annotations": map[string]any{"turn": strconv.Itoa(i)}},
						})))
					}
				})
			},
		},
		{
			name: "invalid tokens arrive continuously",
			try: func(n *tenant) {
				n.during(func() {
					var senders sync.WaitGroup
					for i := range 8 {
						senders.Go(func() {
							for j := range garbage / 8 {
								code, _ := n.ask(fmt.Sprintf(
									"eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJzdHVubmVyLWRpc2NvdmVyeSJ9.%d-%d", i, j,
								), "/api/v1/configs/victim/front-door")
								if code != http.StatusUnauthorized && code != http.StatusServiceUnavailable &&
									code != http.StatusTooManyRequests {
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

// during runs a flood. During and after it, changes of the victim are published, the operator is ready, and its memory
// stays limited.
func (n *tenant) during(flood func()) {
	n.Helper()
	before := memory(n)
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
		begun := time.Now()
		if err := house.victim.proceeds(n.Context(), "victim/front-door"); err != nil {
			n.Errorf("meanwhile: %v", err)
		} else if took := time.Since(begun); took > floodLatency {
			n.Errorf("a change of the victim was published after %s", took)
		}
		if err := bed.Answers("http://"+house.health+"/ready", http.StatusOK)(n.Context()); err != nil {
			n.Errorf("meanwhile: %v", err)
		}
	}
	<-done
	n.settles()
	if after := memory(n); after > before+floodMemory {
		n.Errorf("the memory of the operator has grown by %d MiB", after-before)
	}
}

// memory returns the memory of the operator in MiB.
func memory(n *tenant) int {
	n.Helper()
	_, after, _ := strings.Cut(readFile(n, fmt.Sprintf("/proc/%d/status", house.operator.PID())), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	n.must(err)
	return kib / 1024
}

func readFile(n *tenant, path string) string {
	n.Helper()
	text, err := os.ReadFile(path)
	n.must(err)
	return string(text)
}

// remove deletes all objects of a kind in the namespace.
func (n *tenant) remove(kind, apiVersion string) {
	n.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	n.must(house.DeleteAllOf(n.Context(), o, client.InNamespace(n.name)))
}

// noSecretIsExposed checks that there are no secrets in the ConfigMaps, events, statuses, logs and metrics of the whole
// cluster.
func noSecretIsExposed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := &tenant{T: t, found: map[string]bool{}}
	maps, events := &corev1.ConfigMapList{}, &eventsv1.EventList{}
	n.must(errors.Join(house.List(ctx, maps), house.List(ctx, events)))
	for _, m := range maps.Items {
		n.finds("ConfigMap "+m.Namespace+"/"+m.Name, []byte(fmt.Sprint(m.Data)))
	}
	for _, e := range events.Items {
		n.finds("event of "+e.Regarding.Namespace+"/"+e.Regarding.Name, []byte(e.Note))
	}
	for kind, gvk := range kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		n.must(house.List(ctx, list))
		for _, o := range list.Items {
			n.finds("status of "+kind+" "+o.GetNamespace()+"/"+o.GetName(), []byte(fmt.Sprint(o.Object["status"])))
		}
	}
	n.finds("log of the operator", []byte(house.operator.Output()))
	n.finds("log of the auth service", []byte(house.auth.Output()))
	_, metrics, err := bed.Get(ctx, "http://"+house.health+"/metrics")
	n.must(err)
	n.finds("metrics of the operator", metrics)
}
