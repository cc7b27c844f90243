package relay

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// Socket is a UDP socket for peers. It is an interface because tests in virtual time need another implementation than
// the kernel's: a goroutine that waits in the kernel stops the clock of testing/synctest.
type Socket interface {
	// Port returns the local port.
	Port() uint16
	// Bound returns the local address and port. The address is unspecified if the socket has all addresses of the host.
	Bound() netip.AddrPort
	// Start passes all datagrams and ICMP messages to a receiver, until Close.
	Start(Receiver) error
	// Send sends datagrams in their order without waiting, and sets Err of each: nil, datagram.ErrCongested if the send
	// buffer is full, net.ErrClosed, or another error. Whole is respected if there is one datagram.
	Send([]datagram.Packet)
	// Drops returns the number of datagrams that the kernel did not deliver to the socket, most of them because the
	// receive buffer was full. It is 0 after Close.
	Drops() uint64
	Close() error
}

// Receiver handles the datagrams of a Socket.
type Receiver interface {
	// ReceiveBatch handles a batch of datagrams, which become invalid when it returns. It does not wait, because the
	// caller serves many sockets. now is the time of the batch.
	ReceiveBatch(batch []Datagram, now time.Time)
	// Unreachable counts an ICMP message about a datagram to a peer that is not in a batch: it is not for the client,
	// or Socket.Send has removed it. Unreachable does not wait.
	Unreachable(peer netip.AddrPort)
}

// Datagram is a received datagram, or an ICMP message about a sent datagram.
type Datagram struct {
	// room contains datagram.Headroom bytes, the payload, and at least three bytes for padding, so that a frame is made
	// without a copy.
	room []byte
	n    int
	peer netip.AddrPort
	icmp ICMP
}

// ICMP is an ICMP message that reports that a datagram to a peer was not delivered. The zero ICMP means that there is
// none.
type ICMP struct {
	Type, Code uint8
	// Data is the error data of RFC 8656 §18.13: the MTU of the next hop for the types that have one.
	Data uint32
}

// NewDatagram returns a datagram with a copy of a payload.
func NewDatagram(payload []byte, peer netip.AddrPort) Datagram {
	room := make([]byte, headerSize+len(payload)+datagram.Tailroom)
	copy(room[headerSize:], payload)
	return Datagram{room: room, n: len(payload), peer: peer}
}

// Peer returns the address of the peer.
func (d *Datagram) Peer() netip.AddrPort { return d.peer }

// IsData reports whether the Datagram contains data of a peer, and not an ICMP message.
func (d *Datagram) IsData() bool { return d.icmp == (ICMP{}) }

// Payload returns the payload, which is empty for an ICMP message.
func (d *Datagram) Payload() []byte {
	if d.room == nil {
		return nil
	}
	return d.room[headerSize : headerSize+d.n]
}

// clone returns a copy that remains valid.
func (d *Datagram) clone() Datagram {
	if d.icmp != (ICMP{}) {
		return *d
	}
	return NewDatagram(d.Payload(), d.peer)
}

// channelData returns the payload as a ChannelData frame.
func (d *Datagram) channelData(number uint16, pad bool) []byte {
	binary.BigEndian.PutUint16(d.room[0:], number)
	binary.BigEndian.PutUint16(d.room[2:], uint16(d.n))
	end := headerSize + d.n
	if pad {
		for ; end%4 != 0; end++ {
			d.room[end] = 0
		}
	}
	return d.room[:end]
}

// Network opens relay sockets.
type Network interface {
	// Open opens a socket on a port, or on a random free port if port is 0. If the advertised address is assigned to
	// this host, the socket is bound to it, so that peers see it.
	Open(advertised netip.Addr, port uint16) (Socket, error)
	// SendsWhole reports whether sockets respect datagram.Packet.Whole.
	SendsWhole() bool
}

// evenOpener is a Network with its own search for even ports.
type evenOpener interface {
	openEven(advertised netip.Addr, next bool) (even, odd Socket, err error)
}

// OpenEven opens a relay socket on an even port. If next is true, it opens another socket on the port above (EVEN-PORT,
// RFC 8656 §7.2).
func OpenEven(n Network, advertised netip.Addr, next bool) (even, odd Socket, err error) {
	if o, ok := n.(evenOpener); ok {
		return o.openEven(advertised, next)
	}
	return tryEven(n, advertised, next)
}

// tryEven opens sockets on random ports until a port is even. If next is true, the port above must be free too.
func tryEven(n Network, advertised netip.Addr, next bool) (even, odd Socket, err error) {
	for range evenTries {
		if even, err = n.Open(advertised, 0); err != nil {
			return nil, nil, err
		}
		if even.Port()%2 == 0 {
			if !next {
				return even, nil, nil
			}
			if odd, err = n.Open(advertised, even.Port()+1); err == nil {
				return even, odd, nil
			}
		}
		if err := even.Close(); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("open relay socket: found no even port")
}

// evenTries bounds the number of random ports that tryEven opens. Half of all ports are even, so that it practically
// always finds one.
const evenTries = 64
