package media

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

const (
	user, password = "ann", "opens-the-door"
	inFlight       = 64 // transactions of all clients
	channel        = 0x4000
	repeatAfter    = 200 * time.Millisecond
	silence        = 10 * time.Second // longest time without an answer
)

// client has its own address, and one allocation with a permission and a channel for its peer.
type client struct {
	number uint32
	ip     [4]byte
	server unix.RawSockaddrInet4
	relay  unix.RawSockaddrInet4
	peer   [4]byte
	// lifetime is the requested lifetime of the allocation in seconds. If it is 0, the server chooses the lifetime.
	lifetime uint32
	ask      ask.Client
	step     int
	request  []byte
	sent     time.Time
}

// newClients makes clients of a server. They share peers in turn.
func newClients(server netip.AddrPort, clients, peers int) []*client {
	all := make([]*client, clients)
	for i := range all {
		all[i] = &client{
			number: uint32(i), ip: address(clientNet, i), peer: address(peerNet, i%peers),
			server: sockaddr(server.Addr().As4(), server.Port()),
			ask:    ask.Client{Username: user, Password: password},
		}
	}
	return all
}

// address returns the address in a subnet with a number.
func address(subnet netip.Prefix, number int) (ip [4]byte) {
	ip = subnet.Addr().As4()
	binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(ip[:])+uint32(number)+16)
	return ip
}

// step returns the next request of a client after an answer, or nil at the end. The first call has no answer.
type step func(c *client, answer *stun.Message) ([]byte, error)

// setUp allocates, installs the permission and binds the channel.
func setUp(c *client, answer *stun.Message) ([]byte, error) {
	peer := ask.Peer(netip.AddrPortFrom(netip.AddrFrom4(c.peer), anyPort))
	c.step++
	switch c.step {
	case 1:
		return c.allocate(), nil
	case 2:
		if !c.ask.Learn(answer) {
			return nil, fmt.Errorf("first Allocate: %s, want 401", answer)
		}
		return c.allocate(), nil
	}
	if answer.Type.Class != stun.ClassSuccessResponse {
		return nil, fmt.Errorf("%s: %v", answer, ask.Code(answer))
	}
	switch c.step {
	case 3:
		relay, err := ask.Relayed(answer)
		if err != nil {
			return nil, err
		}
		c.relay = sockaddr(relay.Addr().Unmap().As4(), relay.Port())
		return c.ask.Request(stun.MethodCreatePermission, peer), nil
	case 4:
		return c.ask.Request(stun.MethodChannelBind, ask.Channel(channel), peer), nil
	}
	return nil, nil
}

func (c *client) allocate() []byte {
	if c.lifetime == 0 {
		return c.ask.Request(stun.MethodAllocate, ask.UDP())
	}
	return c.ask.Request(stun.MethodAllocate, ask.UDP(), ask.Lifetime(c.lifetime))
}

// refresh refreshes the allocation once.
func refresh(c *client, answer *stun.Message) ([]byte, error) {
	switch {
	case answer == nil, c.ask.Learn(answer):
		return c.ask.Request(stun.MethodRefresh, ask.Lifetime(600)), nil
	case answer.Type.Class != stun.ClassSuccessResponse:
		return nil, fmt.Errorf("%s: %v", answer, ask.Code(answer))
	}
	return nil, nil
}

// run calls next for all clients until it returns no request, with inFlight transactions at a time.
func (s *socket) run(clients []*client, next step) error {
	pending := map[[stun.TransactionIDSize]byte]*client{}
	var failed error
	advance := func(c *client, answer *stun.Message) {
		request, err := next(c, answer)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("client %d: %w", c.number, err))
		}
		if request != nil {
			pending[[stun.TransactionIDSize]byte(request[8:20])] = c
			c.request, c.sent = request, time.Now()
			s.say(c)
		}
	}
	last := time.Now()
	for started := 0; failed == nil && (started < len(clients) || len(pending) > 0); {
		for ; started < len(clients) && len(pending) < inFlight && s.queued < batch/2; started++ {
			advance(clients[started], nil)
		}
		if err := s.flush(); err != nil {
			return err
		}
		if s.receive(func(d datagram) {
			m := &stun.Message{Raw: append([]byte(nil), d.data...)}
			if m.Decode() != nil {
				return
			}
			if c := pending[m.TransactionID]; c != nil {
				delete(pending, m.TransactionID)
				advance(c, m)
				last = time.Now()
			}
		}) > 0 {
			continue
		}
		now := time.Now()
		if now.Sub(last) > silence {
			return fmt.Errorf("%d clients got no answer within %s", len(pending), silence)
		}
		for _, c := range pending {
			if s.queued < batch && now.Sub(c.sent) > repeatAfter {
				c.sent = now
				s.say(c)
			}
		}
	}
	return failed
}

// say queues the last request of a client.
func (s *socket) say(c *client) {
	copy(s.put(c.ip, c.server, len(c.request), len(c.request)), c.request)
}
