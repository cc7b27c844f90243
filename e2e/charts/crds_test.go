package charts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// newer is the version of the Gateway API that a cluster has before the installation.
const newer = "v9.9.9"

// One command of Helm installs everything that a Gateway needs, into a cluster without CRDs. A newer Gateway API stays
// as it is without crds.gatewayAPI.enabled. Upgrade and uninstallation delete no CRD, and so no Gateway.
func TestHelm_InstallsWithOneCommand(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bare, err := cluster.Start(ctx, cluster.Options{Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	shared := control
	control = bare // tests of this package run one after the other
	t.Cleanup(func() {
		control = shared
		if err := bare.Stop(); err != nil {
			t.Error(err)
		}
	})
	folder, err := harness.Published(ctx, harnesstest.Root(t), "helm")
	if err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(folder, "helm"), append(args, "--namespace", home)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG="+bare.Admin.Kubeconfig)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := helm(args...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	chart := filepath.Join(harnesstest.Root(t), app)
	// kinds returns the names and UIDs of all CRDs.
	kinds := func() string {
		t.Helper()
		const each = `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`
		return kubectl(t, "get", "crd", "-o", each)
	}

	for _, flags := range []string{"crds.enabled=false", "crds.enabled=false,crds.gatewayAPI.enabled=true"} {
		out, err := helm("install", "stunner", chart, "--create-namespace", "--set", flags)
		if err == nil || !strings.Contains(out, `no matches for kind "GatewayClass"`) || kinds() != "" {
			t.Errorf("%s: %v, %s\nCRDs:\n%s", flags, err, out, kinds())
		}
	}

	begun := time.Now()
	must("install", "stunner", chart, "--create-namespace", "--set", "crds.gatewayAPI.enabled=true")
	before := kinds()
	if got := strings.Count(before, "\n"); got != len(load(t, app).CRDObjects()) || got < 14 {
		t.Errorf("%d CRDs, want %d:\n%s", got, len(load(t, app).CRDObjects()), before)
	}
	unchanged := func(after string) {
		t.Helper()
		if got := kinds(); got != before {
			t.Errorf("after %s the CRDs are\n%s\nwant\n%s", after, got, before)
		}
	}

	t.Run("serves", func(t *testing.T) {
		in := start(t, parse(t, must("get", "manifest", "stunner")), begun)
		kubectl(t, "apply", "-n", home, "-f", file(t, harnesstest.Read(t, "docs/examples/cluster/gateway.yaml")))
		in.expose(home, "front-door")
		in.offers("turn:192.0.2.7:3478?transport=udp", "turn:192.0.2.7:3478?transport=tcp")
	})

	must("upgrade", "--install", "stunner-crds", filepath.Join(harnesstest.Root(t), crds), "--reset-then-reuse-values",
		"--take-ownership")
	unchanged("the chart of the CRDs took them over")
	must("upgrade", "stunner", chart, "--set", "commonLabels.team=calls")
	unchanged("an upgrade")
	must("upgrade", "stunner", chart, "--set", "crds.enabled=false")
	unchanged("an upgrade with crds.enabled=false")
	must("uninstall", "stunner")
	unchanged("the uninstallation")

	const gateways, bundle = "crd/gateways.gateway.networking.k8s.io", "gateway.networking.k8s.io/bundle-version"
	kubectl(t, "annotate", "--overwrite", gateways, bundle+"="+newer)
	must("install", "stunner", chart)
	unchanged("another installation")
	if got := kubectl(t, "get", gateways, "-o", "jsonpath={.metadata.annotations."+
		strings.ReplaceAll(bundle, ".", `\.`)+"}"); got != newer {
		t.Errorf("the Gateway API has version %s, want %s", got, newer)
	}
	must("uninstall", "stunner")
	must("uninstall", "stunner-crds")
	unchanged("the last uninstallation")
	kubectl(t, "get", "-n", home, "gateway/front-door")
}
