package relay

import (
	"errors"
	"net/netip"
)

// Socket is a UDP socket for peers. It is an interface because tests in virtual time need another implementation than
// the kernel's: a goroutine that waits in the kernel stops the clock of testing/synctest.
type Socket interface {
	// Port returns the local port.
	Port() uint16
	// Receive waits for a datagram or an ICMP message. The caller owns the buffer.
	Receive() (*Buffer, error)
	// Send sends one datagram without waiting. The error is datagram.ErrCongested if the send buffer is full.
	Send(payload []byte, peer netip.AddrPort) error
	// Drops returns the number of datagrams that the kernel did not deliver to the socket, most of them because the
	// receive buffer was full. It is 0 after Close.
	Drops() uint64
	// Close makes Receive return net.ErrClosed.
	Close() error
}

// Network opens relay sockets.
type Network interface {
	// Open opens a socket on a port, or on a random free port if port is 0. If the advertised address is assigned to
	// this host, the socket is bound to it, so that peers see it.
	Open(advertised netip.Addr, port uint16) (Socket, error)
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
