//go:build node

package node_test

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// L-5: the dataplane pods are replaced after a change of their labels, and the operator after a change of its image.
// Calls continue in their pods.
func everythingIsUpdated(s site) {
	old := s.open("", udpListener, tcpListener)
	addresses, peer := s.usual(), s.echo()
	calls := []*call.Call{s.dial(addresses[0], peer), s.dial(addresses[1], peer)}
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "-p", `{"spec":{"labels":{"ring":"two"}}}`)
	var now corev1.Pod
	s.until("only a pod with the label is ready", func(context.Context) (err error) {
		switch now, err = s.serving(old.Name); {
		case err != nil:
			return err
		case now.Labels["ring"] != "two":
			return errors.New("it has no such label")
		case len(s.pods(dataplanes)) > 1:
			return errors.New("the previous pod is not terminating yet")
		}
		return nil
	})
	later := []*call.Call{s.dialTo(now, addresses[0], peer), s.dialTo(now, addresses[1], peer)}
	s.goOn("pods with another label", calls...)
	s.hangUp(calls...)
	s.awaitExit(old.Name)

	system := testNamespace{s.T, home}
	image := system.kubectl(
		"", "get", "deployment", "stunner-operator", "--output=jsonpath={.spec.template.spec.containers[0].image}",
	)
	if err := cluster.Tag(s.Context(), image, image+"-next"); err != nil {
		s.Fatal(err)
	}
	for _, tag := range []string{"-next", ""} {
		system.kubectl("", "set", "image", "deployment/stunner-operator", "manager="+image+tag)
		system.kubectl("", "rollout", "status", "deployment", "stunner-operator", "--timeout="+timeout.String())
		s.goOn("another operator", later...)
	}
	if p, err := s.serving(""); err != nil || p.Name != now.Name || p.Status.ContainerStatuses[0].RestartCount != 0 {
		s.Errorf("the new operator has changed the dataplane: %v, pod %s was %s", err, p.Name, now.Name)
	}
	s.hangUp(append(later, s.dial(addresses[0], peer))...)
}
