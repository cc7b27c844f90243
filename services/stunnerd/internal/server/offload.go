package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
)

// OffloadStatus describes how media is forwarded in the kernel.
type OffloadStatus struct {
	// Engine is the engine of the config: None, TC, XDP or Auto.
	Engine string `json:"engine"`
	// Mechanism is None, TCX or clsact.
	Mechanism offload.Mechanism `json:"mechanism"`
	// Reason tells why packets are not forwarded in the kernel, or not as the config says.
	Reason     string   `json:"reason,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"`
	// Bindings is the number of channel bindings that the kernel may forward.
	Bindings    int `json:"bindings"`
	MaxBindings int `json:"maxBindings"`
}

// Offload returns how media is forwarded in the kernel.
func (s *Server) Offload() OffloadStatus {
	o := s.offload.Load().Status()
	return OffloadStatus{o.Engine, o.Mechanism, o.Reason, o.Interfaces, o.Bindings, o.MaxBindings}
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
func engineOf(s OffloadStatus) string {
	if s.Mechanism == offload.None {
		return offload.EngineNone
	}
	return offload.EngineTC
}
