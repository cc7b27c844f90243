package relay

import (
	"errors"
	"net/netip"
)

// Socket is where an allocation meets its peers. The kernel's is what a dataplane runs on; another one is needed where time is virtual,
// because a goroutine that waits in the kernel keeps the clock of testing/synctest from advancing.
type Socket interface {
	// Port is the port that peers send to.
	Port() uint16
	// Receive waits for a datagram, or for word that one did not arrive. The caller owns the buffer.
	Receive() (*Buffer, error)
	// Send sends one datagram, whole or not at all, and never waits: the error is datagram.ErrCongested when there is no room for it.
	Send(payload []byte, peer netip.AddrPort) error
	// Drops is the number of datagrams that were lost because nobody received them in time. It is 0 after Close.
	Drops() uint64
	// Close makes Receive return net.ErrClosed.
	Close() error
}

// Network opens relay sockets.
type Network interface {
	// Open opens a socket for an address that clients are told, on a port, or on a random free one when that is 0. Peers see the address,
	// unless it is not one of this host.
	Open(advertised netip.Addr, port uint16) (Socket, error)
}

// evenOpener is a Network that can look for an even port itself.
type evenOpener interface {
	openEven(advertised netip.Addr, next bool) (even, odd Socket, err error)
}

// OpenEven opens a relay socket on an even port; with next it opens one on the port above too (RFC 8656 §7.2).
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

// evenTries makes it all but certain that a free pair is found: half of all ports are even.
const evenTries = 64
