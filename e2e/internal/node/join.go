package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Join adds a node, and returns when it takes pods and they reach those of the other nodes. Clients reach Services through the first node,
// whatever node their pods are on; those of a further node are reached at its address too.
func (c *Cluster) Join(ctx context.Context, name string) (err error) {
	m, err := c.machine(name)
	if err != nil {
		return fmt.Errorf("join node %s: %w", name, err)
	}
	steps := []func(context.Context) error{
		m.unshare,
		c.route,
		m.startEngine,
		func(ctx context.Context) error { return m.load(ctx, c.images...) },
		m.startNode,
		m.settle,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return fmt.Errorf("join node %s: %w", name, errors.Join(err, c.Leave(context.WithoutCancel(ctx), name)))
		}
	}
	return nil
}

// settle waits until the cluster has no doubt of a node any more. The controller that takes a node for unready looks every few seconds, and until it has
// looked again it calls pods unready that have just become ready there.
func (m *machine) settle(ctx context.Context) error {
	return m.kubelet.Until(ctx, func(ctx context.Context) error {
		taints, err := m.cluster.Kubectl(ctx, "get", "node", m.name, "--output=jsonpath={.spec.taints}")
		if err == nil && taints != "" {
			err = fmt.Errorf("node %s has taints: %s", m.name, taints)
		}
		return err
	})
}

// Leave takes a node away that has joined, as if its power had gone. What ran there is gone from the cluster too.
func (c *Cluster) Leave(ctx context.Context, name string) error {
	i := slices.IndexFunc(c.nodes, func(m *machine) bool { return m.name == name && m != c.first })
	if i < 0 {
		return fmt.Errorf("take node %s away: it has not joined", name)
	}
	m := c.nodes[i]
	errs := []error{m.end()}
	for _, args := range [][]string{
		{"delete", "node", name, "--ignore-not-found"},
		// Nobody else would say so of its pods.
		{"delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName=" + name, "--force", "--grace-period=0"},
	} {
		_, err := c.Kubectl(ctx, args...)
		errs = append(errs, err)
	}
	c.nodes = slices.Delete(c.nodes, i, i+1)
	return errors.Join(append(errs, removeGroups(m.group()), os.RemoveAll(m.dir))...)
}

// Address of a node, where clients reach ports of it.
func (c *Cluster) Address(node string) string {
	for _, m := range c.nodes {
		if m.name == node {
			return m.address()
		}
	}
	return ""
}

// route tells every node where the pods of the others are.
func (c *Cluster) route(ctx context.Context) error {
	for _, from := range c.nodes {
		for _, to := range c.nodes {
			if from == to {
				continue
			}
			if err := from.run(ctx, "ip", "route", "replace", to.pods(), "via", to.address()); err != nil {
				return err
			}
		}
	}
	return nil
}
