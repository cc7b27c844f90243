package relay

import (
	"errors"
	"net/netip"
)

// Socket is a UDP socket for peers. There is another implementation than that of the kernel for tests in virtual time,
// because a goroutine that waits in the kernel stops the clock of testing/synctest.
type Socket interface {
	// Port returns the local port.
	Port() uint16
	// Receive waits for a datagram or an ICMP message. The caller owns the buffer.
	Receive() (*Buffer, error)
	// Send sends one datagram, whole or not at all, and never waits. The error is datagram.ErrCongested if there is no
	// room for it.
	Send(payload []byte, peer netip.AddrPort) error
	// Drops returns the number of datagrams that were lost because they were not received in time. It is 0 after Close.
	Drops() uint64
	// Close makes Receive return net.ErrClosed.
	Close() error
}

// Network opens relay sockets.
type Network interface {
	// Open opens a socket for an advertised address, on a port, or on a random free one for port 0. Peers see the
	// advertised address if it is assigned to this host.
	Open(advertised netip.Addr, port uint16) (Socket, error)
}

// evenOpener is a Network with its own search for even ports.
type evenOpener interface {
	openEven(advertised netip.Addr, next bool) (even, odd Socket, err error)
}

// OpenEven opens a relay socket on an even port, and with next another one on the port above (RFC 8656 §7.2).
func OpenEven(n Network, advertised netip.Addr, next bool) (even, odd Socket, err error) {
	if o, ok := n.(evenOpener); ok {
		return o.openEven(advertised, next)
	}
	return tryEven(n, advertised, next)
}

// tryEven opens sockets on random ports until one is even.
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

// evenTries bounds the search. Half of all ports are even, so it fails practically never.
const evenTries = 64
