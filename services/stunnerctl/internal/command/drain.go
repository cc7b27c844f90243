package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

// Labels of dataplane pods.
const (
	podSelector           = "app=stunner"
	labelGateway          = "stunner.l7mp.io/related-gateway-name"
	labelGatewayNamespace = "stunner.l7mp.io/related-gateway-namespace"
)

const drainInFolder = "a file provider has no pods: remove the Gateway from the input folder, or stop the operator; " +
	"the calls have --stop-grace of the operator to finish"

func newDrain(g *globals) *cobra.Command {
	var wait bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "drain POD",
		Short: "Evict a dataplane pod and let its calls finish",
		Long: `Evicts a dataplane pod by the Eviction API, which respects PodDisruptionBudgets.
The pod refuses new calls, keeps its calls until they end or its grace period
is over, and its workload starts another pod at once.

--wait prints the number of remaining calls until the pod is gone. Ctrl-C ends
the waiting, and not the draining.

Needs the right to create pods/eviction.`,
		Example: `  stunnerctl drain frankfurt-7d9c8b-x2x4q -n media --wait`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if timeout < 0 || timeout > 0 && !wait {
				return usagef("--timeout %s: give a positive time, and --wait", timeout)
			}
			s, err := g.open()
			if err != nil {
				return err
			}
			cluster, err := connect.AsCluster(s, "drain", drainInFolder)
			if err != nil {
				return usageError{err}
			}
			name, err := g.parseName(args[0])
			if err != nil {
				return err
			}
			if timeout > 0 {
				ctx, cancel := context.WithTimeoutCause(c.Context(), timeout,
					fmt.Errorf("pod %s still drains after --timeout %s", name, timeout))
				defer cancel()
				c.SetContext(ctx)
			}
			pod, err := g.evict(c.Context(), cluster, name)
			if err != nil || !wait {
				return err
			}
			return g.awaitDrained(c.Context(), cluster, pod)
		},
		ValidArgsFunction: g.completePods,
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until the pod is gone, and print its remaining calls")
	c.Flags().DurationVar(&timeout, "timeout", 0, "end --wait with an error after this time; 0 waits without limit")
	return c
}

func (g *globals) evict(ctx context.Context, c *connect.Cluster, name types.NamespacedName) (*corev1.Pod, error) {
	pods := c.Client.CoreV1().Pods(name.Namespace)
	pod, err := pods.Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("drain pod %s: %w", name, err)
	}
	if pod.Labels["app"] != "stunner" || pod.Labels[labelGateway] == "" {
		return nil, fmt.Errorf(
			"drain pod %s: it is no dataplane of a Gateway: see kubectl get pods -A -l %s",
			name,
			podSelector,
		)
	}
	if pod.DeletionTimestamp != nil {
		g.note("Pod %s drains already.", name)
		return pod, nil
	}
	err = c.Client.PolicyV1().Evictions(name.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	switch {
	case apierrors.IsTooManyRequests(err):
		return nil, fmt.Errorf(
			"drain pod %s: a PodDisruptionBudget forbids it now: wait until its other pods are ready, or see "+
				"kubectl get pdb -n %s: %w",
			name,
			name.Namespace,
			err,
		)
	case err != nil:
		return nil, fmt.Errorf("drain pod %s: %w", name, err)
	}
	g.note("Pod %s drains: it refuses new calls.", name)
	return pod, nil
}

// awaitDrained waits until the pod no longer exists.
func (g *globals) awaitDrained(ctx context.Context, c *connect.Cluster, pod *corev1.Pod) error {
	gateway := types.NamespacedName{
		Namespace: pod.Labels[labelGatewayNamespace], Name: pod.Labels[labelGateway],
	}
	last, unknown := "", false
	for {
		found, err := c.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && found.UID != pod.UID:
			g.note("Pod %s/%s is gone.", pod.Namespace, pod.Name)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("wait for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		left, err := remainingOf(ctx, c, gateway, pod.Name)
		switch {
		case err == nil && left != last:
			g.note("%s", left)
			last = left
		case err != nil && !unknown && ctx.Err() == nil:
			g.note("The number of remaining calls is unknown: %v", err)
			unknown = true
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}

// remainingOf returns a sentence about the calls of a pod that drains.
func remainingOf(ctx context.Context, s connect.Source, gateway types.NamespacedName, pod string) (string, error) {
	list, err := s.Ask(ctx, connect.Request{Gateway: gateway, Path: "status"})
	if err != nil {
		return "", err
	}
	for _, item := range list.Items {
		if a := answerOf[inspection.Status](gateway.String(), item); a.pod == pod {
			if a.problem != "" {
				return "", errors.New(a.problem)
			}
			return remaining(a.value), nil
		}
	}
	return "", errors.New("the pod has left the operator")
}

func remaining(s inspection.Status) string {
	if s.Drain == nil {
		return fmt.Sprintf("%d calls remain.", s.AllocationCount)
	}
	return fmt.Sprintf("%d calls remain: %s.", s.AllocationCount, s.Drain)
}
