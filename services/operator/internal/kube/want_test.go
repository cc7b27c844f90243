package kube

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Only a changed desired state is queued.
func TestOnlyAChangedDesiredStateIsQueued(t *testing.T) {
	w := newWriter(nil, nil, nil, newInbox(), newMeters(), nil, slog.New(slog.DiscardHandler))
	w.queue.fairWrites = newFairWrites()
	defer w.queue.ShutDown()
	unit := translate.ObjectRef{
		Kind: translate.KindGateway, NamespacedName: types.NamespacedName{Namespace: "media", Name: "edge"},
	}
	saying := func(reason, version string) desired {
		conditions := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: reason}}
		return desired{ours: true, status: gwapiv1.GatewayStatus{Conditions: conditions}, version: version}
	}
	for _, c := range []struct {
		name    string
		desired desired
		look    bool
	}{
		{"the first", saying("Accepted", "1"), true},
		{"the same", saying("Accepted", "1"), false},
		{"another status", saying("Pending", "1"), true},
		{"for another version", saying("Pending", "2"), true},
		{"the same again", saying("Pending", "2"), false},
	} {
		w.set(unit, c.desired)
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

// Changed endpoints are written to the standby Secret with a delay, all other changes at once.
func TestWantWritesTheStandbyConfigOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(nil, nil, nil, newInbox(), newMeters(), nil, slog.New(slog.DiscardHandler))
		w.queue.fairWrites = newFairWrites()
		defer w.queue.ShutDown()
		unit := translate.ObjectRef{
			Kind: translate.KindGateway, NamespacedName: types.NamespacedName{Namespace: "media", Name: "edge"},
		}
		with := func(endpoint, secret string, made ...resource.Object) desired {
			return desired{ours: true, uid: "a", objects: made, complete: true, standby: &config.Config{
				Auth:     config.Auth{Type: config.AuthType(secret)},
				Clusters: []config.Cluster{{Endpoints: []string{endpoint}}},
			}}
		}
		looksFor := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if got := w.queue.Len(); got != want {
				t.Errorf("%s: looked at %d times, want %d", what, got, want)
			}
			for w.queue.Len() > 0 {
				u, _ := w.queue.Get()
				w.queue.Done(u)
			}
		}
		w.set(unit, with("1", "a"))
		looksFor("the first", 1)
		for _, endpoint := range []string{"2", "3", "4"} {
			w.set(unit, with(endpoint, "a"))
			time.Sleep(time.Second)
			looksFor("other endpoints", 0)
		}
		time.Sleep(standbyPause - 3*time.Second)
		looksFor("after a while", 1)
		w.set(unit, with("4", "b"))
		looksFor("other credentials", 1)
		w.set(unit, with("5", "b", &corev1.Service{}))
		looksFor("a Service as well", 1)
		w.set(unit, desired{ours: true, uid: "a", version: "2"})
		if want := w.desired[unit]; want.standby == nil || want.standby.Clusters[0].Endpoints[0] != "5" {
			t.Error("while something is wrong the Secret is not wanted any more")
		}
	})
}

// Without a new config, the objects of a Gateway stay desired, so that deleted objects are recreated. They are not
// desired for another Gateway with the same name.
func TestWantKeepsTheObjectsOfAHeldGateway(t *testing.T) {
	w := newWriter(nil, nil, nil, newInbox(), newMeters(), nil, slog.New(slog.DiscardHandler))
	unit := translate.ObjectRef{
		Kind: translate.KindGateway, NamespacedName: types.NamespacedName{Namespace: "media", Name: "edge"},
	}
	made := []resource.Object{&corev1.Service{}}
	for _, c := range []struct {
		name    string
		desired desired
		want    int
	}{
		{"wrong from the beginning", desired{ours: true, uid: "a"}, 0},
		{"right", desired{ours: true, uid: "a", objects: made, complete: true}, 1},
		{"wrong", desired{ours: true, uid: "a", version: "2"}, 1},
		{"still wrong", desired{ours: true, uid: "a", version: "3"}, 1},
		{"another one of its name, and wrong", desired{ours: true, uid: "b"}, 0},
		{"right again", desired{ours: true, uid: "b", objects: made, complete: true}, 1},
		{"given away", desired{uid: "b", complete: true}, 0},
	} {
		w.set(unit, c.desired)
		want := w.desired[unit]
		if len(want.objects) != c.want || want.version != c.desired.version || want.ours != c.desired.ours {
			t.Errorf("%s: %d objects for version %q, want %d", c.name, len(want.objects), want.version, c.want)
		}
		if c.want > 0 && !want.complete {
			t.Errorf("%s: what is not wanted any more is not swept", c.name)
		}
	}
}
