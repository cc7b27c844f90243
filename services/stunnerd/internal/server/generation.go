package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
)

// generation is a listener on one port and protocol. A config that changes the port or the protocol of a listener opens
// the next generation. An earlier generation exists until its last session has ended.
type generation struct {
	spec   config.Listener
	gate   *gate.Gate
	socket listener.Listener
	state  state
	// earlier holds the generations of the same listener that may still have sessions.
	earlier []*generation
}

type state uint8

const (
	// stateOpen is the state of a generation that accepts new sessions.
	stateOpen state = iota
	// stateRetired is the state of a generation that accepts no new sessions and still occupies its port, because its
	// sessions over UDP and DTLS use the sockets of the port.
	stateRetired
	// statePortReleased is the state of a generation that accepts no new sessions and has closed its listening socket,
	// so that another listener can open the port. Sessions over TCP and TLS continue, because their connections have
	// sockets of their own.
	statePortReleased
	// stateEnded is the state of a generation without sessions and sockets.
	stateEnded
)

// transitions lists the states that can follow a state. A retired generation opens again if a config returns to its
// port. A generation that has closed its port cannot open again, because another process may use the port.
var transitions = map[state][]state{
	stateOpen:         {stateRetired, statePortReleased, stateEnded},
	stateRetired:      {stateOpen, stateEnded},
	statePortReleased: {stateEnded},
}

// move changes the state if transitions allows it, and reports whether it did.
func (g *generation) move(to state) bool {
	if !slices.Contains(transitions[g.state], to) {
		return false
	}
	g.state = to
	return true
}

// releasePort closes the listening socket of an open generation, and keeps its TCP and TLS sessions. It reports false,
// and does nothing, for UDP and DTLS, because the sessions use the socket.
func (g *generation) releasePort() bool {
	return g.state == stateOpen && g.socket.ReleasePort() && g.move(statePortReleased)
}

// reopen makes a retired generation accept sessions again, for listener l, which has the same port and protocol.
func (g *generation) reopen(l config.Listener, p *gate.Policy, routes *cluster.View) error {
	if err := g.socket.Update(l); err != nil {
		return err
	}
	g.gate.Update(p, routes)
	g.gate.Resume()
	g.spec = l
	g.move(stateOpen)
	return nil
}

// update sets the policy and the routes of this generation and of the earlier generations that have not ended.
func (g *generation) update(p *gate.Policy, routes *cluster.View) {
	g.earlier = slices.DeleteFunc(g.earlier, func(e *generation) bool { return e.state == stateEnded })
	for _, e := range g.earlier {
		e.gate.Update(p, routes)
	}
	g.gate.Update(p, routes)
}

// retiredAt returns the retired generation that occupies the port of l with the same protocol, or nil.
func (g *generation) retiredAt(l config.Listener) *generation {
	for _, e := range g.earlier {
		if e.state == stateRetired && e.spec.Protocol == l.Protocol && e.spec.Port == l.Port {
			return e
		}
	}
	return nil
}

// generations yields the generations of all listeners. For each listener, the earlier generations come first. The
// caller holds mu.
func (s *Server) generations(yield func(*generation) bool) {
	for _, g := range s.listeners {
		for _, e := range g.earlier {
			if !yield(e) {
				return
			}
		}
		if !yield(g) {
			return
		}
	}
}

// retire makes a generation refuse new sessions. If possible it frees the port at once, because another listener may
// need the port and the last session may last for hours.
func (s *Server) retire(g *generation) {
	if g.releasePort() || g.move(stateRetired) {
		s.drain(g)
	}
}

// drain makes a generation refuse new sessions, and ends the generation after its last session.
func (s *Server) drain(g *generation) {
	g.gate.Retire()
	s.retiring.Go(func() {
		for {
			changed := s.table.Changed()
			if s.drained(g) {
				return
			}
			select {
			case <-changed:
			case <-s.closed:
				g.gate.Close()
			}
		}
	})
}

// drained ends a generation that has no sessions. It reports whether drain can stop waiting: the generation has ended,
// or was reopened.
func (s *Server) drained(g *generation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.state != stateOpen && g.gate.Sessions() == 0 {
		s.end(g)
	}
	return g.state == stateOpen || g.state == stateEnded
}

// stop ends a listener: all its generations and their sessions.
func (s *Server) stop(name string) {
	g := s.listeners[name]
	if g == nil {
		return
	}
	delete(s.listeners, name)
	s.end(g)
	for _, e := range g.earlier {
		s.end(e)
	}
}

// end ends a generation of a listener. It closes the sockets before the gate. Otherwise a request that is being read
// could start a session after the gate has ended all sessions.
func (s *Server) end(g *generation) {
	if !g.move(stateEnded) {
		return
	}
	g.gate.Retire()
	if err := g.socket.Close(); err != nil {
		s.opt.Log.Warn("close listener", "listener", g.spec.Name, "error", err)
	}
	g.gate.Close()
}
