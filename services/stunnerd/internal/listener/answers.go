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
	// frontShare is the divisor of the file descriptors for sockets of single clients (see OwnShare) that clients with
	// a session in another pod may use. The others are left to clients with a session here.
	frontShare = 2
	// idleSender is how long a socket of a client with a session in another pod stays open without an answer.
	idleSender = time.Minute
	// retrySender is how long no further socket is opened after a descriptor was above the limit.
	retrySender = time.Second
)

// frontAnswers sends the datagrams of other pods to the clients that send to this pod. Each of these clients has a
// socket of its own, because the kernel keeps the datagrams to a client that has vanished in the send buffer of the
// socket. The methods add and flush are called by one goroutine.
type frontAnswers struct {
	port    *udpPort
	meter   *meter.Listener
	drop    func(netip.AddrPort, meter.Reason)
	packets []datagram.Packet

	mu sync.Mutex
	// senders are the sockets of the clients by source. A source without a socket has no entry. number counts the
	// sockets.
	senders map[netip.Prefix]map[netip.AddrPort]*frontSender
	number  int
	// limit is maxFrontSenders, or less if there is less memory.
	limit int
	// scarce is until when no descriptor is left.
	scarce time.Time
}

// frontSender is the socket of a client, and when it has last sent.
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

// flush sends the answers. The owner of a session sends those of one client in succession.
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

// sender returns the socket of a client, or one of a reader if the client gets none.
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

// room makes room for a socket of a client. If limit is reached, the source with the most sockets loses one. It
// reports false if that would be the source of the client. The caller holds mu.
func (a *frontAnswers) room(source netip.Prefix) bool {
	own := len(a.senders[source])
	switch {
	case a.number < a.limit:
		return true
	case own*len(a.senders) >= a.limit: // its share
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

// closeAll closes all sockets. The port is closed before, so that no further one is opened.
func (a *frontAnswers) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for source, clients := range a.senders {
		for client := range clients {
			a.close(source, client)
		}
	}
}
