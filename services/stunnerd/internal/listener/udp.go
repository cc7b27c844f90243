package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// maxDatagram is the longest UDP payload.
const maxDatagram = 65535

// udpListener is a group of sockets on one port. The kernel spreads clients over them by their address, so that one client is always
// read by the same goroutine.
type udpListener struct {
	sockets []*udpSocket
	reading sync.WaitGroup
}

// udpSocket is one socket and its reader.
type udpSocket struct {
	conn  *net.UDPConn
	gate  *gate.Gate
	drops *meter.Meter
	meter *meter.Listener
	// relays remembers whose media goes where. Only the reader touches it, so a packet takes no lock.
	relays map[netip.AddrPort]*relay.Relay
}

func openUDP(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	if err := probeUDP(c.Port); err != nil {
		return nil, err
	}
	l := &udpListener{}
	for range max(o.Sockets, 1) {
		conn, err := listenUDP(c.Port)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		s := &udpSocket{conn: conn, gate: g, drops: o.Meter, meter: m, relays: map[netip.AddrPort]*relay.Relay{}}
		l.sockets = append(l.sockets, s)
		m.Open.Add(1)
		m.Opened.Add(1)
		l.reading.Go(s.read)
	}
	return l, nil
}

// probeUDP opens the port once without SO_REUSEPORT: with it, two processes of one user would silently share a port and split the
// clients between them.
func probeUDP(port int) error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return fmt.Errorf("listen on UDP port %d: %w", port, err)
	}
	return conn.Close()
}

// receiveBuffer is how many bytes may wait in the kernel for a reader: key frames of many calls come at once. The kernel gives as much of it
// as net.core.rmem_max allows.
const receiveBuffer = 4 << 20

func listenUDP(port int) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var opts error
		err := c.Control(func(fd uintptr) {
			opts = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				tellDestination(int(fd)),
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

// Update has nothing to do: all that a UDP listener has is its port.
func (l *udpListener) Update(config.Listener) error { return nil }

// Yield is not possible: the sockets are those of all clients.
func (l *udpListener) Yield() bool { return false }

// Close closes the sockets and waits for their readers.
func (l *udpListener) Close() error {
	var errs []error
	for _, s := range l.sockets {
		errs = append(errs, s.conn.Close())
		s.meter.Open.Add(-1)
	}
	l.reading.Wait()
	return errors.Join(errs...)
}

func (s *udpSocket) read() {
	buf, control := make([]byte, maxDatagram), make([]byte, controlSize)
	for {
		n, controlled, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if err != nil || n == 0 {
			s.drop(client, meter.Malformed)
			continue
		}
		s.meter.Rx.Add(n)
		if isChannelData(buf[0]) {
			s.media(buf[:n], client)
			continue
		}
		s.gate.Receive(buf[:n], &udpClient{s, client, sourceFor(control[:controlled])})
	}
}

// media forwards ChannelData.
func (s *udpSocket) media(frame []byte, client netip.AddrPort) {
	r := s.relays[client]
	if r == nil || r.Closed() {
		if r = s.lookup(client); r == nil {
			s.drop(client, meter.NoAllocation)
			return
		}
	}
	r.FromClient(frame)
}

func (s *udpSocket) drop(client netip.AddrPort, why meter.Reason) {
	s.drops.DropNote(why, meter.Note{Listener: s.meter.Name, Client: client})
}

// lookup asks the gate for a client's relay, and keeps what is remembered within a multiple of what is live.
func (s *udpSocket) lookup(client netip.AddrPort) *relay.Relay {
	delete(s.relays, client)
	r := s.gate.Relay(client)
	if r == nil {
		return nil
	}
	if len(s.relays) > 2*s.gate.Sessions()+64 {
		for a, old := range s.relays {
			if old.Closed() {
				delete(s.relays, a)
			}
		}
	}
	s.relays[client] = r
	return r
}

// udpClient is the way back to a client over UDP.
type udpClient struct {
	socket *udpSocket
	addr   netip.AddrPort
	// from makes the answer leave from the address that was asked.
	from source
}

func (c *udpClient) Send(frame []byte) error {
	if _, _, err := c.socket.conn.WriteMsgUDPAddrPort(frame, c.from.control(), c.addr); err != nil {
		return err
	}
	c.socket.meter.Tx.Add(len(frame))
	return nil
}

func (c *udpClient) Addr() netip.AddrPort { return c.addr }
func (c *udpClient) Connected() bool      { return false }
func (c *udpClient) Released()            {}
