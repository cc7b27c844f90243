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

// States of a dataplane in its status.
const (
	Ready       = "READY"
	NotReady    = "NOT-READY"
	Terminating = "TERMINATING"
)

// Status is the JSON status of a dataplane. Its fields are a contract with clients. Secrets in it are redacted.
type Status struct {
	Version         string           `json:"version"`
	Admin           AdminStatus      `json:"admin"`
	Auth            config.Auth      `json:"auth"`
	Listeners       []ListenerStatus `json:"listeners"`
	Clusters        []ClusterStatus  `json:"clusters"`
	AllocationCount int              `json:"allocationCount"`
	Status          string           `json:"status"`
	// Revision is the revision of the last applied config, as its source published it.
	Revision string `json:"revision"`
	// Failures contains, for each listener that does not run as configured, the reason.
	Failures map[string]string `json:"failures,omitempty"`
	// Warnings lists the fields of the running config that are not in force as requested. The rest of the config is.
	Warnings []string `json:"warnings,omitempty"`
	// Offload describes how media is forwarded in the kernel.
	Offload OffloadStatus `json:"offload"`
	// Problem is the reason why the last received config was rejected, or else why the running config is only partly in
	// force.
	Problem string `json:"problem,omitempty"`
	// Lost is the error of the connection to the config source.
	Lost string `json:"lost,omitempty"`
	// Origin names the source of the running config.
	Origin string `json:"origin,omitempty"`
	// Unknown lists the fields of the last config that this release does not define. They are ignored.
	Unknown []string `json:"unknownFields,omitempty"`
	// Withheld is set if most of the status is left out. It says why, and how to get the whole status.
	Withheld string `json:"withheld,omitempty"`
}

// Reduced returns the status for callers that may not see names, addresses and user names. It contains version, status,
// revision and the number of allocations. The other fields of the contract are empty. The note becomes Withheld.
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

// ListenerStatus is the config of a listener and its traffic.
type ListenerStatus struct {
	config.Listener
	Stats Stats `json:"stats"`
}

// ClusterStatus is the config of a cluster and its traffic.
type ClusterStatus struct {
	config.Cluster
	Stats Stats `json:"stats"`
}

// Stats counts the received and sent traffic.
type Stats struct {
	Rx Count `json:"rx"`
	Tx Count `json:"tx"`
}

// Count is a number of packets and bytes.
type Count struct {
	Packets uint64 `json:"pkts"`
	Bytes   uint64 `json:"bytes"`
	// Timestamp is when the counters were read, in nanoseconds since 1970, so that a client can compute a rate from two
	// statuses.
	Timestamp int64 `json:"timestamp"`
}

// Status returns the status of the server. The follower adds the fields about the config source.
func (s *Server) Status() Status {
	s.mu.Lock()
	state := s.state()
	c := s.running.Redacted()
	failures := s.failures
	s.mu.Unlock()
	s.meter.Refresh()
	now, kernel := time.Now(), s.Offload()

	st := Status{
		Version: c.Version, Auth: c.Auth, AllocationCount: s.table.Len(), Status: state,
		Failures: failures, Offload: kernel,
		Listeners: []ListenerStatus{}, Clusters: []ClusterStatus{},
		Admin: AdminStatus{
			Name: c.Admin.Name, LogLevel: c.Admin.LogLevel, MetricsEndpoint: c.Admin.MetricsEndpoint,
			HealthcheckEndpoint: *cmp.Or(c.Admin.HealthcheckEndpoint, new("")),
			Quota:               strconv.Itoa(c.Admin.UserQuota), Offload: engineOf(kernel), Licensing: "free",
		},
	}
	if kernel.Reason != "" {
		st.Warnings = append(st.Warnings, "admin.offload_engine: "+kernel.Engine+": "+kernel.Reason)
	}
	for _, l := range c.Listeners {
		st.Listeners = append(st.Listeners, ListenerStatus{l, StatsOf(&s.meter.Listener(l.Name).Traffic, now)})
	}
	for _, cl := range c.Clusters {
		st.Clusters = append(st.Clusters, ClusterStatus{cl, StatsOf(s.meter.Cluster(cl.Name), now)})
	}
	return st
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

// Ready returns nil if every listener of the wanted config is open, or else an error that names listeners that are not
// open. Once all listeners of a config with at least one listener have been open, it always returns nil, even if a
// later config fails: a failing readiness probe would cut running calls (see docs/stunnerd.md). Status lists the
// failures of later configs.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready()
}

// maxReasons is the maximum number of listeners that the error of Ready names.
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
		if g := s.listeners[l.Name]; g != nil && g.state == stateOpen {
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

// StatsOf reads the traffic counters at the time now.
func StatsOf(t *meter.Traffic, now time.Time) Stats {
	return Stats{Rx: countOf(&t.Rx, now), Tx: countOf(&t.Tx, now)}
}

func countOf(f *meter.Flow, now time.Time) Count {
	return Count{f.Packets.Load(), f.Bytes.Load(), now.UnixNano()}
}
