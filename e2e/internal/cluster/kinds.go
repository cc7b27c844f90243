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

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// served are versions of API groups that discovery must list before a client can rely on it to know our kinds.
var served = []string{"gateway.networking.k8s.io/v1", "stunner.l7mp.io/v1"}

// InstallCRDs installs the experimental channel of the Gateway API, in the version that the operator is built with, and our own CRDs.
func (c *Cluster) InstallCRDs(ctx context.Context) error {
	gateway, err := module(ctx, c.root, "sigs.k8s.io/gateway-api")
	if err != nil {
		return err
	}
	for _, folder := range []string{filepath.Join(gateway, "config/crd/experimental"), filepath.Join(c.root, "kustomize/base/crds")} {
		if _, err := c.Kubectl(ctx, "create", "-k", folder); err != nil {
			return err
		}
	}
	return c.known(ctx, served...)
}

// InstallKEDA installs the CRDs of KEDA, in the version that the operator is tested with. Nobody does what they ask for.
func (c *Cluster) InstallKEDA(ctx context.Context) error {
	folder, err := KEDA(ctx, c.root)
	if err != nil {
		return err
	}
	// They are too large for an annotation of what was applied.
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-f", folder); err != nil {
		return err
	}
	return c.known(ctx, "keda.sh/v1alpha1")
}

// KEDA returns the folder of the CRDs of the KEDA that tests install. No module here requires it: what it requires itself would choose the versions
// of everything else in the workspace.
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

// known waits until CRDs are established, and discovery lists versions.
func (c *Cluster) known(ctx context.Context, versions ...string) error {
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout="+patience.String(), "crd", "--all"); err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(c.Admin.Config)
	if err != nil {
		return err
	}
	// The API server serves a kind somewhat before it tells of it.
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

// module returns the folder of a module, in the version that the operator is pinned to if the path names none.
func module(ctx context.Context, root, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(root, bed.Operator)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("find module %s: %w: %s", path, err, module.Error)
	}
	return module.Dir, nil
}
