package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/template"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// KEDA installs KEDA and returns when it is available. Later calls do nothing.
func (c *Cluster) KEDA(ctx context.Context) error {
	if c.keda {
		return nil
	}
	if err := c.installKEDA(ctx); err != nil {
		return fmt.Errorf("install KEDA: %w", err)
	}
	c.keda = true
	return nil
}

// kedaPrograms maps KEDA's Deployments to the programs in their images.
var kedaPrograms = map[string]string{
	"keda-operator": "operator", "keda-metrics-apiserver": "adapter", "keda-admission": "webhooks",
}

func (c *Cluster) installKEDA(ctx context.Context) error {
	published, err := c.Load(ctx, "keda")
	if err != nil {
		return err
	}
	overlay := c.file("keda")
	// Kustomize accepts relative paths only.
	way, err := filepath.Rel(overlay, filepath.Join(published, "config/default"))
	if err != nil {
		return err
	}
	file, err := template.ParseFS(configs, "config/keda/kustomization.yaml")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := file.Execute(
		&out, map[string]any{"Published": way, "Images": Images, "Programs": kedaPrograms},
	); err != nil {
		return err
	}
	if err := os.MkdirAll(overlay, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), out.Bytes(), 0o600); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-k", overlay); err != nil {
		return err
	}
	// KEDA's operator creates the certificates of all three Deployments and then restarts.
	wait := []string{"wait", "--for=condition=Available", "--timeout=" + timeout.String()}
	if _, err := c.Kubectl(ctx, append(wait, "--namespace=keda", "deployment", "--all")...); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, append(wait, "apiservice/v1beta1.external.metrics.k8s.io")...)
	return err
}

// Load imports the images of a third-party program into every node, and returns the program's folder.
func (c *Cluster) Load(ctx context.Context, program string) (folder string, err error) {
	if folder, err = harness.Published(ctx, c.root, program); err != nil {
		return "", err
	}
	return folder, c.Import(ctx, folder)
}

// Import imports all image archives of a folder into every node.
func (c *Cluster) Import(ctx context.Context, folder string) error {
	archives, err := filepath.Glob(filepath.Join(folder, "*.tar"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if slices.Contains(c.images, a) {
			continue
		}
		for _, m := range c.nodes {
			if err := m.load(ctx, a); err != nil {
				return fmt.Errorf("import images: %w", err)
			}
		}
		c.images = append(c.images, a)
	}
	return nil
}
