package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/grantlog"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

// connection is the connection to the operator of a cluster. The operator receives only the state of its own cluster.
type connection struct {
	name   string
	origin region.Origin
	*gateway.Directory
	source   discovery.Source
	grants   *grantlog.Log
	handlers *http.ServeMux // handlers for requests of the operator
	cancel   context.CancelFunc
}

// location is a GeoIP file in use.
type location struct {
	path string
	*region.Geo
	cancel context.CancelFunc
}

// setup is the content of a file of clusters, with the connections and the GeoIP file that the clusters need.
type setup struct {
	rest.Clusters
	connections []*connection
	geo         *location // nil without a GeoIP file
	since       time.Time
	waitLogged  bool // the log has reported that the setup waits
}

// clusters has the cluster of --config, or follows the file of --clusters.
type clusters struct {
	options
	log    *slog.Logger
	fleet  *rest.Fleet
	status func(*gateway.Directory) http.HandlerFunc

	running   sync.WaitGroup
	changes   yamlfile.Changes
	lastError string
	// inForce is the setup that answers requests. next is nil, or the setup that replaces inForce when its clusters
	// have sent their configs.
	inForce, next *setup
}

// openClusters opens the clusters of --config or --clusters.
func (o options) openClusters(ctx context.Context, log *slog.Logger) (*clusters, error) {
	c := &clusters{options: o, log: log}
	file := region.File{Clusters: []region.Cluster{{
		Origin: region.Origin{Config: o.config, TokenFile: o.discoveryTokenFile, CAFile: o.discoveryCAFile},
	}}}
	if o.clusters != "" {
		var err error
		var raw []byte
		if raw, err = region.Read(o.clusters); err == nil {
			c.changes.Use(raw)
			file, err = region.Parse(o.clusters, raw)
		}
		if err != nil {
			return nil, fmt.Errorf("read --clusters: %w", err)
		}
	}
	var err error
	if c.inForce, err = c.open(ctx, file); err != nil {
		return nil, err
	}
	c.fleet = rest.NewFleet(c.inForce.Clusters)
	return c, nil
}

// open returns the setup of a file. It keeps the connections to clusters and the GeoIP file that are already in use,
// with their state.
func (c *clusters) open(ctx context.Context, file region.File) (*setup, error) {
	s := &setup{since: time.Now()}
	s.GrantLogs, s.Operators = map[string]*grantlog.Log{}, map[string]discovery.Inspector{}
	for i, each := range file.Clusters {
		link, err := c.connect(each)
		if err != nil && c.options.clusters == "" {
			return nil, fmt.Errorf("open --config: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("read --clusters: %s: clusters[%d]: open config: %w", c.options.clusters, i, err)
		}
		s.connections = append(s.connections, link)
		s.All = append(s.All, &gateway.Cluster{Cluster: each, Directory: link.Directory})
		s.GrantLogs[each.Name] = link.grants
		if operator, ok := link.source.(discovery.Inspector); ok {
			s.Operators[each.Name] = operator
		}
	}
	var err error
	if s.geo, err = c.locate(ctx, file.GeoIP); err != nil {
		return nil, fmt.Errorf("read --clusters: %s: %w", c.options.clusters, err)
	}
	if file.Regions != nil {
		var geo *region.Geo
		if s.geo != nil {
			geo = s.geo.Geo
		}
		s.Regions = region.NewMap(file.Regions, geo)
	}
	return s, nil
}

// setups returns the setups that are in use.
func (c *clusters) setups() (all []*setup) {
	for _, s := range []*setup{c.inForce, c.next} {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// connect returns the connection to the operator of a cluster: a connection in use, or a new connection, which run
// starts.
func (c *clusters) connect(to region.Cluster) (*connection, error) {
	origin := to.Origin
	origin.Keep = 0 // a change of Keep needs no new connection
	for _, s := range c.setups() {
		same := func(l *connection) bool { return l.name == to.Name && l.origin == origin }
		if i := slices.IndexFunc(s.connections, same); i >= 0 {
			return s.connections[i], nil
		}
	}
	pod, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this pod to the operator: %w", err)
	}
	log := c.log
	if to.Name != "" {
		log = log.With("cluster", to.Name)
	}
	link := &connection{
		name: to.Name, origin: origin, grants: grantlog.New(c.showUsers, time.Now), handlers: http.NewServeMux(),
		Directory: gateway.NewDirectory(to.Name, time.Now, telemetry.Scope(log, "gateway")),
	}
	link.handlers.Handle("GET /grants", link.grants.Requests())
	link.source, err = discovery.Open(origin.Config, discovery.Options{
		TokenFile:  origin.TokenFile,
		CAFile:     origin.CAFile,
		ServerName: origin.ServerName,
		Log:        telemetry.Scope(log, "discovery"),
		Handler:    link.handlers,
		Pod:        pod,
		Kind:       inspection.Auth,
		Lists:      true,
	})
	return link, err
}

// locate returns the GeoIP file at a path: the file in use, or else a new file. It is nil for an empty path.
func (c *clusters) locate(ctx context.Context, path string) (*location, error) {
	if path == "" {
		return nil, nil
	}
	for _, s := range c.setups() {
		if s.geo != nil && s.geo.path == path {
			return s.geo, nil
		}
	}
	ctx, end := context.WithCancel(ctx)
	geo, err := region.OpenGeo(ctx, path, telemetry.Scope(c.log, "rest"))
	if err != nil {
		end()
		return nil, err
	}
	return &location{path, geo, end}, nil
}
