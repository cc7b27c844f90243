package server

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Status returns the status of the server. The follower adds the fields about the config source.
func (s *Server) Status() inspection.Status {
	s.mu.Lock()
	state := s.state()
	c := s.running.Redacted()
	failures, lost := s.failures, s.lostAddresses()
	certificates := make(map[string][]*x509.Certificate, len(c.Listeners))
	for _, l := range c.Listeners {
		certificates[l.Name] = s.listeners[l.Name].socket.Certificates()
	}
	s.mu.Unlock()
	s.meter.Refresh()
	now, kernel := time.Now(), s.Offload()

	st := inspection.Status{
		Version: c.Version, Auth: c.Auth, AllocationCount: s.table.Len(), Status: state,
		Failures: failures, LostAddresses: lost, Offload: kernel, Journal: s.Journal(), Forwarding: s.Forwarding(),
		Started: s.started.UTC(), Now: now.UTC(),
		Capacity: s.Capacity(), CapacityLimit: s.opt.CapacityLimit, Draining: state == inspection.Terminating, Drain: s.Draining(),
		Listeners: []inspection.ListenerStatus{}, Clusters: []inspection.ClusterStatus{},
		Admin: inspection.AdminStatus{
			Name: c.Admin.Name, LogLevel: c.Admin.LogLevel, MetricsEndpoint: c.Admin.MetricsEndpoint,
			HealthcheckEndpoint: *cmp.Or(c.Admin.HealthcheckEndpoint, new("")),
			Quota:               strconv.Itoa(c.Admin.UserQuota), Offload: engineOf(kernel), Licensing: "free",
		},
	}
	if kernel.Reason != "" {
		st.Warnings = append(st.Warnings, "admin.offload_engine: "+kernel.Engine+": "+kernel.Reason)
	}
	for _, l := range c.Listeners {
		status := inspection.ListenerStatus{Listener: l, Stats: s.meter.Listener(l.Name).Stats(now)}
		for i, leaf := range certificates[l.Name] {
			if cert := describe(leaf); i == 0 {
				status.Certificate = &cert
			} else {
				status.OtherCertificates = append(status.OtherCertificates, cert)
			}
		}
		st.Listeners = append(st.Listeners, status)
	}
	for _, cl := range c.Clusters {
		st.Clusters = append(st.Clusters, inspection.ClusterStatus{Cluster: cl, Stats: s.meter.Cluster(cl.Name).Stats(now)})
	}
	return st
}

func (s *Server) state() string {
	switch {
	case s.table.Draining():
		return inspection.Terminating
	case s.ready() != nil:
		return inspection.NotReady
	}
	return inspection.Ready
}

// Ready returns nil if every listener of the wanted config is open, or else an error that names listeners that are not
// open. Once all listeners of a config with at least one listener have been open, it always returns nil, even if a
// later config fails: a failing readiness probe would cut running calls (see docs/reference/endpoints.md). Status lists
// the failures of later configs.
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
