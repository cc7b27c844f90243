package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/discovery"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// served are versions of API groups that discovery must list before a client can rely on it to know our kinds.
var served = []string{"gateway.networking.k8s.io/v1", "stunner.l7mp.io/v1"}

// InstallCRDs installs the experimental channel of the Gateway API, in the version that the operator is built with, and our own CRDs.
func (c *Cluster) InstallCRDs(ctx context.Context) error {
	gateway, err := gatewayAPI(ctx, c.root)
	if err != nil {
		return err
	}
	for _, folder := range []string{gateway, filepath.Join(c.root, "kustomize/base/crds")} {
		if _, err := c.Kubectl(ctx, "create", "-k", folder); err != nil {
			return err
		}
	}
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
		for _, version := range served {
			if !told[version] {
				return errors.New("discovery does not list " + version)
			}
		}
		return nil
	})
}

// gatewayAPI returns the folder of the CRDs in the module that the operator is pinned to.
func gatewayAPI(ctx context.Context, root string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "sigs.k8s.io/gateway-api")
	cmd.Dir = filepath.Join(root, bed.Operator)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("find CRDs of the Gateway API: %w: %s", err, module.Error)
	}
	return filepath.Join(module.Dir, "config/crd/experimental"), nil
}
