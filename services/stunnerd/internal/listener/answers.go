package listener

import (
	"net/netip"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// maxFrontSenders is the largest number of sockets of a listener that send to single clients with a session in
	// another pod. Each has about 3 kB in the kernel. Further clients share the sockets of the readers.
	maxFrontSenders = 4096
	// frontShare is a divisor of the file descriptors that sockets of single clients may use (see OwnShare). Clients
	// with a session at another pod may use this share. The rest is for clients with a session at this pod.
	frontShare = 2
	// idleSender is how long a socket of a client with a session in another pod stays open without an answer.
	idleSender = time.Minute
	// retrySender is how long no further socket is opened after a descriptor was above the limit.
	retrySender = time.Second
)

// frontAnswers sends the datagrams of other pods to the clients that send to this pod. Each of these clients has a
// socket of its own, because the kernel keeps datagrams to a client that no longer exists in the send buffer of the
// socket. Only one goroutine calls the methods add and flush.
type frontAnswers struct {
	port    *udpPort
	meter   *meter.Listener
	drop    func(netip.AddrPort, meter.Reason)
	packets []datagram.Packet

	mu sync.Mutex
	// senders contains the sockets of the clients, by source. A source without a socket has no entry. number counts the
	// sockets.
	senders map[netip.Prefix]map[netip.AddrPort]*frontSender
	number  int
	// limit is maxFrontSenders, or less if there is less memory.
	limit int
	// scarce is the time until which no further socket is opened, because no descriptor was left.
	scarce time.Time
}

// frontSender is the socket of a client, and the time at which it last sent.
type frontSender struct {
	*datagram.Sender
	used time.Time
}

func newFrontAnswers(p *udpPort, m *meter.Listener, most int, drop func(netip.AddrPort, meter.Reason)) frontAnswers {
	limit := maxFrontSenders
	if most > 0 {
		limit = min(limit, most)
	}
	return frontAnswers{
		port: p, meter: m, drop: drop, senders: map[netip.Prefix]map[netip.AddrPort]*frontSender{}, limit: limit,
	}
}

func (a *frontAnswers) add(client netip.AddrPort, frame []byte, asked *datagram.Source) {
	a.packets = append(a.packets, datagram.Packet{Payload: frame, To: client, From: asked})
}

// flush sends the answers. The pod that has a session sends the answers to one client in succession.
func (a *frontAnswers) flush(now time.Time) {
	for rest := a.packets; len(rest) > 0; {
		end := 1
		for end < len(rest) && rest[end].To == rest[0].To {
			end++
		}
		a.sender(rest[0].To, now).SendAll(rest[:end])
		rest = rest[end:]
	}
	a.meter.Tx.AddSum(sent(a.packets))
	for i := range a.packets {
		if err := a.packets[i].Err; err != nil {
			a.drop(a.packets[i].To, relay.Undelivered(err))
		}
	}
	clear(a.packets)
	a.packets = a.packets[:0]
}

// sender returns the socket of a client. If the client cannot have one, it returns the socket of a reader.
func (a *frontAnswers) sender(client netip.AddrPort, now time.Time) *datagram.Sender {
	source := session.Source(client.Addr())
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.senders[source][client]; s != nil {
		s.used = now
		return s.Sender
	}
	reader := int(client.Port()) % len(a.port.senders)
	if now.Before(a.scarce) || !a.room(source) {
		return a.port.senders[reader]
	}
	s, shared := a.port.openSender(reader, a.port.most/frontShare)
	if shared {
		a.scarce = now.Add(retrySender)
		return s
	}
	if a.senders[source] == nil {
		a.senders[source] = map[netip.AddrPort]*frontSender{}
	}
	a.senders[source][client] = &frontSender{s, now}
	a.number++
	return s
}

// room reports whether a socket for a client may be opened. If limit is reached, it closes a socket of the source with
// the most sockets, if that source has at least two sockets more than the source of the client. Otherwise it closes
// nothing and reports false. The caller must hold mu.
func (a *frontAnswers) room(source netip.Prefix) bool {
	own := len(a.senders[source])
	switch {
	case a.number < a.limit:
		return true
	case own*len(a.senders) >= a.limit: // the source has its share
		return false
	}
	var most netip.Prefix
	for s, clients := range a.senders {
		if len(clients) > len(a.senders[most]) {
			most = s
		}
	}
	if len(a.senders[most]) <= own+1 {
		return false
	}
	for client := range a.senders[most] {
		a.close(most, client)
		break
	}
	return true
}

// close closes the socket of a client. The caller holds mu.
func (a *frontAnswers) close(source netip.Prefix, client netip.AddrPort) {
	_ = a.senders[source][client].Close()
	a.number--
	if delete(a.senders[source], client); len(a.senders[source]) == 0 {
		delete(a.senders, source)
	}
}

// sweep closes the sockets that are idle.
func (a *frontAnswers) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for source, clients := range a.senders {
		for client, s := range clients {
			if now.Sub(s.used) >= idleSender {
				a.close(source, client)
			}
		}
	}
}

// closeAll closes all sockets. It is called after the port is closed, so that no further socket is opened.
func (a *frontAnswers) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for source, clients := range a.senders {
		for client := range clients {
			a.close(source, client)
		}
	}
}
