package server

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	// Warnings say which wishes of the running config are not met, field by field. They are no failures: the config is in force.
	Warnings []string `json:"warnings,omitempty"`
	// Problem says why the last config that arrived was kept out.
	Problem string `json:"problem,omitempty"`
	// Lost says why the source of configs cannot be heard.
	Lost string `json:"lost,omitempty"`
	// Origin says where the running config came from.
	Origin string `json:"origin,omitempty"`
	// Unknown lists fields of the last config that this release does not know, and ignores.
	Unknown []string `json:"unknownFields,omitempty"`
	// Withheld says that most of the status is left out, and how to get it.
	Withheld string `json:"withheld,omitempty"`
}

// Reduced is the status for callers that may not see names, addresses and user names: version, status, revision and the number of allocations. All
// other fields of the contract are there and empty; the note says why.
func (s Status) Reduced(note string) Status {
	return Status{
		Version: s.Version, Status: s.Status, Revision: s.Revision, AllocationCount: s.AllocationCount,
		Listeners: []ListenerStatus{}, Clusters: []ClusterStatus{}, Withheld: note,
	}
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
	// Timestamp is when they were read, in nanoseconds since 1970: two readings give a rate.
	Timestamp int64 `json:"timestamp"`
}

// Status returns what the server knows of itself; the follower adds what it knows of the config's way here.
func (s *Server) Status() Status {
	s.mu.Lock()
	state := s.state()
	c := s.running.Redacted()
	failures := s.failures
	s.mu.Unlock()
	now := time.Now()

	st := Status{
		Version: c.Version, Auth: c.Auth, AllocationCount: s.table.Len(), Status: state,
		Failures: failures, Warnings: Warnings(c),
		Listeners: []ListenerStatus{}, Clusters: []ClusterStatus{},
		Admin: AdminStatus{
			Name: c.Admin.Name, LogLevel: c.Admin.LogLevel, MetricsEndpoint: c.Admin.MetricsEndpoint,
			Quota: strconv.Itoa(c.Admin.UserQuota), Offload: config.DefaultOffload, Licensing: "free",
		},
	}
	if c.Admin.HealthcheckEndpoint != nil {
		st.Admin.HealthcheckEndpoint = *c.Admin.HealthcheckEndpoint
	}
	for _, l := range c.Listeners {
		st.Listeners = append(st.Listeners, ListenerStatus{l, StatsOf(&s.meter.Listener(l.Name).Traffic, now)})
	}
	for _, cl := range c.Clusters {
		st.Clusters = append(st.Clusters, ClusterStatus{cl, StatsOf(s.meter.Cluster(cl.Name), now)})
	}
	return st
}

// Warnings returns what a config asks for and this release does not do, field by field. Such a config is in force all the same.
func Warnings(c config.Config) (all []string) {
	if engine := c.Admin.OffloadEngine; engine != config.DefaultOffload {
		all = append(all, fmt.Sprintf("admin.offload_engine: %s is not available in this release, media is forwarded without it: use %s", engine, config.DefaultOffload))
	}
	return all
}

func (s *Server) state() string {
	switch {
	case s.table.Draining():
		return Terminating
	case s.ready() != nil:
		return NotReady
	}
	return Ready
}

// Ready returns nil once every listener of the running config is open, else what is missing. A server that has been ready with a listener stays
// so: calls may run, and a readiness probe that fails would cut them (see docs/stunnerd.md). What a later config does not get stands in
// Status.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready()
}

// maxReasons bounds how many listeners Ready names.
const maxReasons = 3

func (s *Server) ready() error {
	if s.served {
		return nil
	}
	if s.wanted.IsZero() {
		return errors.New("no config is in force yet")
	}
	var missing []string
	for _, l := range s.wanted.Listeners {
		if r := s.listeners[l.Name]; r != nil && !r.retired {
			continue
		}
		missing = append(missing, cmp.Or(s.failures[l.Name], "listener "+l.Name+" is not open"))
	}
	if len(missing) == 0 {
		return nil
	}
	if more := len(missing) - maxReasons; more > 0 {
		missing = append(missing[:maxReasons], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(missing, "; "))
}

// StatsOf reads the counters of a traffic.
func StatsOf(t *meter.Traffic, now time.Time) Stats {
	return Stats{Rx: countOf(&t.Rx, now), Tx: countOf(&t.Tx, now)}
}

func countOf(f *meter.Flow, now time.Time) Count {
	return Count{f.Packets.Load(), f.Bytes.Load(), now.UnixNano()}
}
