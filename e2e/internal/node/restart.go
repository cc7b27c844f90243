package node

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Restart kills container engine and kubelet of the first node, and starts them again. Pods keep running. It returns
// when the new kubelet has reported to the API server.
func (c *Cluster) Restart(ctx context.Context) error {
	m := c.first
	for _, p := range []*harness.Process{m.kubelet, m.engine} {
		// The process is nsenter. The program is its child in the same process group. The shims of the pods are in other
		// groups.
		if err := syscall.Kill(-p.PID(), syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %s: %w", p.Name, err)
		}
		<-p.Done()
	}
	killed := time.Now()
	if err := errors.Join(m.startEngine(ctx), m.startKubelet()); err != nil {
		return err
	}
	err := m.kubelet.Until(ctx, func(ctx context.Context) error {
		lease, err := c.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, m.name, metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: killed})) {
			err = fmt.Errorf("the lease of node %s has not been renewed", m.name)
		}
		return err
	})
	return logged(m.kubelet, err)
}
