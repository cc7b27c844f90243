package listener

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// A DTLS association ends with the pod that has its keys. Its encrypted records are forwarded unchanged to that pod. A
// ClientHello is not forwarded: it starts an association at the pod at which it arrives. A record that decrypts is
// authentic. It moves the client to the path on which it has arrived, so there is never a second path.

// encrypted reports whether a datagram is a DTLS record of an association with a complete handshake.
func encrypted(records []byte) bool {
	return len(records) > recordHeader && records[0] >= 20 && records[0] <= 63 && epochOf(records) > 0
}

// pass passes a datagram of a client without an association at this pod to the pod that has the association. It reports
// false if no pod has it.
func (s *dtlsSocket) pass(records []byte, client netip.AddrPort, control []byte) bool {
	if !encrypted(records) || !s.elsewhere.Pass(s.client(client), records, datagram.SourceOf(control), time.Now()) {
		return false
	}
	s.elsewhere.Flush()
	return true
}

// client returns the forward.Client for the address of a client.
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

// follow moves the client to the path of the last datagram if this datagram contained an authentic record. A record is
// authentic if it decrypts. If it is also newer than all others, number increases before a reader gets the content and
// before the next datagram is read.
func (a *association) follow() {
	a.following.Lock()
	defer a.following.Unlock()
	if n := a.number.Load(); n > a.followed {
		a.followed = n
		a.paths.follow(a.front, time.Now())
	}
}

// read records the path of the datagram that pion/dtls reads next.
func (a *association) read(front forward.ReturnPath) {
	a.following.Lock()
	defer a.following.Unlock()
	a.front = front
}

// send sends records to the client.
func (a *association) send(records []byte) error {
	if pair := a.paths.current.Load(); pair != nil {
		return pair.used.front.Send(records)
	}
	return a.sender.Send(records, a.client, &a.from)
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

// served returns the clients whose handshake is complete.
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
func (l *dtlsListener) Deliver(client netip.AddrPort, records []byte, front forward.ReturnPath, _ time.Time) bool {
	a := l.find(client)
	switch {
	case a == nil:
	case encrypted(records):
		a.deliver(records, front)
	default:
		a.socket.drop(client, meter.UnexpectedRecord)
	}
	return a != nil
}

// Answer implements Forwarding.
func (l *dtlsListener) Answer(client netip.AddrPort, records []byte, asked *datagram.Source) {
	l.answers.add(client, records, asked)
}

// Unowned implements Forwarding. It drops the message: a STUN message over DTLS is encrypted.
func (l *dtlsListener) Unowned(client netip.AddrPort, _ []byte, _ *datagram.Source) {
	l.sockets[0].drop(client, meter.Malformed)
}

// Flush implements Forwarding.
func (l *dtlsListener) Flush(now time.Time) { l.answers.flush(now) }

// Sweep implements Forwarding.
func (l *dtlsListener) Sweep(now time.Time) { l.answers.sweep(now) }
