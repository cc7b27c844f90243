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

// deletionCosts writes the annotation controller.kubernetes.io/pod-deletion-cost of dataplane pods, so that scale-in
// deletes the pods with the fewest allocations first. It runs on the leader.
type deletionCosts struct {
	reports *reports.Store
	client  client.Client // reads pods by name, without a cache
	log     *slog.Logger
	// written are the costs in the annotations of the pods, as this process has last written them. It also has entries
	// for reports that the method write ignores, because their pod does not belong to the Gateway.
	written map[discovery.ReportKey]int
}

// costInterval is the interval at which the pod deletion costs are updated.
const costInterval = 10 * time.Second

// drainingCost is lower than the cost of every pod that accepts clients, so draining pods are deleted first.
const drainingCost = -1

// run updates the costs until ctx ends.
func (c *deletionCosts) run(ctx context.Context, t *task) {
	c.written = map[discovery.ReportKey]int{} // a former leader may have changed the annotations
	ticker := time.NewTicker(costInterval)
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
				c.log.Debug("cannot write a deletion cost, will retry", "pod", r.Pod, "gateway", r.ID, "error", err)
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

// write writes the deletion cost of a pod if costDiffers, and returns the cost that the annotation then contains. It
// ignores a report whose pod does not exist or does not belong to the Gateway, and returns cost.
func (c *deletionCosts) write(ctx context.Context, key discovery.ReportKey, cost int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	old, known := c.written[key]
	if known && !costDiffers(old, cost) {
		return old, nil
	}
	namespace, gateway, _ := strings.Cut(key.ID, "/")
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := c.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: key.Pod}, pod); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return cost, nil // the pod was deleted, or the dataplane does not run in a pod
		}
		return 0, fmt.Errorf("read pod: %w", err)
	}
	// With AuthOff, any client can send a report for any pod. The labels prove that the pod belongs to this Gateway.
	if pod.Labels[manifest.AppLabel] != manifest.AppValue || pod.Labels[resource.RelatedGatewayName] != gateway {
		return cost, nil
	}
	if old, _ = strconv.Atoi(pod.Annotations[corev1.PodDeletionCost]); !costDiffers(old, cost) {
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

// costDiffers reports whether a cost differs from the old one by more than 10 %, or in sign. Smaller changes are not
// written, to limit the number of writes.
func costDiffers(old, cost int) bool {
	difference := max(old-cost, cost-old)
	return difference*10 > max(old, 0) || (old < 0) != (cost < 0)
}
