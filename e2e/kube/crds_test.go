package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// The CRDs of the chart serve UDPRoutes of the Gateway API in version v1alpha2, which existing manifests have, and in
// version v1, as which they are stored.
func TestCRDs_ServeUDPRoutesOfBothVersions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bare, err := cluster.Start(ctx, cluster.Options{Bare: true, Still: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bare.Stop(); err != nil {
			t.Error(err)
		}
	})
	root, err := bed.Root()
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := bare.Kubectl(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	kubectl("create", "-k", filepath.Join(root, "charts/stunner-crds/files/gateway-api"))
	kubectl("wait", "--for=condition=Established", "--timeout=1m", "crd", "udproutes.gateway.networking.k8s.io")
	for _, version := range []string{"v1alpha2", "v1"} {
		file := filepath.Join(t.TempDir(), "route.yaml")
		text := strings.ReplaceAll(`
apiVersion: gateway.networking.k8s.io/VERSION
kind: UDPRoute
metadata: {namespace: default, name: of-VERSION}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: media, port: 1}]}]
`, "VERSION", version)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := bed.Until(ctx, func(ctx context.Context) error {
			_, err := bare.Kubectl(ctx, "apply", "-f", file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"v1alpha2", "v1"} {
		got := kubectl("get", "udproutes."+version+".gateway.networking.k8s.io", "-o", "jsonpath={.items[*].metadata.name}")
		if !strings.HasSuffix(strings.TrimSpace(got), "of-v1 of-v1alpha2") {
			t.Errorf("version %s lists %q", version, got)
		}
	}
	stored := kubectl("get", "crd", "udproutes.gateway.networking.k8s.io", "-o", "jsonpath={.status.storedVersions}")
	if stored != `["v1"]` {
		t.Errorf("stored versions are %s, want v1", stored)
	}
}
