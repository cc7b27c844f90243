package server

import (
	"errors"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// copying reports whether this pod sends copies of its sessions to other pods, and continues sessions of lost pods.
// Without the addresses of clients, the next pod of a client could not find its session.
func (s *Server) copying() bool { return s.opt.Copies && s.clientAddresses.Load() }

// Version implements forward.Sessions.
func (s forwarding) Version(c forward.Client) (v forward.Version, ok bool) {
	if l := s.movable(c.Port); l != nil {
		v.Session, v.Generation, ok = l.Gate().Version(c.Addr)
	}
	return v, ok
}

// Copy implements forward.Sessions.
func (s forwarding) Copy(c forward.Client) (record []byte, ok bool) {
	l := s.movable(c.Port)
	if l == nil || !s.copying() {
		return nil, false
	}
	return l.Gate().Copy(c.Addr, forward.MaxCopy)
}

// TakeOver implements forward.Sessions.
func (s forwarding) TakeOver(c forward.Client, v forward.Version, record []byte, by time.Duration) bool {
	l := s.movable(c.Port)
	if l == nil || !s.copying() {
		return false
	}
	var r session.Record
	err := r.UnmarshalBinary(record)
	if err == nil && (r.Client != c.Addr || r.Transaction != v.Session) {
		err = errors.New("the record is of another session")
	}
	if err == nil {
		shift(&r, by)
		r.Generation = v.Generation
		s.learnFormer(r.Former)
		err = l.Take(&r, forward.ReturnPath{}, nil, nil)
	}
	if err != nil {
		s.opt.Log.Debug("session of a lost pod is not taken over", "client", c.Addr, "error", err)
	}
	return err == nil
}

// GiveUp implements forward.Sessions.
func (s forwarding) GiveUp(c forward.Client, v forward.Version) {
	if l := s.movable(c.Port); l != nil {
		l.Gate().GiveUp(c.Addr, v.Session, v.Generation)
	}
}
