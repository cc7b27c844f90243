package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
)

// Apply puts a validated and expanded config in force. If listeners cannot be opened or updated, the error names them,
// and the rest of the config is in force nevertheless.
func (s *Server) Apply(next config.Config) (Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = next.Clone()
	plan := PlanFor(s.running, next)
	s.rememberFormer(next.Auth)
	s.revoked = credential.NewRevocations(next.Auth.Revocations)
	s.table.SetBounds(bounds(next.Admin, s.capacity()))
	s.nonces.Share(next)
	s.setOffload(next.Admin)
	views := s.views(next)

	s.releasePorts(plan.CloseFirst, next)
	opened, failed := s.open(slices.Concat(plan.Start, plan.Replace), next, views)
	s.update(next, views, failed)
	s.replace(opened)
	s.openFormerPorts(next, views)
	s.stopRemoved(next)
	return plan, s.commit(next, failed)
}

// ApplyEndpoints puts changes of endpoints in force, in the config of the last Apply. Its cost depends only on the
// number of changes: it touches no listener, and resolves no host name. If it returns false, it has done nothing: the
// changes do not belong to that config, or they need an Apply.
func (s *Server) ApplyEndpoints(changes []config.EndpointChange) (Plan, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	plan := Plan{}
	for _, c := range changes {
		if c.Index >= len(s.wanted.Clusters) || len(s.failures) > 0 {
			return Plan{}, false
		}
		if !c.Follows(s.wanted.Clusters[c.Index]) {
			return Plan{}, false
		}
		plan.Changes = append(plan.Changes, c.Change())
	}
	if !s.viewBuilder.Patch(changes) {
		return Plan{}, false
	}
	for _, c := range changes { // no other goroutine reads these lists without holding mu
		s.wanted.Clusters[c.Index].Endpoints = c.New
		s.running.Clusters[c.Index].Endpoints = c.New
		s.clusters[c.Index].Endpoints = c.New
	}
	s.updateViews(func(l config.Listener) bool {
		return slices.ContainsFunc(changes, func(c config.EndpointChange) bool {
			return slices.Contains(l.Routes, c.Cluster)
		})
	})
	s.meter.Applied.Add(1)
	return plan, true
}

// views returns the view of each listener of a config, and starts to resolve the host names in the config.
func (s *Server) views(next config.Config) map[string]*cluster.View {
	s.names.Watch(append(cluster.Names(next.Clusters), publicNames(next.Listeners)...))
	s.clusters = cluster.Resolve(next.Clusters, s.names.Answers())
	s.viewBuilder.Take(s.clusters)
	s.self = s.selfOf(next)
	s.allowed = make(map[string]*cluster.View, len(next.Listeners))
	views := make(map[string]*cluster.View, len(next.Listeners))
	for _, l := range next.Listeners {
		views[l.Name] = s.view(l)
	}
	return views
}

// releasePorts frees the ports of the named listeners. If a listener is also in the next config, its TCP and TLS
// sessions continue, because they have sockets of their own. All other sessions end.
func (s *Server) releasePorts(names []string, next config.Config) {
	for _, name := range names {
		if g := s.listeners[name]; g != nil && has(next, name) && g.releasePort() {
			s.drain(g)
			continue
		}
		s.stop(name)
	}
}

// open opens the given listeners, each as a new generation: a listener on one port and protocol. The policy of a
// generation is set before it accepts requests.
func (s *Server) open(listeners []config.Listener, next config.Config, views map[string]*cluster.View) (
	opened []*generation, failed map[string]error,
) {
	failed = map[string]error{}
	for _, l := range listeners {
		g, err := s.openOne(l, s.policy(next, l), views[l.Name])
		if err != nil {
			failed[l.Name] = err
			continue
		}
		opened = append(opened, g)
	}
	return opened, failed
}

// openOne opens a listener. If a retired generation of the same listener occupies the port with the same protocol, that
// generation is reopened instead.
func (s *Server) openOne(l config.Listener, p *gate.Policy, routes *cluster.View) (*generation, error) {
	if current := s.listeners[l.Name]; current != nil {
		if g := current.retiredAt(l); g != nil {
			return g, updateError(l, g.reopen(l, p, routes))
		}
	}
	g := gate.New(l.Name, l.Protocol, gate.Shared{
		Engine: s.engine, Nonces: s.nonces, Network: s.network, Reservations: s.reservations, Limits: s.limits,
		Table: s.table, Quotas: quotas{s.forwarder}, Meter: s.meter, Log: s.opt.Log, Journal: s.opt.Journal,
		Usage: s.opt.Usage,
	})
	g.Update(p, routes)
	g.Offload(s.offload.Load())
	begun, at := time.Now(), savedOf(l)
	socket, err := listener.Open(l, g, listener.Options{
		Sockets: s.opt.Sockets, Saved: s.restoring.saved[at], Limits: s.connLimits, Forwarder: s.forwarder,
		FrontSenders: frontSenders(s.opt.Memory), Meter: s.meter, Log: s.opt.Log,
	})
	if err != nil {
		return nil, s.explain(l, err)
	}
	s.restored(at, time.Since(begun))
	return &generation{spec: l, gate: g, socket: socket}, nil
}

