package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// K-05: with --watch-namespaces, the operator has Roles in these namespaces, and neither reads nor writes in others.
func TestWatchNamespacesLimitsAccess(t *testing.T) {
	t.Parallel()
	s, root := prepare(t, t.TempDir(), nameOf(t)), harnesstest.Root(t)
	s.grant(s.kustomize(root))
	s.grant(s.kubectl("kustomize", filepath.Join(root, "kustomize/components/namespaced/watched")))
	s.await(func(ctx context.Context) error {
		allowed, err := control.May(ctx, s.user(), "list", "secrets", "default")
		if err == nil && allowed {
			err = errors.New("the operator may still list Secrets in all namespaces")
		}
		return err
	})
	s.may("list", "gateways.gateway.networking.k8s.io", s.name)
	s.may("create", "events.events.k8s.io", "default")
	s.may("create", "subjectaccessreviews.authorization.k8s.io", "")

	other := s.name + "-other"
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + other + "}}")
	s.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: back-door, namespace: %s}
spec:
  gatewayClassName: %s
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`, other, s.name))
	begun := time.Now()
	s.start() // start sets --watch-namespaces
	s.Cleanup(s.nothingForbidden(begun))
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.remove("configmap/front-door")
	s.sees("configmap/front-door", ".metadata.name", "front-door")
	if _, code := s.page(
		fmt.Sprintf("http://127.0.0.1:%d/api/v1/configs/%s/back-door", s.discovery, other),
	); code != http.StatusNotFound {
		t.Errorf("config of a Gateway in another namespace: status %d", code)
	}
	all, err := control.Audit(begun)
	s.must(err)
	for _, reads := range []string{
		"get secret any", "list secrets", "get configmap any", "patch deployment any", "create service any",
	} {
		if out, err := control.Kubectl(
			t.Context(),
			append(append([]string{"auth", "can-i"}, strings.Fields(reads)...), "-n", other, "--as", s.user())...,
		); err == nil {
			t.Errorf("the token of the operator may %s in another namespace: %s", reads, out)
		}
	}
	seen := 0
	for _, e := range all {
		switch {
		case e.User != s.user():
		case e.Namespace == s.name || e.Namespace == "default" && e.Resource == "events":
			seen++
		case e.Namespace != "" || e.Resource == "secrets" || e.Resource == "gateways" || e.Resource == "services":
			t.Errorf("%s %s in namespace %q", e.Verb, e.Resource, e.Namespace)
		}
	}
	if seen == 0 {
		t.Error("the audit log has no request of the operator")
	}
}

// kustomize renders the RBAC objects of an operator with --watch-namespaces.
func (s *installation) kustomize(root string) string {
	s.Helper()
	folder := filepath.Join(s.dir, "rights")
	s.must(os.Mkdir(folder, 0o700))
	base, err := filepath.Rel(folder, filepath.Join(root, "kustomize"))
	s.must(err)
	s.must(os.WriteFile(filepath.Join(folder, "kustomization.yaml"), fmt.Appendf(nil,
		"resources: [%[1]s/base/rbac.yaml, %[1]s/base/inspection.yaml]\ncomponents: [%[1]s/components/namespaced]\n", base), 0o600))
	return s.kubectl("kustomize", folder, "--load-restrictor", "LoadRestrictionsNone")
}
