package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// udpPort contains the sockets of a UDP or DTLS listener. All of them are bound to its port with SO_REUSEPORT:
//
//	readers          receive; as many as Options.Sockets
//	unauthenticated  send answers to clients without a session, and to clients to which no data was sent
//	per client       send to one client with a session each; opened by openSender, closed with the session, or, if the
//	                 session is in another pod, after a time without an answer (see frontAnswers)
//
// If a client with a session has no socket of its own, the socket of its reader sends to it.
type udpPort struct {
	number  int
	readers []*net.UDPConn
	// senders send from the sockets of readers, in the same order.
	senders         []*datagram.Sender
	unauthenticated []*datagram.Sender
	// next is the index of the unauthenticated socket that was last used.
	next atomic.Uint32
	// steered reports whether datagram.Sender.Steer was successful, so that sockets that only send receive nothing. If
	// it is false, the port has no such sockets, and the sockets of the readers send everything.
	steered bool
	// most is the maximum number of a descriptor that a client's own socket may have.
	most int
}

// OwnShare is the divisor of the file descriptors of the process for sockets of single clients: a client with a session
// over UDP or DTLS gets a socket of its own only while the number of the descriptor is in the lowest 1/OwnShare. With
// 1,048,576 descriptors, a usual limit in a cluster, these are about 65,000 clients, because each also needs a
// descriptor for its relay. Higher descriptors are left to relays.
const OwnShare = 8

// unauthenticatedSockets is the number of sockets for answers to clients without a session. The source address of a
// first request may be forged. An answer to an unused address of a local network waits three seconds for its neighbour
// to be resolved, and takes about 1 kB of the send buffer during that time. Together the sockets have room for more
// than three seconds of the challenges that a listener sends to private addresses: 1,000 a second, and as many for
// repeated requests.
const unauthenticatedSockets = 12

func openPort(number, readers int, log *slog.Logger) (*udpPort, error) {
	if err := probeUDP(number); err != nil {
		return nil, err
	}
	p := &udpPort{number: number, most: relay.Descriptors() / OwnShare}
	for range max(readers, 1) {
		if err := p.addReader(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err := p.senders[0].Steer(len(p.readers)); err != nil {
		log.Warn("clients share the send buffers of a listener", "error", err)
		p.unauthenticated = p.senders
		return p, nil
	}
	p.steered = true
	for range unauthenticatedSockets {
		s, err := p.senders[0].Join(math.MaxInt)
		if err == nil {
			p.unauthenticated = append(p.unauthenticated, s)
			err = s.EnlargeBuffer()
		}
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

func (p *udpPort) addReader() error {
	conn, err := listenUDP(p.number)
	if err != nil {
		return err
	}
	s, err := datagram.NewSender(conn)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	p.readers, p.senders = append(p.readers, conn), append(p.senders, s)
	return nil
}

// probeUDP opens the port once without SO_REUSEPORT. It detects another process of the same user on the port: with
// SO_REUSEPORT, both processes would open the port without an error, and each would receive the datagrams of some
// clients.
func probeUDP(port int) error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return fmt.Errorf("listen on UDP port %d: %w", port, err)
	}
	return conn.Close()
}

// receiveBuffer is the size in bytes of the receive buffer of a reader. It is large because key frames of many calls
// may arrive at once. The kernel grants at most net.core.rmem_max.
const receiveBuffer = 4 << 20

func listenUDP(port int) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var opts error
		err := c.Control(func(fd uintptr) {
			opts = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				datagram.ReportDestination(int(fd)),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
			)
		})
		return errors.Join(err, opts)
	}}
	conn, err := lc.ListenPacket(context.Background(), "udp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("listen on UDP port %d: %w", port, err)
	}
	return conn.(*net.UDPConn), nil
}

// answer sends a datagram to a client without a session. If the send buffer of one socket is full, it tries the next
// one.
func (p *udpPort) answer(frame []byte, to netip.AddrPort, from *datagram.Source) error {
	for range p.unauthenticated {
		at := p.next.Load()
		err := p.unauthenticated[at%uint32(len(p.unauthenticated))].Send(frame, to, from)
		if !errors.Is(err, datagram.ErrCongested) {
			return err
		}
		p.next.CompareAndSwap(at, at+1)
	}
	return datagram.ErrCongested
}

// openSender opens a Sender for one client. If it cannot be opened, for example because its descriptor would have a
// number above most, or Steer has failed, openSender returns the Sender of the reader, which several clients share, and
// reports shared. After Close it opens no socket.
func (p *udpPort) openSender(reader, most int) (s *datagram.Sender, shared bool) {
	if !p.steered {
		return p.senders[reader], true
	}
	s, err := p.senders[0].Join(most)
	if err != nil {
		return p.senders[reader], true
	}
	return s, false
}

// drops returns the number of datagrams that the kernel dropped at the sockets of the readers.
func (p *udpPort) drops() (n uint64) {
	for _, s := range p.senders {
		n += s.Drops()
	}
	return n
}

// Close closes all sockets except those that openSender has opened.
func (p *udpPort) Close() (err error) {
	for _, s := range p.senders {
		err = errors.Join(err, s.Close())
	}
	if p.steered {
		for _, s := range p.unauthenticated {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
