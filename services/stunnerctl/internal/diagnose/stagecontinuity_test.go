package diagnose

import (
	"slices"
	"testing"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// A Gateway with a single pod has no finding about forwarding.
func TestASinglePodDoesNotForward(t *testing.T) {
	off := &inspection.Status{Forwarding: &inspection.ForwardingStatus{Problem: "there is no list"}}
	for pods, want := range map[int]int{1: 0, 2: 2} {
		g := &Gateway{Gateway: &gwapiv1.Gateway{}, Statuses: slices.Repeat([]*inspection.Status{off}, pods)}
		got := 0
		for _, r := range continuityRules {
			got += len(r.Check(nil, g))
		}
		if got != want {
			t.Errorf("%d pods: %d findings, want %d", pods, got, want)
		}
	}
}
