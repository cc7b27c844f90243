//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// R-02, L-3: a dataplane pod is deleted while the operator is unavailable. Its calls continue until they end, and the
// next pod serves the standby config. When the operator is available again, no call is disturbed.
func operatorAway(s site) {
	system := testNamespace{s.T, home}
	old := s.open("", udpListener, tcpListener)
	addresses, peer := s.usual(), s.echo()
	before := s.dial(addresses[0], peer)
	calm := s.dial(addresses[1], peer)

	replicas := "--replicas=" + system.kubectl(
		"", "get", "deployment", "stunner-operator", "--output=jsonpath={.spec.replicas}",
	)
	system.kubectl("", "scale", "deployment", "stunner-operator", "--replicas=0")
	s.Cleanup(func() {
		back := []string{"scale", "deployment", "stunner-operator", replicas, "--namespace=" + home}
		if _, err := cluster.Kubectl(context.Background(), back...); err != nil {
			s.Error(err)
		}
	})
	s.until("no operator is running", func(ctx context.Context) error {
		left, err := cluster.Client.CoreV1().Pods(home).List(
			ctx, metav1.ListOptions{LabelSelector: "app=stunner-operator"},
		)
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods of the operator are left", len(left.Items))
		}
		return err
	})
	s.goOn("the operator is stopped", before, calm)

	s.kubectl("", "delete", "pod", old.Name, "--wait=false")
	var next corev1.Pod
	s.until(
		"a pod without an operator is ready",
		func(context.Context) (err error) { next, err = s.serving(old.Name); return err },
	)
	if status := page(s.testNamespace, next.Name, 8086, "status"); !strings.Contains(status, "standby config") {
		s.Errorf("the status does not report the standby config: %s", status)
	}
	after := s.dialTo(next, addresses[0], peer)
	late := s.dialTo(next, addresses[1], peer)
	s.goOn("the pod is terminating", before, calm)
	s.hangUp(before, calm)
	s.awaitExit(old.Name)

	system.kubectl("", "scale", "deployment", "stunner-operator", replicas)
	system.wait("condition=Available", "deployment/stunner-operator")
	s.until("the pod is connected to the operator", func(context.Context) error {
		if status := page(s.testNamespace, next.Name, 8086, "status"); strings.Contains(status, "standby config") {
			return errors.New("it still runs the standby config: " + status)
		}
		return nil
	})
	s.goOn("the operator is back", after, late)
	s.hangUp(after, late)
	if now := s.kubectl(
		"", "get", "pod", next.Name,
		"--output=jsonpath={.status.containerStatuses[0].restartCount} {.metadata.deletionTimestamp}",
	); now != "0" {
		s.Errorf("restarts and deletion of the pod: %s", now)
	}
}
