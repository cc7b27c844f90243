package server

import (
	"context"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
)

const (
	// adoptionsPerSecond is the largest number of sessions that a pod offers in a second to the pods at which the
	// datagrams of their clients arrive.
	adoptionsPerSecond = 50
	// maxAdopted is the largest number of relay sockets of this pod that are used by sessions after Adopt. Peers that
	// do not accept the new relayed address use them until they are silent.
	maxAdopted = 1024
)

// Adopt hands sessions over to the pods at which the datagrams of their clients arrive, until ctx ends. So a call uses
// the path through a second pod only for a short time, and new pods get a part of the load. Adopt does nothing while
// the process drains, because HandOver then hands over all sessions.
func (s *Server) Adopt(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for seen := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.confirmAll()
			// While no other pod forwards a datagram, no session is due.
			if n := s.forwarder.Delivered(); n != seen && !s.table.Draining() && s.adoptDue(now) {
				seen = n
			}
		}
	}
}

// adoptDue tries the sessions that are due, at most adoptionsPerSecond. It reports whether it has tried all due
// sessions.
func (s *Server) adoptDue(now time.Time) (all bool) {
	defer s.meter.RecoverPanic("hand over sessions to the pods of their clients")
	if !s.clientAddresses.Load() {
		return true
	}
	var excluded map[netip.Addr]bool
	_, adopted := s.handedSockets()
	left := min(adoptionsPerSecond, maxAdopted-adopted)
	for port := range *s.forwardPorts.Load() {
		l := s.movable(port)
		if l == nil {
			continue
		}
		for addr := range l.Gate().Clients() {
			c := forward.Client{Addr: addr, Port: port}
			front, due := s.adopts(l, c, now)
			switch {
			case !due:
				continue
			case left <= 0:
				return false
			case excluded == nil:
				excluded = s.gatewayAddresses()
			}
			left--
			s.adopt(c, l, front, excluded)
		}
	}
	return true
}

// adopts returns the return path through the pod at which the datagrams of a client arrive, and whether its session is
// due.
func (s *Server) adopts(l listener.Movable, c forward.Client, now time.Time) (front forward.ReturnPath, due bool) {
	if _, _, ok := l.Elsewhere(c.Addr, 0); !ok { // false for most clients
		return front, false
	}
	v, ok := forwarding{s}.Version(c)
	if !ok {
		return front, false
	}
	front, at, ok := l.Elsewhere(c.Addr, v.Moves())
	return front, ok && !now.Before(at) && s.forwarder.Adopts(front)
}

func (s *Server) adopt(c forward.Client, l listener.Movable, front forward.ReturnPath, excluded map[netip.Addr]bool) {
	_, err := s.move(c, l, excluded, true,
		func(c forward.Client, record []byte, asked datagram.Source) (forward.ReturnPath, error) {
			return s.forwarder.Adopt(c, record, asked, front)
		})
	if err != nil {
		s.meter.SessionsNotAdopted.Add(1)
		l.Stays(c.Addr, time.Now())
		return
	}
	s.meter.SessionsAdopted.Add(1)
}
