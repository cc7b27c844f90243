package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/discovery"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// served are the API group versions that discovery must list before clients can find our kinds.
var served = []string{"gateway.networking.k8s.io/v1", "stunner.l7mp.io/v1"}

// InstallCRDs installs our CRDs and the experimental channel of the Gateway API in the version of the operator's
// go.mod.
func (c *Cluster) InstallCRDs(ctx context.Context) error {
	gateway, err := module(ctx, c.root, "sigs.k8s.io/gateway-api")
	if err != nil {
		return err
	}
	for _, folder := range []string{
		filepath.Join(gateway, "config/crd/experimental"), filepath.Join(c.root, "kustomize/base/crds"),
	} {
		if _, err := c.Kubectl(ctx, "create", "-k", folder); err != nil {
			return err
		}
	}
	return c.known(ctx, served...)
}

// InstallKEDA installs the CRDs of the KEDA version that the operator is tested with. KEDA itself does not run.
func (c *Cluster) InstallKEDA(ctx context.Context) error {
	folder, err := KEDA(ctx, c.root)
	if err != nil {
		return err
	}
	// Server-side apply: the CRDs exceed the size limit of the last-applied annotation.
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-f", folder); err != nil {
		return err
	}
	return c.known(ctx, "keda.sh/v1alpha1")
}

// KEDA returns the folder with KEDA's CRDs. No module of the workspace requires KEDA, because its requirements would
// raise the versions of other modules.
func KEDA(ctx context.Context, root string) (string, error) {
	pin, err := os.ReadFile(filepath.Join(root, ".ci/programs/keda"))
	if err != nil {
		return "", fmt.Errorf("find CRDs of KEDA: %w", err)
	}
	for line := range strings.Lines(string(pin)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "source="); ok {
			folder, err := module(ctx, root, path)
			return filepath.Join(folder, "config/crd/bases"), err
		}
	}
	return "", errors.New("find CRDs of KEDA: .ci/programs/keda names no source")
}

// known waits until the CRDs are established and discovery lists the versions.
func (c *Cluster) known(ctx context.Context, versions ...string) error {
	if _, err := c.Kubectl(
		ctx, "wait", "--for=condition=Established", "--timeout="+timeout.String(), "crd", "--all",
	); err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(c.Admin.Config)
	if err != nil {
		return err
	}
	// The API server serves a kind shortly before discovery lists it.
	return c.api.Until(ctx, func(context.Context) error {
		_, lists, err := client.ServerGroupsAndResources()
		if err != nil {
			return err
		}
		told := map[string]bool{}
		for _, l := range lists {
			told[l.GroupVersion] = true
		}
		for _, version := range versions {
			if !told[version] {
				return errors.New("discovery does not list " + version)
			}
		}
		return nil
	})
}

// module returns the folder of a module. A path without a version means the version in the operator's go.mod.
func module(ctx context.Context, root, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(root, harness.Operator)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("find module %s: %w: %s", path, err, module.Error)
	}
	return module.Dir, nil
}
