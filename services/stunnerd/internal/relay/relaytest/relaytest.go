// Package relaytest contains networks for tests of relays. Network is in memory: no goroutine waits in the kernel, so
// the clock of testing/synctest advances while relays wait for datagrams.
package relaytest

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// firstPort is the first port. Ports are assigned in sequence: an even one, then an odd one.
const firstPort = 49152

// backlog is the maximum number of datagrams that wait at a relay that does not read. Further datagrams are dropped.
const backlog = 256

// Datagram is a datagram that a relay has sent.
type Datagram struct {
	From, To netip.AddrPort
	Payload  string
	// Whole reports whether the datagram had to be sent without fragmentation.
	Whole bool
}

// Network implements relay.Network. The zero Network is ready to use.
type Network struct {
	// Fragments makes the network unable to send datagrams without fragmentation.
	Fragments bool

	mu      sync.Mutex
	opened  uint16
	sockets map[netip.AddrPort]*socket
	sent    []Datagram
}

// Open implements relay.Network. The socket has the advertised address.
func (n *Network) Open(addr netip.Addr, port uint16) (relay.Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sockets == nil {
		n.sockets = map[netip.AddrPort]*socket{}
	}
	at := netip.AddrPortFrom(addr, port)
	if port == 0 {
		at = n.free(addr)
	}
	if n.sockets[at] != nil {
		return nil, errors.New("open relay socket: port is taken")
	}
	s := &socket{network: n, addr: at, inbox: make(chan relay.Datagram, backlog), closed: make(chan struct{})}
	n.sockets[at] = s
	return s, nil
}

// SendsWhole implements relay.Network.
func (n *Network) SendsWhole() bool { return !n.Fragments }

func (n *Network) free(addr netip.Addr) netip.AddrPort {
	for {
		at := netip.AddrPortFrom(addr, firstPort+n.opened)
		n.opened++
		if n.sockets[at] == nil {
			return at
		}
	}
}

// Len returns the number of open sockets.
func (n *Network) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sockets)
}

// Sent returns the datagrams that relays have sent since the last call. Datagrams that Peer.Got has returned are not
// included.
func (n *Network) Sent() []Datagram {
	n.mu.Lock()
	defer n.mu.Unlock()
	sent := n.sent
	n.sent = nil
	return sent
}

// Peer returns the peer at an address.
func (n *Network) Peer(addr netip.AddrPort) Peer { return Peer{n, addr} }

// Peer is a peer of relays.
type Peer struct {
	network *Network
	addr    netip.AddrPort
}

// Addr returns the transport address of the peer.
func (p Peer) Addr() netip.AddrPort { return p.addr }

// Send sends a datagram to a relay. It is dropped if there is no relay at the address.
func (p Peer) Send(to netip.AddrPort, payload string) {
	p.network.mu.Lock()
	s := p.network.sockets[to]
	p.network.mu.Unlock()
	if s == nil {
		return
	}
	select {
	case s.inbox <- relay.NewDatagram([]byte(payload), p.addr):
	default:
	}
}

// Got returns the datagrams to the peer since the last call.
func (p Peer) Got() (got []Datagram) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.network.sent = slices.DeleteFunc(p.network.sent, func(d Datagram) bool {
		if d.To == p.addr {
			got = append(got, d)
		}
		return d.To == p.addr
	})
	return got
}

// socket implements relay.Socket.
type socket struct {
	network *Network
	addr    netip.AddrPort
	inbox   chan relay.Datagram
	closed  chan struct{}
}

func (s *socket) Port() uint16 { return s.addr.Port() }

func (s *socket) Bound() netip.AddrPort { return s.addr }

func (s *socket) Start(to relay.Receiver) error {
	go func() {
		for {
			select {
			case d := <-s.inbox:
				to.ReceiveBatch([]relay.Datagram{d}, time.Now())
			case <-s.closed:
				return
			}
		}
	}()
	return nil
}

func (s *socket) Send(packets []datagram.Packet) {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for i := range packets {
		p := &packets[i]
		if s.network.sockets[s.addr] != s {
			p.Err = net.ErrClosed
			continue
		}
		s.network.sent = append(s.network.sent, Datagram{s.addr, p.To, string(p.Payload), p.Whole})
	}
}

func (s *socket) Drops() uint64 { return 0 }

func (s *socket) Close() error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	if s.network.sockets[s.addr] != s {
		return net.ErrClosed
	}
	delete(s.network.sockets, s.addr)
	close(s.closed)
	return nil
}

// NewKernel returns a network in the kernel with one poller, which ends with the test.
func NewKernel(t testing.TB) relay.Kernel {
	t.Helper()
	pollers, err := relay.NewPollers(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pollers.Close(); err != nil {
			t.Error(err)
		}
	})
	return relay.Kernel{Pollers: pollers}
}
