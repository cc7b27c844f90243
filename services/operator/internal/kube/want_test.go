package kube

import (
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// What is wanted already is not compared with the cluster again; anything else is.
func TestWantLooksAtWhatIsNew(t *testing.T) {
	w := newWriter(nil, nil, newMeters(), nil, slog.New(slog.DiscardHandler))
	w.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[translate.Unit]())
	defer w.queue.ShutDown()
	unit := translate.Unit{Kind: translate.KindGateway, NamespacedName: types.NamespacedName{Namespace: "media", Name: "edge"}}
	saying := func(reason, version string) job {
		conditions := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: reason}}
		return job{ours: true, status: gwapiv1.GatewayStatus{Conditions: conditions}, version: version}
	}
	for _, c := range []struct {
		name string
		job  job
		look bool
	}{
		{"the first", saying("Accepted", "1"), true},
		{"the same", saying("Accepted", "1"), false},
		{"another status", saying("Pending", "1"), true},
		{"for another version", saying("Pending", "2"), true},
		{"the same again", saying("Pending", "2"), false},
	} {
		w.want(unit, c.job)
		if looks := w.queue.Len() == 1; looks != c.look {
			t.Errorf("%s: looked at %t, want %t", c.name, looks, c.look)
			continue
		}
		if c.look {
			u, _ := w.queue.Get()
			w.queue.Done(u)
		}
	}
}
