package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
)

const (
	// clustersInterval is the time between two reads of the file of clusters, which may be a mounted ConfigMap or Secret.
	clustersInterval = time.Second
	// settleInterval is the time between two checks whether added clusters have sent their configs.
	settleInterval = 50 * time.Millisecond
	// settleTime is how long a changed file waits for added clusters that have not sent their configs, if another
	// cluster can be used.
	settleTime = 5 * time.Second
)

// run runs the connections to all clusters until ctx ends. It reads the file of --clusters again. If the file becomes
// invalid, the last valid one stays in force.
func (c *clusters) run(ctx context.Context) {
	defer c.running.Wait()
	c.start(ctx, c.inForce)
	var read, settle <-chan time.Time
	if c.options.clusters != "" {
		tick := time.NewTicker(clustersInterval)
		defer tick.Stop()
		read = tick.C
	}
	for {
		settle = nil
		if c.next != nil {
			settle = time.After(settleInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-read:
			c.read(ctx)
		case <-settle:
		}
		c.settle()
	}
}

// start runs the connections of a setup that do not run yet.
func (c *clusters) start(ctx context.Context, s *setup) {
	for _, link := range s.connections {
		if link.cancel != nil {
			continue
		}
		link.handlers.HandleFunc("GET /status", c.status(link.Directory))
		var running context.Context
		running, link.cancel = context.WithCancel(ctx)
		c.running.Go(func() { link.Run(running, link.source) })
	}
}

// read reads the file of clusters. It logs the same error of consecutive reads only once.
func (c *clusters) read(ctx context.Context) {
	raw, err := region.Read(c.options.clusters)
	switch {
	case err != nil:
		c.changes.Lose()
		err = fmt.Errorf("read --clusters: %w", err)
	case c.changes.New(raw):
		if err = c.prepare(ctx, raw); err == nil {
			c.changes.Use(raw)
		}
	default:
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != c.lastError {
		c.log.Error("keep last valid file of clusters", "error", err)
	}
	c.lastError = text
}

// prepare makes the setup of a file the next setup.
func (c *clusters) prepare(ctx context.Context, raw []byte) error {
	file, err := region.Parse(c.options.clusters, raw)
	if err != nil {
		return fmt.Errorf("read --clusters: %w", err)
	}
	next, err := c.open(ctx, file)
	if err != nil {
		return err
	}
	c.start(ctx, next)
	replaced := c.next
	c.next = next
	c.drop(replaced)
	return nil
}

// settle puts the next setup into force if each of its clusters has sent its configs, or if one cluster has and
// settleTime has passed. Otherwise clients would lose gateways whose configs have not arrived yet.
func (c *clusters) settle() {
	if c.next == nil {
		return
	}
	settled := time.Since(c.next.since) >= settleTime
	if err := c.next.All.Ready(); err != nil {
		if settled && !c.next.waitLogged {
			c.next.waitLogged = true
			c.log.Warn("keep last clusters until one of the changed file has sent a config", "file", c.options.clusters, "reason", err)
		}
		return
	}
	waiting := func(each *gateway.Cluster) bool { return each.Synced() != nil && !c.serves(each) }
	if slices.ContainsFunc(c.next.All, waiting) && !settled {
		return
	}
	replaced := c.inForce
	c.inForce, c.next = c.next, nil
	c.fleet.Replace(c.inForce.Clusters)
	c.log.Info("clusters have changed", "file", c.options.clusters, "clusters", len(c.inForce.All))
	c.drop(replaced)
}

// serves reports whether the connection of a cluster is in force already.
func (c *clusters) serves(each *gateway.Cluster) bool {
	return slices.ContainsFunc(c.inForce.All, func(o *gateway.Cluster) bool { return o.Directory == each.Directory })
}

// drop ends the parts of a setup that no other setup uses.
func (c *clusters) drop(s *setup) {
	if s == nil {
		return
	}
	for _, link := range s.connections {
		used := func(o *setup) bool { return slices.Contains(o.connections, link) }
		if !slices.ContainsFunc(c.setups(), used) {
			link.cancel()
		}
	}
	if used := func(o *setup) bool { return o.geo == s.geo }; s.geo != nil && !slices.ContainsFunc(c.setups(), used) {
		s.geo.cancel()
	}
}
