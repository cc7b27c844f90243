package server

import (
	"bytes"
	"crypto/x509"
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Reach returns whether the clients of the listeners that run may reach a peer, by the rules for live requests and
// datagrams.
func (s *Server) Reach(peer netip.AddrPort) []inspection.ListenerReach {
	s.mu.Lock()
	defer s.mu.Unlock()
	reached := []inspection.ListenerReach{}
	for _, l := range s.running.Listeners {
		r := inspection.ListenerReach{Listener: l.Name}
		name, endpoint, refused, allowed := s.listeners[l.Name].gate.Reach(peer)
		if r.Allowed = allowed; allowed {
			r.Cluster, r.Endpoint = name, endpoint.String()
		} else {
			e := meter.Entry{Reason: refused, Note: meter.Note{Listener: l.Name, Peer: peer}}
			r.Reason, r.Text = refused.String(), e.Text(meter.Routes(l.Routes))
		}
		reached = append(reached, r)
	}
	return reached
}

// EndSessions ends the selected sessions, also those of replaced listeners, and returns them.
func (s *Server) EndSessions(selected func(*session.Session) bool) (ended []*session.Session) {
	for _, g := range s.gates() {
		ended = append(ended, g.EndSessions(selected, usage.ByOperator)...)
	}
	if len(ended) > 0 {
		s.opt.Log.Info("sessions ended on request of the operator", "sessions", len(ended))
	}
	return ended
}

// gates returns the gates that may have sessions.
func (s *Server) gates() (gates []*gate.Gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.listeners {
		for _, each := range slices.Concat(g.earlier, []*generation{g}) {
			gates = append(gates, each.gate)
		}
	}
	return gates
}

// describe returns the fields of a certificate for the status.
func describe(c *x509.Certificate) inspection.Certificate {
	d := inspection.Certificate{
		Subject: c.Subject.String(), Names: config.CertificateNames(c), Issuer: c.Issuer.String(),
		NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
		SelfSigned: bytes.Equal(c.RawSubject, c.RawIssuer) &&
			c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil,
	}
	return d
}