func updateError(l config.Listener, err error) error {
	if err != nil {
		err = fmt.Errorf("update listener %s: %w", l.Name, err)
	}
	return err
}

// explain extends the error of a listener whose port is in use. If UDP or DTLS sessions of another listener, which has
// left the port, still use the port, explain adds the name of that listener. The text is the same at each attempt, so
// that retries do not look like changes.
func (s *Server) explain(l config.Listener, err error) error {
	for name, current := range s.listeners {
		for _, e := range current.earlier {
			if e.state == stateRetired && socketOf(e.spec) == socketOf(l) {
				return fmt.Errorf("%w: calls that listener %s had there go on, and hold it until the last one has ended",
					err, name)
			}
		}
	}
	return err
}

// update sets policies, routes and certificates of the listeners that are in the next config.
func (s *Server) update(next config.Config, views map[string]*cluster.View, failed map[string]error) {
	for _, l := range next.Listeners {
		g := s.listeners[l.Name]
		if g == nil {
			continue
		}
		g.update(s.policy(next, l), views[l.Name])
		if l.Protocol != g.spec.Protocol {
			continue // its socket is replaced, or the new socket could not be opened
		}
		if err := updateError(l, g.socket.Update(l)); err != nil {
			failed[l.Name] = err
		}
	}
}

// replace makes the opened generations (a listener on one port and protocol each) the current ones, and retires the
// generations that they replace.
func (s *Server) replace(opened []*generation) {
	for _, g := range opened {
		if old := s.listeners[g.spec.Name]; old != nil {
			g.earlier = slices.DeleteFunc(append(old.earlier, old), func(e *generation) bool { return e == g })
			old.earlier = nil
			s.retire(old)
		}
		s.listeners[g.spec.Name] = g
	}
}

// stopRemoved stops the listeners that are not in the next config. Plan.Stop is not enough: a listener whose port was
// closed for another listener is not in the running config, so it is not in Plan.Stop, but it may have sessions.
func (s *Server) stopRemoved(next config.Config) {
	for name := range s.listeners {
		if !has(next, name) {
			s.stop(name)
		}
	}
}

// commit records the config that is in force now, and returns the failures as one error.
func (s *Server) commit(next config.Config, failed map[string]error) error {
	s.wanted, s.running = next, withoutFailures(next, s.listeners)
	s.clientAddresses.Store(next.Admin.ClientAddresses)
	s.watchTasks()
	s.dropSaved(next)
	s.meter.Applied.Add(1)
	s.meter.Keep(names(next.Listeners, func(l config.Listener) string { return l.Name }),
		names(next.Clusters, func(c config.Cluster) string { return c.Name }))
	s.failures = make(map[string]string, len(failed))
	var errs []error
	for name, err := range failed {
		s.failures[name] = err.Error()
		errs = append(errs, err)
	}
	s.served = s.served || len(next.Listeners) > 0 && s.ready() == nil
	return errors.Join(errs...)
}

// names returns the names of the parts of a config.
func names[T any](parts []T, name func(T) string) (all []string) {
	for _, p := range parts {
		all = append(all, name(p))
	}
	return all
}

// has reports whether a config has a listener with a name.
func has(c config.Config, name string) bool {
	return slices.ContainsFunc(c.Listeners, func(l config.Listener) bool { return l.Name == name })
}

// withoutFailures returns the part of a config that is in force. It leaves out listeners that are not open, and sets
// the port and protocol of the others to the ones on which they are open.
func withoutFailures(next config.Config, current map[string]*generation) config.Config {
	next.Listeners = slices.DeleteFunc(slices.Clone(next.Listeners), func(l config.Listener) bool {
		return current[l.Name] == nil || current[l.Name].state != stateOpen
	})
	for i, l := range next.Listeners {
		spec := current[l.Name].spec
		next.Listeners[i].Port, next.Listeners[i].Protocol = spec.Port, spec.Protocol
	}
	return next
}
