package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/template"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// KEDA installs KEDA, and returns when it scales. A second time it does nothing.
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

// kedaPrograms are the programs in the images of its Deployments.
var kedaPrograms = map[string]string{"keda-operator": "operator", "keda-metrics-apiserver": "adapter", "keda-admission": "webhooks"}

func (c *Cluster) installKEDA(ctx context.Context) error {
	published, err := c.Load(ctx, "keda")
	if err != nil {
		return err
	}
	overlay := c.file("keda")
	// Kustomize wants the way from one folder to the other.
	way, err := filepath.Rel(overlay, filepath.Join(published, "config/default"))
	if err != nil {
		return err
	}
	file, err := template.ParseFS(configs, "config/keda/kustomization.yaml")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := file.Execute(&out, map[string]any{"Published": way, "Images": Images, "Programs": kedaPrograms}); err != nil {
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
	// The operator makes certificates for all three and starts once more, with them.
	wait := []string{"wait", "--for=condition=Available", "--timeout=" + patience.String()}
	if _, err := c.Kubectl(ctx, append(wait, "--namespace=keda", "deployment", "--all")...); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, append(wait, "apiservice/v1beta1.external.metrics.k8s.io")...)
	return err
}

// Load gives every node the images of a program that others publish, and returns its folder.
func (c *Cluster) Load(ctx context.Context, program string) (folder string, err error) {
	if folder, err = bed.Published(ctx, c.root, program); err != nil {
		return "", err
	}
	return folder, c.Import(ctx, folder)
}

// Import gives every node the images of a folder.
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
