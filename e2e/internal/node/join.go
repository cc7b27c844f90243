package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Join adds a node. It returns when the node is schedulable and its pods can reach pods of the other nodes. Clients
// reach Services through the first node. They reach host ports of a pod at the address of its node.
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

// settle waits until the node has no taints. The node lifecycle controller evaluates nodes every few seconds, and until
// its next run it marks pods unready that have just become ready on the node.
func (m *machine) settle(ctx context.Context) error {
	return m.kubelet.Until(ctx, func(ctx context.Context) error {
		taints, err := m.cluster.Kubectl(ctx, "get", "node", m.name, "--output=jsonpath={.spec.taints}")
		if err == nil && taints != "" {
			err = fmt.Errorf("node %s has taints: %s", m.name, taints)
		}
		return err
	})
}

// Leave removes a node that has joined, as after a power loss, and deletes its pods.
func (c *Cluster) Leave(ctx context.Context, name string) error {
	i := slices.IndexFunc(c.nodes, func(m *machine) bool { return m.name == name && m != c.first })
	if i < 0 {
		return fmt.Errorf("take node %s away: it has not joined", name)
	}
	m := c.nodes[i]
	errs := []error{m.end()}
	for _, args := range [][]string{
		{"delete", "node", name, "--ignore-not-found"},
		// The kubelet of the node is gone, so the pods are deleted by force.
		{"delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName=" + name, "--force", "--grace-period=0"},
	} {
		_, err := c.Kubectl(ctx, args...)
		errs = append(errs, err)
	}
	c.nodes = slices.Delete(c.nodes, i, i+1)
	return errors.Join(append(errs, removeGroups(m.group()), os.RemoveAll(m.dir))...)
}

// Address returns the address of a node.
func (c *Cluster) Address(node string) string {
	for _, m := range c.nodes {
		if m.name == node {
			return m.address()
		}
	}
	return ""
}

// route adds routes between the pod networks of all nodes.
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
