package listener

import (
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/pion/stun/v2"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// G-02, D-19: no listener leaves a goroutine behind after Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newGate returns a gate that ends with the test.
func newGate(t testing.TB, protocol config.Protocol) (*gate.Gate, *meter.Meter) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(1, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := nonce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := meter.New()
	g := gate.New("test", protocol, gate.Shared{
		Engine: engine, Nonces: nonces, Network: relaytest.NewKernel(t), Reservations: relay.NewReservations(),
		Limits: limit.NewProcess(), Table: session.NewTable(), Meter: m, Log: log,
	})
	t.Cleanup(func() {
		g.Close()
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, m
}

// open opens a listener on a free port.
func open(t *testing.T, protocol config.Protocol) (port int) {
	t.Helper()
	g, m := newGate(t, config.TURNUDP)
	port = testport.Free(t)
	l, err := Open(
		config.Listener{Name: "test", Protocol: protocol, Port: port}, g,
		Options{Sockets: 2, Limits: NewLimits(0), Meter: m, Log: slog.New(slog.DiscardHandler)},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return port
}

// S-12: an answer is sent from the address to which the request was sent. A connected socket receives no other.
func TestAnswerIsSentFromTheRequestedAddress(t *testing.T) {
	port := open(t, config.TURNUDP)
	for _, asked := range []string{"127.0.0.1", "127.0.0.2", "127.1.2.3", "::1"} {
		conn, err := net.Dial("udp", net.JoinHostPort(asked, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1500)); err != nil {
			t.Errorf("asked %s: %v", asked, err)
		}
	}
}

// G-11: neither receiving a datagram nor sending one to a client allocates.
func TestSocketsAllocateNothing(t *testing.T) {
	a, err := listenUDP(0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	port := a.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	self := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	sender, err := datagram.NewSender(a)
	if err != nil {
		t.Fatal(err)
	}
	receivers, err := newReceivers(1)
	if err != nil {
		t.Fatal(err)
	}
	defer receivers[0].Close()
	socket := &udpSocket{conn: a, meter: &meter.Listener{}, receiver: receivers[0]}
	received := 0
	attempt := func(fd uintptr) bool {
		received, _ = socket.receiver.Receive(int(fd))
		return received > 0
	}
	raw, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := &udpClient{socket: socket, addr: self}
	c.sender.Store(sender)
	packets := make([]datagram.Packet, 8)
	for i := range packets {
		packets[i].Payload = make([]byte, 160)
	}
	turn := func() {
		if err := c.Send(packets[0].Payload); err != nil {
			t.Fatal(err)
		}
		c.SendAll(packets)
		for got := 0; got < len(packets)+1; got += received {
			if err := raw.Read(attempt); err != nil {
				t.Fatal(err)
			}
			c.from = datagram.SourceOf(socket.receiver.Control(0))
		}
	}
	if n := testing.AllocsPerRun(1000, turn); n != 0 {
		t.Errorf("%.1f allocations a datagram", n)
	}
	if c.from == (datagram.Source{}) {
		t.Error("the destination is not known")
	}
}

func TestPortOfAnotherProcessIsNotShared(t *testing.T) {
	port := open(t, config.TURNUDP)
	conn, err := listenUDP(port)
	if err != nil {
		t.Fatalf("the group does not share its own port: %v", err)
	}
	defer conn.Close()
	if err := probeUDP(port); err == nil {
		t.Error("a second dataplane would take half of the clients")
	}
}

// newSocket returns the only socket of a port, with a receiver. The caller starts its reader.
func newSocket(t *testing.T, m *meter.Meter) *udpSocket {
	t.Helper()
	port, err := openPort(testport.Free(t), 1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	receivers, err := newReceivers(1)
	if err != nil {
		t.Fatal(err)
	}
	return &udpSocket{conn: port.readers[0], port: port, drops: m, meter: m.Listener("test"), receiver: receivers[0]}
}

// T-17: after a panic while a datagram is handled, the reader continues for other clients.
func TestReaderSurvivesAPanic(t *testing.T) {
	m := meter.New()
	s := newSocket(t, m) // without a gate every datagram causes a panic
	done := make(chan struct{})
	go func() { defer close(done); s.read() }()
	client, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port.number)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const datagrams, faults = 10, 2 // the first panic is in the handling, the second in the end of the session
	for range datagrams {
		if _, err := client.Write(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(30 * time.Second); m.Panics.Load() < datagrams*faults; {
		if time.Now().After(end) {
			t.Fatalf("%d faults, want %d", m.Panics.Load(), datagrams*faults)
		}
		time.Sleep(time.Millisecond)
	}
	if err := s.port.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	if s.task.Working() {
		t.Error("the reader seems to be at work")
	}
}

// A reader reads all datagrams in the receive buffer, also those after a full batch, without waiting for another
// datagram.
func TestReaderEmptiesItsSocket(t *testing.T) {
	m := meter.New()
	s := newSocket(t, m)
	client, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port.number)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const datagrams = 2*datagram.BatchSize + 1
	for range datagrams {
		if _, err := client.Write(nil); err != nil { // a malformed datagram, which is dropped
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); s.read() }()
	for end := time.Now().Add(30 * time.Second); m.Drops()[meter.Malformed.String()] < datagrams; {
		if time.Now().After(end) {
			t.Fatalf("%v of %d datagrams are read", m.Drops(), datagrams)
		}
		time.Sleep(time.Millisecond) // polls
	}
	if err := s.port.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
}

// if descriptors are scarce, clients with a session share the socket of their reader. The end of a session closes
// the socket of no other client.
func TestClientsShareASocketWhereDescriptorsAreScarce(t *testing.T) {
	port, err := openPort(testport.Free(t), 2, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	s := &udpSocket{conn: port.readers[1], port: port, index: 1, meter: &meter.Listener{}}
	peer, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	for _, most := range []int{0, 1 << 20} {
		port.most = most
		var clients []*udpClient
		for range 2 {
			c := &udpClient{socket: s, addr: peer.LocalAddr().(*net.UDPAddr).AddrPort()}
			c.own()
			clients = append(clients, c)
		}
		if shared := clients[0].sender.Load() == clients[1].sender.Load(); shared != (most == 0) {
			t.Errorf("with descriptors up to %d: shared is %t", most, shared)
		}
		clients[0].Released()
		if err := clients[1].Send([]byte("hello")); err != nil {
			t.Errorf("with descriptors up to %d: %v", most, err)
		}
		clients[1].Released()
	}
}
