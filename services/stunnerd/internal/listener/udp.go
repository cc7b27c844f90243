package listener

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// udpListener is a listener for TURN over UDP. It has several sockets on one port.
type udpListener struct {
	port    *udpPort
	sockets []*udpSocket
	reading sync.WaitGroup
	forget  func()
}

// udpSocket is one receiving socket and its reader.
type udpSocket struct {
	conn  *net.UDPConn
	port  *udpPort
	index int // among the readers of the port
	gate  *gate.Gate
	drops *meter.Meter
	meter *meter.Listener
	// relays caches the relay of each client that sends ChannelData. Only the reader uses it, so a packet needs no
	// lock.
	relays map[netip.AddrPort]*relay.Relay
	task   watch.Task
	// outbox collects the ChannelData of a batch.
	outbox relay.Outbox
	// current is the client whose datagram is being handled. If that causes a panic, the session of this client is
	// ended.
	current udpClient

	receiver *datagram.Receiver
	// attempt is receive. A method value that is made for each batch would allocate.
	attempt func(fd uintptr) bool
	// received and handled are the numbers of datagrams of the current batch.
	received, handled int
}

func openUDP(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	port, err := openPort(c.Port, o.Sockets, o.Log)
	if err != nil {
		return nil, err
	}
	receivers, err := newReceivers(len(port.readers))
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	l := &udpListener{port: port, forget: o.Meter.ListenerDrops.Watch(port.drops)}
	for i, conn := range port.readers {
		s := &udpSocket{
			conn: conn, port: port, index: i, gate: g, drops: o.Meter, meter: m,
			relays: map[netip.AddrPort]*relay.Relay{}, receiver: receivers[i],
		}
		l.sockets = append(l.sockets, s)
		m.Open.Add(1)
		m.Opened.Add(1)
		l.reading.Go(s.read)
	}
	return l, nil
}

func newReceivers(number int) (receivers []*datagram.Receiver, err error) {
	for range number {
		r, err := datagram.NewReceiver()
		if err != nil {
			for _, r := range receivers {
				err = errors.Join(err, r.Close())
			}
			return nil, err
		}
		receivers = append(receivers, r)
	}
	return receivers, nil
}

// Update does nothing: a UDP listener has no certificates.
func (l *udpListener) Update(config.Listener) error { return nil }

// ReleasePort reports false, because all clients use the sockets of the readers.
func (l *udpListener) ReleasePort() bool { return false }

// Tasks returns the readers.
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
	defer s.receiver.Close()
	s.attempt = s.receive
	for !s.readUntilPanic() {
		s.endSession()
		if s.task.Working() {
			s.task.End()
		}
	}
}

func (s *udpSocket) endSession() {
	defer s.drops.RecoverPanic("end session after a panic")
	s.gate.Disconnected(&s.current)
}

func (s *udpSocket) readUntilPanic() (closed bool) {
	defer s.drops.RecoverPanic("read UDP datagram")
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return true
	}
	s.task.Begin()
	s.handle() // the rest of the batch in which a datagram has caused a panic
	s.task.End()
	for raw.Read(s.attempt) == nil {
		s.task.Begin()
		s.handle()
		s.task.End()
	}
	return true
}

// receive receives a batch without waiting. It reports false if there is no datagram.
func (s *udpSocket) receive(fd uintptr) bool {
	n, errno := s.receiver.Receive(int(fd))
	s.received, s.handled = n, 0
	return errno != unix.EAGAIN
}

// handle handles the datagrams of a batch.
func (s *udpSocket) handle() {
	now := time.Now()
	var sum meter.Sum
	defer func() { s.meter.Rx.AddSum(sum) }()
	for s.handled < s.received {
		i := s.handled
		s.handled++
		s.current.addr = s.receiver.From(i)
		frame := s.receiver.Payload(i)
		sum.Add(len(frame))
		switch {
		case len(frame) == 0:
			s.drop(s.current.addr, meter.Malformed)
		case isChannelData(frame[0]):
			s.media(frame, s.current.addr, now)
		default:
			// A request may end the session whose media is in the outbox. It may also take long.
			s.outbox.Flush(now)
			source := datagram.SourceOf(s.receiver.Control(i))
			s.gate.Receive(frame, &udpClient{socket: s, addr: s.current.addr, from: source})
		}
	}
	s.outbox.Flush(now)
}

