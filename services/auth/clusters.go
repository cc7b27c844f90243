package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
	"github.com/stunner-gateway/stunner/services/auth/internal/trail"
)

// cluster is a cluster with the connection to its operator. The operator receives only the state of its own cluster.
type cluster struct {
	*gateway.Cluster
	source discovery.Source
	trail  *trail.Trail
	asked  *http.ServeMux // handlers for requests of the operator
}

// openClusters opens the clusters of --config or --clusters. The Map is nil for --config.
func (o options) openClusters(ctx context.Context, log *slog.Logger) ([]cluster, *region.Map, error) {
	if o.clusters == "" {
		only := region.Cluster{
			Origin: region.Origin{Config: o.config, TokenFile: o.discoveryTokenFile, CAFile: o.discoveryCAFile},
		}
		c, err := o.openCluster(only, log)
		if err != nil {
			return nil, nil, fmt.Errorf("open --config: %w", err)
		}
		return []cluster{c}, nil, nil
	}
	raw, err := os.ReadFile(o.clusters)
	if err != nil {
		return nil, nil, fmt.Errorf("read --clusters: %w", err)
	}
	file, err := region.Parse(o.clusters, raw)
	if err != nil {
		return nil, nil, fmt.Errorf("read --clusters: %w", err)
	}
	var all []cluster
	for i, each := range file.Clusters {
		c, err := o.openCluster(each, log.With("cluster", each.Name))
		if err != nil {
			return nil, nil, fmt.Errorf("read --clusters: %s: clusters[%d]: open config: %w", o.clusters, i, err)
		}
		all = append(all, c)
	}
	var geo *region.Geo
	if file.GeoIP != "" {
		if geo, err = region.OpenGeo(ctx, file.GeoIP, telemetry.Scope(log, "rest")); err != nil {
			return nil, nil, fmt.Errorf("read --clusters: %s: %w", o.clusters, err)
		}
	}
	return all, region.NewMap(file.Regions, geo), nil
}

func (o options) openCluster(c region.Cluster, log *slog.Logger) (cluster, error) {
	pod, err := os.Hostname()
	if err != nil {
		return cluster{}, fmt.Errorf("name this pod to the operator: %w", err)
	}
	out := cluster{trail: trail.New(o.showUsers, time.Now), asked: http.NewServeMux()}
	out.asked.Handle("GET /grants", out.trail.Requests())
	out.Cluster = &gateway.Cluster{
		Cluster:   c,
		Directory: gateway.NewDirectory(c.Name, time.Now, telemetry.Scope(log, "gateway")),
	}
	out.source, err = discovery.Open(c.Origin.Config, discovery.Options{
		TokenFile:  c.Origin.TokenFile,
		CAFile:     c.Origin.CAFile,
		ServerName: c.Origin.ServerName,
		Log:        telemetry.Scope(log, "discovery"),
		Handler:    out.asked,
		Pod:        pod,
		Kind:       inspection.Auth,
		Lists:      true,
	})
	return out, err
}
