package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// costs write on each pod what its deletion would cost, so that scale-in takes the pod with the fewest calls. The leader does.
type deletionCosts struct {
	reports *reports.Store
	client  client.Client // reads pods by name, without a cache
	log     *slog.Logger
	// written is what stands on the pods.
	written map[discovery.ReportKey]int
}

// costEvery is how often costs are looked at. What a pod has gained or lost meanwhile by less than a tenth is not worth a write.
const (
	costEvery = 10 * time.Second
	worth     = 10
)

// drainingCost is less than that of any pod that takes clients: who is on the way out goes first.
const drainingCost = -1

// run writes until ctx ends.
func (c *deletionCosts) run(ctx context.Context, t *task) {
	c.written = map[discovery.ReportKey]int{} // somebody else may have led meanwhile
	ticker := time.NewTicker(costEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		known := map[discovery.ReportKey]int{}
		for _, r := range c.reports.All() {
			t.begin()
			key := discovery.ReportKey{ID: r.ID, Pod: r.Pod}
			cost, err := c.write(ctx, key, costOf(r))
			if err != nil {
				c.log.Debug("write cost of deletion, to be tried again", "pod", r.Pod, "gateway", r.ID, "error", err)
				continue
			}
			known[key] = cost
		}
		t.end()
		c.written = known
	}
}

func costOf(r discovery.Report) int {
	if r.Draining {
		return drainingCost
	}
	return min(r.Allocations, math.MaxInt32)
}

// write brings the cost of a pod up to date if that is worth it, and returns what stands there.
func (c *deletionCosts) write(ctx context.Context, key discovery.ReportKey, cost int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	old, known := c.written[key]
	if known && !worthwhile(old, cost) {
		return old, nil
	}
	namespace, gateway, _ := strings.Cut(key.ID, "/")
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := c.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: key.Pod}, pod); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return cost, nil // it is gone, or is none
		}
		return 0, fmt.Errorf("read pod: %w", err)
	}
	// A report is the word of a pod about itself, if config discovery asks for tokens. Otherwise it is anybody's.
	if pod.Labels[manifest.AppLabel] != manifest.AppValue || pod.Labels[resource.RelatedGatewayName] != gateway {
		return cost, nil
	}
	if old, _ = strconv.Atoi(pod.Annotations[corev1.PodDeletionCost]); !worthwhile(old, cost) {
		return old, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]string{corev1.PodDeletionCost: strconv.Itoa(cost)},
	}})
	if err != nil {
		return 0, err
	}
	err = c.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("patch pod: %w", err)
	}
	return cost, nil
}

// worthwhile tells whether a cost differs from another by more than a tenth.
func worthwhile(old, cost int) bool {
	gap := max(old-cost, cost-old)
	return gap*worth > max(old, 0) || (old < 0) != (cost < 0)
}
