package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
)

// Offload returns how media is forwarded in the kernel.
func (s *Server) Offload() inspection.OffloadStatus { return offloadStatus(s.offload.Load().Status()) }

func offloadStatus(o offload.Status) inspection.OffloadStatus {
	return inspection.OffloadStatus{
		Engine: o.Engine, Mechanism: string(o.Mechanism), Reason: o.Reason, Interfaces: o.Interfaces,
		Bindings: o.Bindings, MaxBindings: o.MaxBindings, Exhausted: o.Exhausted,
	}
}

// setOffload puts the offload engine of a config in force. Channels that the kernel forwards return to user space until
// their next packet if the engine changes. The caller holds mu.
func (s *Server) setOffload(next config.Admin) {
	old := s.offload.Load()
	if next.OffloadEngine == s.running.Admin.OffloadEngine &&
		slices.Equal(next.OffloadInterfaces, s.running.Admin.OffloadInterfaces) {
		return
	}
	var f *offload.Offload
	if next.OffloadEngine != offload.EngineNone {
		f = offload.Open(offload.Options{
			Engine: next.OffloadEngine, Interfaces: next.OffloadInterfaces, Log: s.opt.Log,
		})
	}
	s.offload.Store(f)
	for _, g := range s.listeners {
		for _, each := range slices.Concat(g.earlier, []*generation{g}) {
			each.gate.Offload(f)
		}
	}
	if err := old.Close(); err != nil {
		s.opt.Log.Warn("end forwarding in the kernel", "error", err)
	}
}

// engineOf returns None, or TC if an interface has the programs.
func engineOf(s inspection.OffloadStatus) string {
	if s.Mechanism == string(offload.None) {
		return offload.EngineNone
	}
	return offload.EngineTC
}
