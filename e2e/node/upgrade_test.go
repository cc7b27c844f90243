//go:build node

package node_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// L-5: an installation is upgraded from charts and images of an earlier commit to the charts and images of this commit,
// and rolled back. Calls continue in their pods.
func TestUpgrade(t *testing.T) {
	for _, helm := range []string{"helm", "helm3"} {
		t.Run(helm, func(t *testing.T) {
			s := newTestNamespace(t)
			s.prepare()
			s.installEarlier(helm)
			s.follow(nil, firstGateway)
			s.kubectl("", "set", "resources", "deployment/echo", "--requests=cpu=100m")
			for _, d := range []string{"front-door", "echo"} {
				s.kubectl("", "rollout", "status", "deployment/"+d, "--timeout="+timeout.String())
			}
			m := s.newCaller()
			secret := m.secret()

			calls := []map[call.Network]*call.Call{m.start(t)}
			for _, b := range []block{{manual, "helm upgrade --install stunner-crds"}, {manual, "helm rollback"}} {
				old := m.pods(dataplanes)[0]
				s.follow([]string{helm}, b)
				m.until("another pod accepts new calls", func(context.Context) error {
					if pods := m.pods(dataplanes); len(pods) != 1 || pods[0].Name == old.Name {
						return fmt.Errorf("%d pods, the first is %s", len(pods), pods[0].Name)
					}
					return nil
				})
				m.wait("condition=Ready", "pod/"+m.pods(dataplanes)[0].Name)
				m.wait("condition=Programmed", "gateway/front-door")
				if was, is := program(old), program(m.pods(dataplanes)[0]); was == is {
					t.Errorf("%s: the image of the dataplane has not changed: %s", b.begins, is)
				}
				calls = append(calls, m.start(t))
				if m.secret() != secret {
					t.Errorf("%s has changed the credentials", b.begins)
				}
			}
			for _, more := range calls {
				for network, c := range more {
					m.echoes(t, network, c)
					m.end(t, network, c)
				}
			}
		})
	}
}

// installEarlier installs the earlier commit, with its charts packaged as a release.
func (s testNamespace) installEarlier(helm string) {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(harnesstest.Root(s.T), "bin/earlier", "*"))
	if err != nil || len(found) != 1 {
		s.Fatalf(
			"NO EARLIER VERSION TO UPGRADE FROM: bin/earlier has %d commits (%v): run `make e2e` in a clone with its history: git fetch --unshallow",
			len(found), err,
		)
	}
	if err := cluster.Import(s.Context(), filepath.Join(found[0], "images")); err != nil {
		s.Fatal(err)
	}
	// Low CPU requests, because up to three dataplane pods must fit on the small node.
	s.shell([]string{helm}, fmt.Sprintf(`cd %s
helm package --version 0.0.9 --app-version 0.0.9 %[2]s/stunner-crds %[2]s/stunner
helm install stunner-crds stunner-crds-0.0.9.tgz --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner-0.0.9.tgz --namespace stunner-system --set stunnerGatewayOperator.dataplane.spec.resources.requests.cpu=100m --wait`,
		s.TempDir(), filepath.Join(found[0], "charts")))
}

// program returns the ID of a pod's image, independent of its name.
func program(p corev1.Pod) string { return p.Status.ContainerStatuses[0].ImageID }

// secret returns the shared secret of credentials.
func (m caller) secret() string {
	m.Helper()
	system := testNamespace{m.T, home}
	return system.kubectl("", "get", "secret/stunner-turn-credentials", "--output=jsonpath={.data.secret}")
}
