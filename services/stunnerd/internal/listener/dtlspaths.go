package listener

import (
	"errors"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
)

// A DTLS association ends with the pod that has its keys. Its encrypted records are forwarded to that pod as they are.
// A ClientHello is not: it starts an association at the pod where it arrives.

// encrypted reports whether a datagram is a DTLS record of an association with a complete handshake.
func encrypted(records []byte) bool {
	return len(records) > recordHeader && records[0] >= 20 && records[0] <= 63 && epochOf(records) > 0
}

// pass passes a datagram of a client without an association here to the pod that has it. It reports false if there is
// none.
func (s *dtlsSocket) pass(records []byte, client netip.AddrPort, control []byte) bool {
	if !encrypted(records) || !s.elsewhere.Pass(s.client(client), records, datagram.SourceOf(control), time.Now()) {
		return false
	}
	s.elsewhere.Flush()
	return true
}

// client returns the name of a client for other pods.
func (s *dtlsSocket) client(addr netip.AddrPort) forward.Client {
	return forward.Client{Addr: addr, Port: uint16(s.port.number)}
}

// serving returns the association that serves a client, or nil if its handshake is not complete.
func (as associations) serving() *association {
	if as.first == nil || !as.first.established.Load() {
		return nil
	}
	return as.first
}

// arrived records a datagram of the client at this pod.
func (as associations) arrived(now time.Time) {
	if a := as.serving(); a != nil {
		a.paths.arrived(forward.Way{}, now)
	}
}

// send sends records to the client, on both paths while it is undecided which one the client uses.
func (a *association) send(records []byte) error {
	pair := a.paths.current.Load()
	if pair == nil {
		return a.sendOn(&a.paths.here, records)
	}
	var second error
	if pair.second != nil {
		second = a.sendOn(pair.second, records)
	}
	return errors.Join(a.sendOn(pair.used, records), second)
}

func (a *association) sendOn(p *path, records []byte) error {
	if p == &a.paths.here {
		return a.sender.Send(records, a.client, &a.from)
	}
	return p.front.Send(records)
}

// find returns the association that serves a client, or nil.
func (l *dtlsListener) find(client netip.AddrPort) *association {
	for _, s := range l.sockets {
		if a := s.find(client).serving(); a != nil {
			return a
		}
	}
	return nil
}

// Has implements Forwarding.
func (l *dtlsListener) Has(client netip.AddrPort) bool { return l.find(client) != nil }

// Clients implements Forwarding.
func (l *dtlsListener) Clients(yield func(netip.AddrPort) bool) {
	for _, s := range l.sockets {
		for _, client := range s.served() {
			if !yield(client) {
				return
			}
		}
	}
}

// served returns the clients whose association is established.
func (s *dtlsSocket) served() (clients []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for client, as := range s.clients {
		if as.serving() != nil {
			clients = append(clients, client)
		}
	}
	return clients
}

// Deliver implements Forwarding.
func (l *dtlsListener) Deliver(client netip.AddrPort, records []byte, front forward.Way, now time.Time) bool {
	a := l.find(client)
	if a != nil && encrypted(records) {
		a.paths.arrived(front, now)
		a.deliver(records)
	}
	return a != nil
}

// Answer implements Forwarding.
func (l *dtlsListener) Answer(client netip.AddrPort, records []byte, asked *datagram.Source) {
	l.answers.add(client, records, asked)
}

// Unowned implements Forwarding. Only plain STUN messages come back when no pod has the session.
func (l *dtlsListener) Unowned(netip.AddrPort, []byte, *datagram.Source) {}

// Flush implements Forwarding.
func (l *dtlsListener) Flush(now time.Time) { l.answers.flush(now) }

// Sweep implements Forwarding.
func (l *dtlsListener) Sweep(now time.Time) { l.answers.sweep(now) }