// media forwards ChannelData.
func (s *udpSocket) media(frame []byte, client netip.AddrPort, now time.Time) {
	r := s.relays[client]
	if r == nil || r.Closed() {
		if r = s.lookup(client); r == nil {
			s.drop(client, meter.NoAllocation)
			return
		}
	}
	s.outbox.Add(r, frame, now)
}

func (s *udpSocket) drop(client netip.AddrPort, why meter.Reason) {
	s.drops.DropNote(why, meter.Note{Listener: s.meter.Name, Client: client})
}

// lookup gets the relay of a client from the gate and caches it. It removes closed relays from the cache if the cache
// is much larger than the number of sessions of the listener.
func (s *udpSocket) lookup(client netip.AddrPort) *relay.Relay {
	delete(s.relays, client)
	r := s.gate.Relay(client)
	if r == nil {
		return nil
	}
	if len(s.relays) > 2*s.gate.Sessions()+64 {
		maps.DeleteFunc(s.relays, func(_ netip.AddrPort, old *relay.Relay) bool { return old.Closed() })
	}
	s.relays[client] = r
	return r
}

// udpClient is a session.Client over UDP.
type udpClient struct {
	socket *udpSocket
	addr   netip.AddrPort
	// from is the address to which the client has sent its request. The listener sends its answers from this address.
	from datagram.Source
	// sender sends to this client while it has a session.
	sender atomic.Pointer[datagram.Sender]
	// shared is set if other clients use the same sender. The sender must then stay open when the session ends.
	shared bool
}

// Send implements session.Client.
func (c *udpClient) Send(frame []byte) error {
	sender := c.sender.Load()
	if sender == nil {
		sender = c.socket.senderOf(c.addr)
	}
	var err error
	if sender != nil {
		err = sender.Send(frame, c.addr, &c.from)
	} else {
		err = c.socket.port.answer(frame, c.addr, &c.from)
	}
	if err != nil {
		return err
	}
	c.socket.meter.Tx.Add(len(frame))
	return nil
}

// SendAll implements session.Client.
func (c *udpClient) SendAll(packets []datagram.Packet) {
	sender := c.sender.Load()
	if sender == nil { // the session has ended
		for i := range packets {
			packets[i].Err = net.ErrClosed
		}
		return
	}
	for i := range packets {
		packets[i].To, packets[i].From = c.addr, &c.from
	}
	sender.SendAll(packets)
	var sent meter.Sum
	for i := range packets {
		if packets[i].Err == nil {
			sent.Add(len(packets[i].Payload))
		}
	}
	c.socket.meter.Tx.AddSum(sent)
}

// senderOf returns the Sender of the client's session, or nil.
func (s *udpSocket) senderOf(client netip.AddrPort) *datagram.Sender {
	r := s.gate.Relay(client)
	if r == nil {
		return nil
	}
	if c, ok := r.Session().Client.(*udpClient); ok {
		return c.sender.Load()
	}
	return nil
}

// Admitted implements session.Client. It opens a socket for sending to this client, or shares one (see
// udpPort.openSender).
func (c *udpClient) Admitted() error {
	sender, shared, err := c.socket.port.openSender(c.socket.index)
	if err != nil {
		return err
	}
	c.shared = shared
	c.sender.Store(sender)
	return nil
}

// Released implements session.Client.
func (c *udpClient) Released() {
	if sender := c.sender.Swap(nil); sender != nil && !c.shared {
		_ = sender.Close()
	}
}

// Addr implements session.Client.
func (c *udpClient) Addr() netip.AddrPort { return c.addr }

// Local implements session.Client.
func (c *udpClient) Local() netip.AddrPort {
	return netip.AddrPortFrom(c.from.Addr(), uint16(c.socket.port.number))
}

// Connected implements session.Client.
func (c *udpClient) Connected() bool { return false }
