package gate

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
)

// deafNetwork opens sockets that cannot receive.
type deafNetwork struct{ relaytest.Network }

type deafSocket struct{ relay.Socket }

func (n *deafNetwork) Open(addr netip.Addr, port uint16) (relay.Socket, error) {
	s, err := n.Network.Open(addr, port)
	return deafSocket{s}, err
}

func (deafSocket) Start(relay.Receiver) error { return errors.New("too many watches") }

// If the kernel cannot poll another relay socket, the client gets 508, and its session is removed completely.
func TestAllocationWithoutReceiverIsRefused(t *testing.T) {
	b, network := newFixture(t), new(deafNetwork)
	b.network = network
	c := newClient("192.0.2.1:1000")
	answer := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))
	if got := codeOf(answer); got != stun.CodeInsufficientCapacity {
		t.Errorf("answer %v, want %v", got, stun.CodeInsufficientCapacity)
	}
	if b.Sessions() != 0 || b.table.Len() != 0 || network.Len() != 0 {
		t.Errorf("%d flows, %d sessions and %d sockets are left", b.Sessions(), b.table.Len(), network.Len())
	}
}
