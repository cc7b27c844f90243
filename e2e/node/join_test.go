//go:build node

package node_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestJoin tests the harness: pods of a joined node are reachable, a drain moves them, and the node leaves no trace.
func TestJoin(t *testing.T) {
	const second = "second"
	s := newTestNamespace(t)
	if err := cluster.Join(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Leave(context.Background(), second); err != nil {
			t.Error(err)
		}
		if nodes, err := cluster.Kubectl(context.Background(), "get", "nodes", "--output=name"); err != nil ||
			strings.TrimSpace(nodes) != "node/node" {
			t.Errorf("nodes after %s has left: %s %v", second, nodes, err)
		}
	})
	s.apply("testdata/echo.yaml")
	s.kubectl(
		"", "patch", "deployment", "echo", "--patch",
		`{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"second"}}}}}`,
	)
	s.kubectl("", "rollout", "status", "deployment/echo", "--timeout="+timeout.String())
	pod := s.pods("app=echo")[0]
	if pod.Spec.NodeName != second {
		t.Fatalf("the pod is on node %s", pod.Spec.NodeName)
	}
	address := s.address("echo")
	// The datagrams pass the first node, because the address of the Service is routed to it.
	s.until(
		"datagrams are echoed through both nodes",
		func(context.Context) error { return bounce(netip.AddrPortFrom(address, 7002)) },
	)
	s.until("the API server reaches the pod by its own address", func(ctx context.Context) error {
		_, err := cluster.Client.CoreV1().Pods(s.namespace).ProxyGet("http", pod.Name, "7000", "/", nil).DoRaw(ctx)
		if apierrors.IsMethodNotSupported(err) { // response of the echo to GET
			return nil
		}
		return fmt.Errorf("the response is not from the pod: %w", err)
	})
	s.kubectl(
		"", "patch", "deployment", "echo", "--type=json", "--patch",
		`[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]`,
	)
	if _, err := cluster.Kubectl(
		t.Context(), "drain", second, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+timeout.String(),
	); err != nil {
		t.Fatal(err)
	}
	s.wait("condition=Available", "deployment/echo")
	s.until("datagrams are echoed from the first node", func(context.Context) error {
		if pods := s.pods("app=echo"); len(pods) != 1 || pods[0].Spec.NodeName == second {
			return fmt.Errorf("%d pods", len(pods))
		}
		return bounce(netip.AddrPortFrom(address, 7002))
	})
}
