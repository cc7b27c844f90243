package listener

import (
	"crypto/x509"
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
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// udpListener is a listener for TURN over UDP. It has several sockets on one port.
type udpListener struct {
	port    *udpPort
	sockets []*udpSocket
	reading sync.WaitGroup
	forget  func()
	// forwarded handles the datagrams of clients that arrive at other pods.
	forwarded forwarded
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
	// foreign is set if the datagrams arrive at other pods. They may belong to a session that this pod has received and
	// does not own yet.
	foreign bool
	// outbox collects the ChannelData of a batch.
	outbox relay.Outbox
	// elsewhere collects the datagrams of a batch that are passed to other pods.
	elsewhere *forward.Outbox
	forwarder *forward.Forwarder
	// current is the client whose datagram is being handled. If that causes a panic, the session of this client is
	// ended.
	current udpClient

	receiver *datagram.Receiver
	// attempt is the method value s.receive. Creating it for each wait would allocate.
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
	l.forwarded.udpSocket = udpSocket{
		port: port, gate: g, drops: o.Meter, meter: m, relays: map[netip.AddrPort]*relay.Relay{}, foreign: true,
		forwarder: o.Forwarder,
	}
	l.forwarded.answers = newFrontAnswers(port, m, o.FrontSenders, l.forwarded.drop)
	for i, conn := range port.readers {
		s := &udpSocket{
			conn: conn, port: port, index: i, gate: g, drops: o.Meter, meter: m,
			relays: map[netip.AddrPort]*relay.Relay{}, receiver: receivers[i],
			elsewhere: o.Forwarder.Outbox(), forwarder: o.Forwarder,
		}
		l.sockets = append(l.sockets, s)
		m.Open.Add(1)
		m.Opened.Add(1)
	}
	g.Restore(o.Saved, l.restoredClient)
	for _, s := range l.sockets {
		l.reading.Go(s.read)
	}
	return l, nil
}

// restoredClient returns the client of a session of a previous process.
func (l *udpListener) restoredClient(r *session.Record) session.Client {
	c := &udpClient{socket: l.sockets[int(r.Client.Port())%len(l.sockets)], addr: r.Client}
	c.from, _ = datagram.ParseSource(r.Source) // after an error, the kernel selects the source address
	if r.Away {
		c.paths.hold()
	}
	return c
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

// Certificates returns none.
func (l *udpListener) Certificates() []*x509.Certificate { return nil }

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
	l.forwarded.answers.closeAll()
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
	s.work() // finishes the batch after a panic
	for raw.Read(s.attempt) == nil {
	}
	return true
}

// receive receives one batch without waiting, and handles it. If it returns false, the runtime calls it again when a
// datagram has arrived, even if that was before the return. After a single datagram it returns false, because another
// attempt would usually find nothing.
func (s *udpSocket) receive(fd uintptr) bool {
	n, errno := s.receiver.Receive(int(fd))
	s.received, s.handled = n, 0
	if n > 0 {
		s.work()
	}
	return errno != unix.EAGAIN && n != 1
}

// work handles the rest of a batch, as one unit of work for the liveness probe.
func (s *udpSocket) work() {
	s.task.Begin()
	s.handle()
	s.task.End()
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
			s.media(frame, s.current.addr, s.receiver.Control(i), now)
		default:
			// A request may end the session whose media is in the outbox. It may also take long.
			s.outbox.Flush(now)
			source := datagram.SourceOf(s.receiver.Control(i))
			s.gate.Receive(frame, &udpClient{socket: s, addr: s.current.addr, from: source})
		}
	}
	s.outbox.Flush(now)
	s.elsewhere.Flush()
}

// media forwards ChannelData. control are the control messages of the datagram.
func (s *udpSocket) media(frame []byte, client netip.AddrPort, control []byte, now time.Time) {
	r := s.relay(client)
	if r == nil {
		if !s.elsewhere.Pass(s.client(client), frame, datagram.SourceOf(control), now) {
			s.drop(client, meter.NoAllocation)
		}
		return
	}
	c := r.Session().Client.(*udpClient)
	if c.unplaced() {
		c.arrivedAt(datagram.SourceOf(control))
	}
	c.moved(c.arrived(forward.ReturnPath{}, frame, now))
	s.outbox.Add(r, frame, now)
}

// client returns the forward.Client for the address of a client.
func (s *udpSocket) client(addr netip.AddrPort) forward.Client {
	return forward.Client{Addr: addr, Port: uint16(s.port.number)}
}

func (s *udpSocket) drop(client netip.AddrPort, why meter.Reason) {
	s.drops.DropNote(why, meter.Note{Listener: s.meter.Name, Client: client})
}

// relay returns the relay of a client, or nil.
func (s *udpSocket) relay(client netip.AddrPort) *relay.Relay {
	if r := s.relays[client]; r != nil && !r.Closed() {
		return r
	}
	return s.lookup(client)
}

