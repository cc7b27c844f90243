package server

import (
	"strconv"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// States of a dataplane.
const (
	Ready       = "READY"
	NotReady    = "NOT-READY"
	Terminating = "TERMINATING"
)

// Status is what a dataplane says about itself. Its shape is a contract; secrets in it are redacted.
type Status struct {
	Version         string           `json:"version"`
	Admin           AdminStatus      `json:"admin"`
	Auth            config.Auth      `json:"auth"`
	Listeners       []ListenerStatus `json:"listeners"`
	Clusters        []ClusterStatus  `json:"clusters"`
	AllocationCount int              `json:"allocationCount"`
	Status          string           `json:"status"`
	// Revision identifies the last config that was put in force, as its source published it.
	Revision string `json:"revision"`
	// Failures says, per listener, why it does not run as configured.
	Failures map[string]string `json:"failures,omitempty"`
	// Problem says why the last config that arrived was kept out.
	Problem string `json:"problem,omitempty"`
	// Lost says why the source of configs cannot be heard.
	Lost string `json:"lost,omitempty"`
	// Origin says where the running config came from.
	Origin string `json:"origin,omitempty"`
	// Unknown lists fields of the last config that this release does not know, and ignores.
	Unknown []string `json:"unknownFields,omitempty"`
}

// AdminStatus is the admin part of Status.
type AdminStatus struct {
	Name                string `json:"name"`
	LogLevel            string `json:"loglevel"`
	MetricsEndpoint     string `json:"metrics_endpoint"`
	HealthcheckEndpoint string `json:"healthcheck_endpoint"`
	Quota               string `json:"quota"`
	Offload             string `json:"offload"`
	Licensing           string `json:"licensing_info"`
}

// ListenerStatus is one listener as configured and what passed it.
type ListenerStatus struct {
	config.Listener
	Stats Stats `json:"stats"`
}

// ClusterStatus is one cluster as configured and what passed to it.
type ClusterStatus struct {
	config.Cluster
	Stats Stats `json:"stats"`
}

// Stats counts both directions.
type Stats struct {
	Rx Count `json:"rx"`
	Tx Count `json:"tx"`
}

// Count is a number of packets and bytes.
type Count struct {
	Packets uint64 `json:"pkts"`
	Bytes   uint64 `json:"bytes"`
}

// Status returns what the server knows of itself; the follower adds what it knows of the config's way here.
func (s *Server) Status() Status {
	s.mu.Lock()
	state := s.state()
	c := s.running.Redacted()
	failures := s.failures
	s.mu.Unlock()

	st := Status{
		Version: c.Version, Auth: c.Auth, AllocationCount: s.table.Len(), Status: state,
		Failures:  failures,
		Listeners: []ListenerStatus{}, Clusters: []ClusterStatus{},
		Admin: AdminStatus{
			Name: c.Admin.Name, LogLevel: c.Admin.LogLevel, MetricsEndpoint: c.Admin.MetricsEndpoint,
			Quota: strconv.Itoa(c.Admin.UserQuota), Offload: c.Admin.OffloadEngine, Licensing: "free",
		},
	}
	if c.Admin.HealthcheckEndpoint != nil {
		st.Admin.HealthcheckEndpoint = *c.Admin.HealthcheckEndpoint
	}
	for _, l := range c.Listeners {
		st.Listeners = append(st.Listeners, ListenerStatus{l, statsOf(&s.meter.Listener(l.Name).Traffic)})
	}
	for _, cl := range c.Clusters {
		st.Clusters = append(st.Clusters, ClusterStatus{cl, statsOf(s.meter.Cluster(cl.Name))})
	}
	return st
}

func (s *Server) state() string {
	switch {
	case s.table.Draining():
		return Terminating
	case s.running.IsZero():
		return NotReady
	}
	return Ready
}

func statsOf(t *meter.Traffic) Stats {
	return Stats{Rx: countOf(&t.Rx), Tx: countOf(&t.Tx)}
}

func countOf(f *meter.Flow) Count { return Count{f.Packets.Load(), f.Bytes.Load()} }
