package kube

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// The inspection API lists the running pods of a Gateway with the reason why one may be silent, from the trimmed pods
// of the cache.
func TestRunningPodsHaveAReasonToBeSilent(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "long"}}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 2}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		phase     corev1.PodPhase
		state     corev1.ContainerState
		deleted   bool
		ofAnother bool
		want      string
	}{
		"runs":                    {phase: corev1.PodRunning, state: runs, want: inspection.NotConnected},
		"drains":                  {phase: corev1.PodRunning, state: runs, deleted: true, want: inspection.NotConnected},
		"waits for its restart":   {phase: corev1.PodRunning, state: waiting, want: "its container does not run: CrashLoopBackOff"},
		"has crashed":             {phase: corev1.PodRunning, state: over, want: "its container does not run: Error"},
		"has ended its drain":     {phase: corev1.PodRunning, state: over, deleted: true},
		"is not started":          {phase: corev1.PodPending, state: waiting},
		"has failed":              {phase: corev1.PodFailed, state: over},
		"belongs to another":      {phase: corev1.PodRunning, state: runs, ofAnother: true},
		"has no container status": {phase: corev1.PodRunning, want: inspection.NotConnected},
		"is on a lost node":       {phase: corev1.PodRunning, state: runs, deleted: true, want: inspection.NotConnected},
	} {
		pod := relayPod()
		pod.Status = corev1.PodStatus{Phase: c.phase, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "tap", State: waiting}, {Name: manifest.ContainerName, State: c.state},
		}}
		if c.deleted {
			pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kept/for-the-test"}
		}
		if c.ofAnother {
			pod.Labels[resource.RelatedGatewayName] = "window"
		}
		trimmed, err := trimPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		kept := trimmed.(*corev1.Pod)
		kept.Finalizers = pod.Finalizers // without one, the fake client refuses a deleted object
		index := &podIndex{ready: make(chan struct{}), cache: fake.NewClientBuilder().WithObjects(kept).Build()}
		if _, err := index.inspected("media/door"); err == nil {
			t.Errorf("%s: the pods are known before they are listed", name)
		}
		close(index.ready)
		want := map[string]string{}
		if c.want != "" {
			want["relay"] = c.want
		}
		if got, err := index.inspected("media/door"); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}

// The streams of a pod are authorized again when another pod has its name, when it belongs to another Gateway, when it
// is deleted, and when its node reports its first address.
func TestChangedPodsAreAuthorizedAgain(t *testing.T) {
	changed := 0
	h := podHandler(func(*corev1.Pod) { changed++ })
	for name, c := range map[string]struct {
		change func(before, now *corev1.Pod)
		want   int
	}{
		"nothing":       {func(_, _ *corev1.Pod) {}, 0},
		"phase":         {func(_, now *corev1.Pod) { now.Status.Phase = corev1.PodRunning }, 0},
		"uid":           {func(_, now *corev1.Pod) { now.UID = "other" }, 1},
		"label":         {func(_, now *corev1.Pod) { now.Labels[resource.RelatedGatewayName] = "window" }, 1},
		"first address": {func(_, now *corev1.Pod) { now.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}} }, 1},
		"address is known": {func(before, now *corev1.Pod) {
			before.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}}
			now.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
		}, 0},
	} {
		before, now := relayPod(), relayPod()
		changed = 0
		c.change(before, now)
		if h.OnUpdate(before, now); changed != c.want {
			t.Errorf("%s: authorized again %d times, want %d", name, changed, c.want)
		}
	}
	changed = 0
	if h.OnDelete(relayPod()); changed != 1 {
		t.Error("the streams of a deleted pod are not authorized again")
	}
}