// lookup gets the relay of a client from the gate and caches it. It removes closed relays from the cache if the cache
// is much larger than the number of sessions of the listener.
func (s *udpSocket) lookup(client netip.AddrPort) *relay.Relay {
	delete(s.relays, client)
	r := s.gate.Owned(client)
	if s.foreign {
		r = s.gate.Relay(client)
	}
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
	// taken is set for a session that another pod has handed over. Until the client sends to this pod, the address to
	// which it will send is unknown, and from is not used. If here is set, it is the address to which the client sends.
	taken bool
	here  atomic.Pointer[datagram.Source]
	// sender sends to this client while it has a session. It is nil until own opens it.
	sender atomic.Pointer[datagram.Sender]
	// answers is the number of answers that were sent without the sender.
	answers atomic.Uint32

	// front is the pod at which the request has arrived. The zero ReturnPath is this pod.
	front forward.ReturnPath
	// authenticated is set for an Allocate request that the front has authenticated.
	authenticated bool
	// paths are the paths of the data for a client with a session.
	paths paths
	// stays counts the refused attempts to hand over the session to the pod at which the datagrams of the client
	// arrive.
	stays atomic.Int32

	opening sync.Mutex
	// shared is set if other clients use the same sender. The sender must then stay open when the session ends.
	shared bool
	// released is set when the session has ended.
	released bool
}

// commonAnswers is the number of answers to a client with a session that are sent from the unauthenticated sockets as
// long as no data is sent to the client. Clients often allocate for several candidates and use only one of them. The
// other sessions then need no socket of their own. The limit prevents a client with many requests and a slow link from
// filling the buffers of these sockets.
const commonAnswers = 16

// Send implements session.Client.
func (c *udpClient) Send(frame []byte) error {
	if c.front != (forward.ReturnPath{}) {
		return c.front.Send(frame)
	}
	var err error
	if sender := c.answering(); sender != nil {
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
	pair := c.paths.current.Load()
	switch {
	case pair == nil:
		c.sendFromHere(packets)
		return
	case pair.used == nil:
		unsent(packets, errNoPath)
		return
	}
	if pair.second != nil {
		c.answered(packets)
		c.sendOn(pair.second, packets)
	}
	c.sendOn(pair.used, packets)
}

// sendFromHere sends from the sockets of this pod.
func (c *udpClient) sendFromHere(packets []datagram.Packet) {
	sender := c.own()
	if sender == nil { // the session has ended
		unsent(packets, net.ErrClosed)
		return
	}
	for i := range packets {
		packets[i].To, packets[i].From = c.addr, c.source()
	}
	sender.SendAll(packets)
	c.socket.meter.Tx.AddSum(sent(packets))
}

// errNoPath is the error for data to a restored client until the first datagram of the client, which shows the path to
// it.
var errNoPath = errors.New("the path to the client is not known yet")

// unsent sets the error of all packets.
func unsent(packets []datagram.Packet, err error) {
	for i := range packets {
		packets[i].Err = err
	}
}

// sent returns the sum of the packets without an error.
func sent(packets []datagram.Packet) (sum meter.Sum) {
	for i := range packets {
		if packets[i].Err == nil {
			sum.Add(len(packets[i].Payload))
		}
	}
	return sum
}

// answering returns the Sender for an answer to the client. It is nil if an unauthenticated socket sends the answer.
func (c *udpClient) answering() *datagram.Sender {
	if sender := c.sender.Load(); sender != nil {
		return sender
	}
	r := c.socket.gate.Relay(c.addr)
	if r == nil {
		return nil
	}
	held, ok := r.Session().Client.(*udpClient)
	switch {
	case !ok:
		return nil
	case held.answers.Load() < commonAnswers:
		held.answers.Add(1)
		return held.sender.Load()
	}
	return held.own()
}

// own returns the Sender of the session. The first call opens a socket that sends to this client only, or shares one
// (see udpPort.openSender). It returns nil if the session has ended.
func (c *udpClient) own() *datagram.Sender {
	if sender := c.sender.Load(); sender != nil {
		return sender
	}
	c.opening.Lock()
	defer c.opening.Unlock()
	if sender := c.sender.Load(); sender != nil || c.released {
		return sender
	}
	sender, shared := c.socket.port.openSender(c.socket.index, c.socket.port.most)
	c.shared = shared
	c.sender.Store(sender)
	return sender
}

// Released implements session.Client.
func (c *udpClient) Released() {
	c.opening.Lock()
	defer c.opening.Unlock()
	c.released = true
	if sender := c.sender.Swap(nil); sender != nil && !c.shared {
		_ = sender.Close()
	}
	c.socket.forwarder.Ended(c.socket.client(c.addr))
}

// Addr implements session.Client.
func (c *udpClient) Addr() netip.AddrPort { return c.addr }

// Local implements session.Client. It is invalid while the client may use another pod, because the kernel sends to the
// client from this pod only.
func (c *udpClient) Local() netip.AddrPort {
	if !c.paths.direct() {
		return netip.AddrPort{}
	}
	return c.At()
}

// At returns the transport address to which the client sends, with an invalid IP address if it is unknown.
func (c *udpClient) At() netip.AddrPort {
	return netip.AddrPortFrom(c.source().Addr(), uint16(c.socket.port.number))
}

// source returns the source address of data for the client.
func (c *udpClient) source() *datagram.Source {
	if here := c.here.Load(); here != nil {
		return here
	}
	return &c.from
}

// unplaced reports whether this pod does not know to which of its addresses the client sends: another pod has handed
// over the session, and the client has not sent to this pod since. arrivedAt stores the address when the client sends.
func (c *udpClient) unplaced() bool { return c.taken && c.here.Load() == nil }

func (c *udpClient) arrivedAt(source datagram.Source) {
	c.here.CompareAndSwap(nil, &source)
}

// Source returns the binary form of the source address of answers, for the journal.
func (c *udpClient) Source() []byte {
	b, _ := c.source().AppendBinary(nil) // never fails
	return b
}

// Connected implements session.Client.
func (c *udpClient) Connected() bool { return false }
