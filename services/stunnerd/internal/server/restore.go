package server

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// restoring holds the sessions that a previous process has left in the journal until their listeners are open.
type restoring struct {
	saved map[savedAt][]gate.Saved
	// took is how long it took to open the relay sockets and the allocations.
	took time.Duration
	done bool
}

// savedAt identifies the UDP listener of saved sessions. The journal has no sessions of other transports, because those
// sessions end with their connections.
type savedAt struct {
	listener string
	port     int
}

// savedOf returns the key under which the sessions of a listener are saved. For other transports than UDP it returns
// the zero key.
func savedOf(l config.Listener) savedAt {
	if l.Protocol != config.TURNUDP {
		return savedAt{}
	}
	return savedAt{l.Name, l.Port}
}

// openSaved opens the relay sockets of saved sessions. It runs before the first listener is opened, so that no new
// allocation gets one of their ports. A session whose port is in use is dropped. From then on, datagrams of peers wait
// in the kernel.
func (s *Server) openSaved(entries []journal.Entry) {
	begun := time.Now()
	opened := make([]gate.Saved, len(entries))
	var group sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(len(entries)); i = next.Add(1) {
				opened[i-1] = s.openSavedOne(entries[i-1])
			}
		})
	}
	group.Wait()
	s.restoring.saved = map[savedAt][]gate.Saved{}
	for _, o := range opened {
		if o.Socket != nil {
			at := savedAt{o.Listener, int(o.Local.Port())}
			s.restoring.saved[at] = append(s.restoring.saved[at], o)
		}
	}
	s.restoring.took = time.Since(begun)
}

func (s *Server) openSavedOne(e journal.Entry) gate.Saved {
	socket, err := s.network.Open(e.Relay.Addr(), e.Relay.Port())
	if err != nil {
		s.opt.Log.Debug("cannot restore a session", "relay", e.Relay, "error", err)
		s.meter.Unrestore(meter.PortTaken, 1, meter.Note{Listener: e.Listener})
		s.opt.Journal.End(e.ID)
		s.opt.Usage.Abandon(e.Usage, meter.PortTaken.String())
		return gate.Saved{}
	}
	return gate.Saved{Entry: e, Socket: socket}
}

// restored removes the sessions that a listener has restored.
func (s *Server) restored(at savedAt, took time.Duration) {
	if len(s.restoring.saved[at]) > 0 {
		delete(s.restoring.saved, at)
		s.restoring.took += took
	}
}

// openFormerPorts opens the ports that listeners of the config have left while they had the saved sessions. As in the
// previous process, the sessions continue there, and the port is closed after the last one. If another listener of the
// config has the port, or it cannot be opened, dropSaved drops the sessions. The caller holds mu.
func (s *Server) openFormerPorts(next config.Config, views map[string]*cluster.View) {
	for at := range s.restoring.saved {
		current := s.listeners[at.listener]
		i := slices.IndexFunc(next.Listeners, func(l config.Listener) bool { return l.Name == at.listener })
		if current == nil || i < 0 || savedOf(next.Listeners[i]) == at {
			continue
		}
		l := next.Listeners[i]
		l.Protocol, l.Port = config.TURNUDP, at.port
		if slices.ContainsFunc(next.Listeners, func(o config.Listener) bool { return socketOf(o) == socketOf(l) }) {
			continue
		}
		g, err := s.openOne(l, s.policy(next, l), views[l.Name])
		if err != nil {
			s.opt.Log.Debug("cannot open the former port of a listener", "listener", l.Name, "port", l.Port, "error", err)
			continue
		}
		current.earlier = append(current.earlier, g)
		s.retire(g)
	}
}

// dropSaved drops the saved sessions whose listener the config does not have. The sessions of a listener that could not
// be opened wait for the next attempt. The caller holds mu.
func (s *Server) dropSaved(next config.Config) {
	for at, saved := range s.restoring.saved {
		if !slices.ContainsFunc(next.Listeners, func(l config.Listener) bool { return savedOf(l) == at }) {
			s.opt.Log.Debug("cannot restore sessions: the config has no such UDP listener",
				"listener", at.listener, "port", at.port, "sessions", len(saved))
			s.meter.Unrestore(meter.NoListener, len(saved), meter.Note{Listener: at.listener})
			for _, one := range saved {
				s.opt.Journal.End(one.ID)
				s.opt.Usage.Abandon(one.Usage, meter.NoListener.String())
			}
			s.closeSaved(at)
		}
	}
	if s.restoring.done {
		return
	}
	s.restoring.done = true
	s.opt.Journal.Done()
	if n := s.meter.Restored.Load(); n > 0 {
		s.opt.Log.Info("sessions restored", "sessions", n, "took", s.restoring.took)
	}
}

// closeSaved closes the relay sockets of saved sessions, which stay in the journal.
func (s *Server) closeSaved(at savedAt) {
	for _, one := range s.restoring.saved[at] {
		_ = one.Socket.Close()
	}
	delete(s.restoring.saved, at)
}

// unstored returns the numbers of sessions that are not in the journal. See gate.Gate.Unstored.
func (s *Server) unstored() (connected, lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.generations {
		c, l := g.gate.Unstored()
		connected, lost = connected+c, lost+l
	}
	return connected, lost
}

// Unstored returns the number of live sessions that are not in the journal, so that they end with the process.
func (s *Server) Unstored() int {
	connected, lost := s.unstored()
	return connected + lost
}

// Journal returns the state of the session journal, or nil if there is none.
func (s *Server) Journal() *inspection.JournalStatus {
	if s.opt.Journal == nil {
		return nil
	}
	j := s.opt.Journal.Status()
	st := &inspection.JournalStatus{
		Problem: j.Problem, Bytes: j.Bytes, Sessions: j.Sessions, Errors: j.Errors, Restored: s.meter.Restored.Load(),
		Refused: j.Refused,
	}
	if j.Errors+j.Refused > 0 {
		_, lost := s.unstored()
		st.Lost = uint64(lost)
	}
	if st.Lost > 0 && st.Problem == "" {
		const problem = "sessions that are not in the journal: %d: their users store more than their share of a small volume"
		st.Problem = fmt.Sprintf(problem, st.Lost)
	}
	for _, n := range s.meter.Unrestored() {
		st.Dropped += n
	}
	return st
}
