package kube

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
)

// A refused pod is in the state of the rollout until it reports, or until it was not refused for refusedPeriod. The
// name of the first one stays.
func TestRefusedPods(t *testing.T) {
	accepted := func(pod string) discovery.Report {
		return discovery.Report{ID: "media/edge", Pod: pod, Revision: "1", Accepted: true}
	}
	synctest.Test(t, func(t *testing.T) {
		f := newRollouts(reports.New(slog.New(slog.DiscardHandler)), newInbox())
		f.refused(gatewayKey, "old", time.Now()) // of a Gateway without a published config
		f.publish(gatewayKey, "1")
		r := f.rollouts[gatewayKey]
		expect := func(when, pod string, all bool, latest ...discovery.Report) {
			t.Helper()
			if s := r.evaluate(latest, time.Now()); s.RefusedPod != pod || s.AllRefused != all {
				t.Errorf("%s: pod %q, all %t, want %q, %t", when, s.RefusedPod, s.AllRefused, pod, all)
			}
		}
		expect("nothing was refused", "", false)
		f.refused(gatewayKey, "old", time.Now())
		expect("one was refused", "old", true)
		expect("another one reports", "old", false, accepted("new"))
		f.refused(gatewayKey, "older", time.Now())
		expect("a second one was refused", "old", true)
		expect("it reports", "", false, accepted("old"))

		f.refused(gatewayKey, "old", time.Now())
		time.Sleep(refusedPeriod - time.Second)
		expect("shortly before the period ends", "old", true)
		if list := f.unsettled(); len(list) != 1 {
			t.Errorf("%d Gateways are evaluated again as time passes, want 1", len(list))
		}
		time.Sleep(time.Second)
		expect("after the period", "", false)
	})
}
