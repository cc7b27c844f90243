package listener

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// maxDatagram is the longest UDP payload.
const maxDatagram = 65535

// udpListener is a group of sockets on one port.
type udpListener struct {
	port    *udpPort
	sockets []*udpSocket
	reading sync.WaitGroup
	forget  func()
}

// udpSocket is one socket that receives, and its reader.
type udpSocket struct {
	conn  *net.UDPConn
	port  *udpPort
	index int // among the readers of the port
	gate  *gate.Gate
	drops *meter.Meter
	meter *meter.Listener
	// relays remembers the relay of each client that sends media. Only the reader touches it, so a packet takes no lock.
	relays map[netip.AddrPort]*relay.Relay
	task   watch.Task
	// current is the client whose datagram the reader handles.
	current udpClient
}

func openUDP(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	port, err := openPort(c.Port, o.Sockets, o.Log)
	if err != nil {
		return nil, err
	}
	l := &udpListener{port: port, forget: o.Meter.ListenerDrops.Watch(port.drops)}
	for i, conn := range port.readers {
		s := &udpSocket{conn: conn, port: port, index: i, gate: g, drops: o.Meter, meter: m, relays: map[netip.AddrPort]*relay.Relay{}}
		l.sockets = append(l.sockets, s)
		m.Open.Add(1)
		m.Opened.Add(1)
		l.reading.Go(s.read)
	}
	return l, nil
}

// Update has nothing to do: all that a UDP listener has is its port.
func (l *udpListener) Update(config.Listener) error { return nil }

// Yield is not possible: the sockets are those of all clients.
func (l *udpListener) Yield() bool { return false }

// Tasks are the readers.
func (l *udpListener) Tasks() (tasks []*watch.Task) {
	for _, s := range l.sockets {
		tasks = append(tasks, &s.task)
	}
	return tasks
}

// Close closes the sockets and waits for their readers.
func (l *udpListener) Close() error {
	l.forget()
	err := l.port.Close()
	for _, s := range l.sockets {
		s.meter.Open.Add(-1)
	}
	l.reading.Wait()
	return err
}

// read reads until the socket is closed. A panic ends the session of the client whose datagram caused it.
func (s *udpSocket) read() {
	for !s.readUntilPanic() {
		s.hangup()
		if s.task.Working() {
			s.task.End()
		}
	}
}

func (s *udpSocket) hangup() {
	defer s.drops.Survive("end session after a panic")
	s.gate.Disconnected(&s.current)
}

func (s *udpSocket) readUntilPanic() (closed bool) {
	defer s.drops.Survive("read UDP datagram")
	buf, control := make([]byte, maxDatagram), make([]byte, datagram.ControlSize)
	for {
		n, controlled, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return true
		}
		s.task.Begin()
		s.current.addr = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if err != nil || n == 0 {
			s.drop(s.current.addr, meter.Malformed)
		} else {
			s.receive(buf[:n], control[:controlled])
		}
		s.task.End()
	}
}

func (s *udpSocket) receive(frame, control []byte) {
	s.meter.Rx.Add(len(frame))
	client := s.current.addr
	if isChannelData(frame[0]) {
		s.media(frame, client)
		return
	}
	s.gate.Receive(frame, &udpClient{socket: s, addr: client, from: datagram.SourceOf(control)})
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
	from datagram.Source
	// own sends to this client while it has a session, and to no other unless it is shared.
	own    atomic.Pointer[datagram.Sender]
	shared bool
}

// Send is part of session.Client.
func (c *udpClient) Send(frame []byte) error {
	own := c.own.Load()
	if own == nil {
		own = c.socket.ownOf(c.addr)
	}
	var err error
	if own != nil {
		err = own.Send(frame, c.addr, &c.from)
	} else {
		err = c.socket.port.answer(frame, c.addr, &c.from)
	}
	if err != nil {
		return err
	}
	c.socket.meter.Tx.Add(len(frame))
	return nil
}

// ownOf returns the Sender of the client's session, or nil.
func (s *udpSocket) ownOf(client netip.AddrPort) *datagram.Sender {
	r := s.gate.Relay(client)
	if r == nil {
		return nil
	}
	if c, ok := r.Session().Client.(*udpClient); ok {
		return c.own.Load()
	}
	return nil
}

// Admitted is part of session.Client: it opens a Sender for the session.
func (c *udpClient) Admitted() error {
	own, shared, err := c.socket.port.own(c.socket.index)
	if err != nil {
		return err
	}
	c.shared = shared
	c.own.Store(own)
	return nil
}

// Released is part of session.Client.
func (c *udpClient) Released() {
	if own := c.own.Swap(nil); own != nil && !c.shared {
		_ = own.Close()
	}
}

// Addr is part of session.Client.
func (c *udpClient) Addr() netip.AddrPort { return c.addr }

// Connected is part of session.Client.
func (c *udpClient) Connected() bool { return false }
