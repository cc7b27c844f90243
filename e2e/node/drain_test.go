//go:build node

package node_test

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// R-28, L-5: the node of a dataplane pod is drained. Its calls continue there, new calls use a pod on another node,
// and the drain ends with the last call.
func nodeIsDrained(s site) {
	const second = "second"
	if err := cluster.Join(s.Context(), second); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := cluster.Leave(context.Background(), second); err != nil {
			s.Error(err)
		}
	})
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "-p", `{"spec":{"affinity":{"nodeAffinity":{
		"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,"preference":{"matchExpressions":[
		{"key":"kubernetes.io/hostname","operator":"In","values":["`+second+`"]}]}}]}}}}`)
	old := s.open("", udpListener, tcpListener)
	addresses, peer := s.usual(), s.echo()
	if old.Spec.NodeName != second {
		s.Fatalf("the dataplane is on node %s, want %s", old.Spec.NodeName, second)
	}
	calls := []*call.Call{s.dial(addresses[0], peer), s.dial(addresses[1], peer)}
	drained := make(chan error, 1)
	go func() {
		_, err := cluster.Kubectl(s.Context(), "drain", second, "--ignore-daemonsets", "--delete-emptydir-data")
		drained <- err
	}()
	var successor corev1.Pod
	s.until("a pod on another node is ready", func(context.Context) (err error) {
		successor, err = s.serving(old.Name)
		if err == nil && successor.Spec.NodeName == second {
			err = errors.New("it is on the same node")
		}
		return err
	})
	later := []*call.Call{s.dialTo(successor, addresses[0], peer), s.dialTo(successor, addresses[1], peer)}
	s.goOn("drain of the node", append(calls, later...)...)
	select {
	case err := <-drained:
		s.Fatalf("the drain did not wait for the calls: %v", err)
	default:
	}
	s.hangUp(calls...)
	select {
	case err := <-drained:
		if err != nil {
			s.Error(err)
		}
	case <-s.Context().Done():
	}
	s.hangUp(later...)
}
