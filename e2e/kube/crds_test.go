package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Operator and CRDs may be installed in any order. The CRDs of the chart serve UDPRoutes of the Gateway API in version
// v1alpha2, which existing manifests have, and in version v1, which is the stored version. The operator also stops on
// SIGTERM while the API server does not respond, and its liveness probe does not fail because of that.
func TestOperatorWaitsForCRDs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bare, err := cluster.Start(ctx, cluster.Options{Bare: true, Still: true})
	must(err)
	t.Cleanup(func() {
		if err := bare.Stop(); err != nil {
			t.Error(err)
		}
	})
	discovery, health, dir := harnesstest.Address(t), harnesstest.Address(t), t.TempDir()
	probe := func(path string) string { return fmt.Sprintf("http://%s/%s", health, path) }
	operator := harnesstest.Start(t, harness.Command{
		Name: "operator", Path: filepath.Join(harnesstest.Build(t, harness.Operator), "operator"), Logs: dir,
		Args: []string{
			"--provider=kubernetes", "--kubeconfig", bare.Admin.Kubeconfig, "--namespace=default", "--scaler-address=",
			"--discovery-auth=off", "--discovery-address", discovery, "--health-address", health,
		},
	}, func(ctx context.Context) error {
		code, body, err := harness.Get(ctx, probe("ready"))
		if err == nil && (code != http.StatusServiceUnavailable ||
			!strings.Contains(string(body), "install the CustomResourceDefinitions")) {
			err = fmt.Errorf("/ready: status %d: %s", code, body)
		}
		return err
	})
	for _, folder := range []string{"charts/stunner-crds/files/gateway-api", "kustomize/base/crds"} {
		_, err := bare.Kubectl(ctx, "create", "-k", filepath.Join(harnesstest.Root(t), folder))
		must(err)
	}
	leads := func(want float64) func(context.Context) error {
		return func(ctx context.Context) error {
			got, err := harness.Metric(ctx, probe("metrics"), "stunner_operator_leader")
			if err == nil && got != want {
				err = fmt.Errorf("stunner_operator_leader is %.0f, want %.0f", got, want)
			}
			return err
		}
	}
	must(operator.Until(ctx, harness.Answers(probe("ready"), http.StatusOK)))
	must(operator.Until(ctx, leads(1)))

	for _, version := range []string{"v1alpha2", "v1"} {
		must(harness.Until(ctx, func(ctx context.Context) error {
			return bare.Apply(ctx, "default", strings.ReplaceAll(`
apiVersion: gateway.networking.k8s.io/VERSION
kind: UDPRoute
metadata: {name: of-VERSION}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: media, port: 1}]}]
`, "VERSION", version))
		}))
	}
	for resource, want := range map[string]string{
		"udproutes.v1alpha2.gateway.networking.k8s.io/of-v1": "of-v1",
		"udproutes.v1.gateway.networking.k8s.io/of-v1alpha2": "of-v1alpha2",
	} {
		kind, name, _ := strings.Cut(resource, "/")
		got, err := bare.Kubectl(ctx, "get", kind, name, "-o", "jsonpath={.metadata.name}")
		if err != nil || !strings.HasSuffix(strings.TrimSpace(got), want) {
			t.Errorf("%s: %q, %v", resource, got, err)
		}
	}
	stored, err := bare.Field(
		ctx, "", "customresourcedefinitions.apiextensions.k8s.io/udproutes.gateway.networking.k8s.io", ".status.storedVersions",
	)
	if err != nil || stored != `["v1"]` {
		t.Errorf("stored versions are %s, want v1: %v", stored, err)
	}

	must(bare.Pause())
	defer func() { must(bare.Resume()) }()
	must(operator.Until(ctx, leads(0))) // no replica leads when the lease has ended
	must(errors.Join(
		harness.Answers(probe("ready"), http.StatusOK)(ctx), harness.Answers(probe("live"), http.StatusOK)(ctx),
		operator.Stop(5*time.Second),
	))
}
