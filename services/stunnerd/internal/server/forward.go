package server

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// SetPeers replaces the list of the pods of the Gateway, between which datagrams are forwarded, and which accept the
// nonces of each other. Clients must not use the listeners of these pods and the sockets for forwarded datagrams as
// peers. An empty list ends forwarding. The pods of the previous list stay denied, because they may still run. problem
// is why the list is not current, or empty.
func (s *Server) SetPeers(p forward.Peers, problem string) {
	s.forwarder.SetPeers(p)
	secrets := make([][32]byte, 0, len(p.Keys))
	for _, k := range p.Keys {
		secrets = append(secrets, k.Secret)
	}
	s.nonces.ShareKeys(secrets)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peersProblem = problem
	if len(p.Pods) > 0 {
		s.pods = p.Pods
	}
	s.refreshViews()
}

// ambiguous reports whether a client at another pod may have the same address and port. It implements
// forward.Options.Ambiguous. A private address may be that of a node that translates the addresses of clients
// (externalTrafficPolicy: Cluster), unless the config says that pods see the addresses of clients.
func (s *Server) ambiguous(client netip.Addr) bool {
	return !s.clientAddresses.Load() && limit.Private(client)
}

// Peer returns the address at which this process receives forwarded datagrams, and its sender. It is the zero Peer if
// the process does not forward.
func (s *Server) Peer() forward.Peer { return s.forwarder.Self() }

// Forwarding returns how datagrams are forwarded between the pods of the Gateway, or nil if they cannot be forwarded.
func (s *Server) Forwarding() *inspection.ForwardingStatus {
	if s.forwarder == nil {
		return nil
	}
	f := s.forwarder.Status()
	s.mu.Lock()
	f.Problem = cmp.Or(s.peersProblem, f.Problem)
	s.mu.Unlock()
	return &inspection.ForwardingStatus{
		Problem: f.Problem, Peers: f.Peers, Clients: f.Clients, Passed: f.Passed, Answered: f.Answered,
		Delivered: f.Delivered, Replied: f.Replied, Unknown: f.Unknown, Limited: f.Limited, Copies: f.Copies,
		Adopted: s.meter.SessionsAdopted.Load(), Refused: f.Refused,
	}
}

// forwardPorts are the UDP listeners by port, including retired listeners that still have sessions.
type forwardPorts map[uint16]listener.Forwarding

// watchForwarding sets the listeners that forward datagrams. The caller holds mu.
func (s *Server) watchForwarding() {
	ports := forwardPorts{}
	for g := range s.generations {
		if l, ok := g.socket.(listener.Forwarding); ok && (g.state == stateOpen || g.state == stateRetired) {
			ports[uint16(g.spec.Port)] = l
		}
	}
	s.forwardPorts.Store(&ports)
}

// forwarding implements forward.Sessions.
type forwarding struct{ *Server }

func (s forwarding) ports() forwardPorts { return *s.forwardPorts.Load() }

// Serves implements forward.Sessions.
func (s forwarding) Serves(port uint16) bool { return s.ports()[port] != nil }

// Has implements forward.Sessions.
func (s forwarding) Has(c forward.Client) bool {
	l := s.ports()[c.Port]
	return l != nil && l.Has(c.Addr)
}

// All implements forward.Sessions.
func (s forwarding) All(yield func(forward.Client) bool) {
	for port, l := range s.ports() {
		more := true
		l.Clients(func(addr netip.AddrPort) bool {
			more = yield(forward.Client{Addr: addr, Port: port})
			return more
		})
		if !more {
			return
		}
	}
}

// Deliver implements forward.Sessions.
func (s forwarding) Deliver(c forward.Client, frame []byte, front forward.ReturnPath, now time.Time) bool {
	l := s.ports()[c.Port]
	return l != nil && l.Deliver(c.Addr, frame, front, now)
}

// Begin implements forward.Sessions.
func (s forwarding) Begin(c forward.Client, request []byte, front forward.ReturnPath) bool {
	l := s.movable(c.Port)
	if l != nil {
		l.Begin(c.Addr, request, front)
	}
	return l != nil
}

// Answer implements forward.Sessions.
func (s forwarding) Answer(c forward.Client, frame []byte, asked *datagram.Source) bool {
	l := s.ports()[c.Port]
	if l != nil {
		l.Answer(c.Addr, frame, asked)
	}
	return l != nil
}

// Unowned implements forward.Sessions.
func (s forwarding) Unowned(c forward.Client, message []byte, asked *datagram.Source) {
	l := s.ports()[c.Port]
	if l == nil { // the listener was closed during the search for the owner
		s.meter.Decline(meter.OtherListener, meter.Note{})
		return
	}
	l.Unowned(c.Addr, message, asked)
}

// Flush implements forward.Sessions.
func (s forwarding) Flush(now time.Time) {
	for _, l := range s.ports() {
		l.Flush(now)
	}
}

// Sweep implements forward.Sessions.
func (s forwarding) Sweep(now time.Time) {
	for _, l := range s.ports() {
		l.Sweep(now)
	}
}

// Users implements forward.Sessions.
func (s forwarding) Users(yield func(forward.User, int64) bool) {
	s.table.Users(func(u session.User, ports int64) bool { return yield(forward.User(u), ports) })
}

// quotas implements gate.Quotas.
type quotas struct{ *forward.Forwarder }

// Admit implements gate.Quotas.
func (q quotas) Admit(a session.Admission, answer func(ok bool)) {
	q.Forwarder.Admit(forward.User(a.User), uint32(min(a.Ports, math.MaxUint32)), uint32(a.Limit), answer)
}

// report reports to the other pods how many sessions a user has here.
func (s *Server) report(u session.User, ports int64, fewer bool) {
	s.forwarder.Count(forward.User(u), uint32(min(max(ports, 0), math.MaxUint32)), fewer)
}

// forwardSockets returns the addresses at which pods of the Gateway receive forwarded datagrams. The caller holds mu.
func (s *Server) forwardSockets() []netip.AddrPort {
	var sockets []netip.AddrPort
	for _, pod := range s.pods {
		sockets = append(sockets, pod.Address)
	}
	if self := s.forwarder.Self().Address; self.IsValid() {
		sockets = append(sockets, self)
	}
	return sockets
}

// Parts of the memory of sessions that clients of other pods may use, and the memory of a socket in the kernel.
const (
	forwardedPart, frontPart, copiesPart = 16, 32, 16
	frontSocket                          = 4 << 10
)

// copiesMemory returns the largest memory of copies of sessions of other pods, for a memory of sessions; 0 means no
// maximum. It suffices for two copies of 700 bytes for each session that fits into the memory of sessions.
func copiesMemory(memory int64) int { return int(memory / copiesPart) }

// forwardedClients returns the largest number of clients in each table of clients of other pods, for a memory of
// sessions; 0 means no maximum. It is more than the number of sessions that fit into that memory.
func forwardedClients(memory int64) int { return int(memory / forwardedPart / forward.PriceOfClient) }

// frontSenders returns the largest number of sockets of a listener that each send to one client of another pod.
func frontSenders(memory int64) int { return int(memory / frontPart / frontSocket) }
