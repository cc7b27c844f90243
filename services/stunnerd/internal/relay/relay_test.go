package relay

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/pion/stun/v2"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// sink is a client transport.
type sink struct {
	connected bool
	frames    chan []byte
	// arrived gets a value for each frame, unless it is nil.
	arrived chan struct{}
	// faulty makes Send panic.
	faulty bool
}

func (s *sink) Send(frame []byte) error {
	if s.faulty {
		panic("faulty")
	}
	if s.arrived != nil {
		s.arrived <- struct{}{}
	}
	if s.frames != nil {
		s.frames <- bytes.Clone(frame)
	}
	return nil
}

func (s *sink) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = s.Send(packets[i].Payload)
	}
}

func (s *sink) Addr() netip.AddrPort  { return netip.AddrPortFrom(loopback, 1) }
func (s *sink) Connected() bool       { return s.connected }
func (s *sink) Local() netip.AddrPort { return netip.AddrPort{} }
func (s *sink) Released()             {}

type fixture struct {
	*Relay
	client *sink
	peer   *net.UDPConn
	routes Routes
	meter  *meter.Meter
	// verdicts replaces the allocation engine: each value is whether a peer has a permission.
	verdicts chan bool
	// ended is closed when the relay has been closed.
	ended chan struct{}
}

func newFixture(t testing.TB, client *sink) *fixture { return newFixtureOf(t, client, true) }

// newFixtureOf returns a fixture whose relay passes ICMP messages on to the client, or only counts them.
func newFixtureOf(t testing.TB, client *sink, indicate bool) *fixture {
	t.Helper()
	b := &fixture{client: client, meter: meter.New(), verdicts: make(chan bool), ended: make(chan struct{})}
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	b.peer = peer
	b.routes.Store(allow("127.0.0.1"))
	s := &session.Session{Client: client, Started: time.Now()}
	network := newKernel(t)
	network.ICMP = indicate
	socket, err := network.Open(loopback, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.Relay = New(s, socket, loopback, &b.routes, b.meter, func(*Relay) { close(b.ended) })
	if err := b.Start(func(netip.AddrPort) bool { return <-b.verdicts }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = peer.Close()
		_ = b.Close()
		close(b.verdicts)
	})
	return b
}

func allow(endpoint string) *cluster.View {
	return cluster.NewView(
		[]config.Cluster{{Name: "c", Type: config.Static, Endpoints: []string{endpoint}}}, []string{"c"},
	)
}

func (b *fixture) peerAddr() netip.AddrPort { return b.peer.LocalAddr().(*net.UDPAddr).AddrPort() }

// answer makes the peer send a payload to the relay.
func (b *fixture) answer(t testing.TB, payload []byte) {
	t.Helper()
	if _, err := b.peer.WriteToUDPAddrPort(payload, b.session.Relay); err != nil {
		t.Fatal(err)
	}
}

func frame(number uint16, payload []byte) []byte {
	f := binary.BigEndian.AppendUint16(nil, number)
	f = binary.BigEndian.AppendUint16(f, uint16(len(payload)))
	return append(f, payload...)
}

// C-06: no payload is truncated, from an empty one to the longest datagram of UDP over IPv4, in both directions.
func TestNoPayloadIsTruncated(t *testing.T) {
	for _, connected := range []bool{false, true} {
		b := newFixture(t, &sink{connected: connected, frames: make(chan []byte, 1)})
		b.Bind(0x4000, b.peerAddr())()
		buf := make([]byte, 70_000)
		for _, size := range []int{0, 1, 2, 3, 4, 5, 1599, 1600, 1601, 9000, 65_507} {
			payload := bytes.Repeat([]byte{byte(size)}, size)
			b.FromClient(frame(0x4000, payload))
			if err := b.peer.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := b.peer.Read(buf)
			if err != nil || !bytes.Equal(buf[:n], payload) {
				t.Fatalf("%d bytes to the peer: %d, %v", size, n, err)
			}
			b.answer(t, payload)
			want := frame(0x4000, payload)
			for connected && len(want)%4 != 0 {
				want = append(want, 0)
			}
			if got := <-b.client.frames; !bytes.Equal(got, want) {
				t.Fatalf("%d bytes to the client: %d bytes, want %d", size, len(got), len(want))
			}
		}
	}
}

// P-08, C-06: a datagram of a peer without a channel becomes a Data indication with the whole payload if the peer has a
// permission. Otherwise it is dropped and counted.
func TestWithoutChannelTheEngineDecides(t *testing.T) {
	b := newFixture(t, &sink{frames: make(chan []byte, 1)})
	for _, size := range []int{0, 1, 100, 1600, 1601, 9000, 60_000} {
		payload := bytes.Repeat([]byte{7}, size)
		b.answer(t, payload)
		b.verdicts <- true
		m := &stun.Message{Raw: <-b.client.frames}
		if err := m.Decode(); err != nil {
			t.Fatal(err)
		}
		var peer stun.XORMappedAddress
		data, err := m.Get(stun.AttrData)
		if err != nil || !bytes.Equal(data, payload) || m.Type.Method != stun.MethodData {
			t.Fatalf("%d bytes: %s with %d bytes, %v", size, m.Type, len(data), err)
		}
		if err := peer.GetFromAs(m, stun.AttrXORPeerAddress); err != nil || peer.Port != int(b.peerAddr().Port()) {
			t.Fatalf("from %v, %v", peer, err)
		}
	}
	b.answer(t, make([]byte, 10))
	b.verdicts <- false
	b.answer(t, make([]byte, 11))
	b.verdicts <- true
	if m := <-b.client.frames; len(m) < 11 {
		t.Errorf("%d bytes", len(m))
	}
	if b.meter.Drops()["no_permission"] != 1 {
		t.Errorf("drops: %v", b.meter.Drops())
	}
}

func waiting(u *undecided) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.queue)
}

// Waiting datagrams of one peer need only one answer of the allocation engine.
func TestFloodWithoutPermissionCausesFewEngineCalls(t *testing.T) {
	b := newFixture(t, &sink{})
	const flood = 100
	batch := make([]Datagram, flood)
	for i := range batch {
		batch[i] = NewDatagram([]byte("flood"), netip.AddrPortFrom(loopback, uint16(i+1)))
	}
	b.ReceiveBatch(batch[:1], time.Now())
	for waiting(&b.undecided) > 0 { // decide has taken the first datagram
		runtime.Gosched()
	}
	b.ReceiveBatch(batch[1:], time.Now())
	b.verdicts <- false
	b.verdicts <- false
	for b.meter.Drops()["no_permission"] != flood {
		select {
		case b.verdicts <- false:
			t.Fatal("a third question")
		case <-time.After(time.Millisecond):
		}
	}
}

// C-10: a client gets ICMP messages about its peers. They cause no loss of datagrams of other peers.
func TestClientReceivesICMPMessages(t *testing.T) {
	b := newFixture(t, &sink{frames: make(chan []byte, 1000)})
	gone, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	closed := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	b.Bind(0x4000, b.peerAddr())()
	b.Bind(0x4001, closed)()
	for range 100 {
		b.FromClient(frame(0x4001, []byte("to nobody")))
		b.FromClient(frame(0x4000, []byte("to somebody")))
		if err := b.peer.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.peer.Read(make([]byte, 100)); err != nil {
			t.Fatalf("a datagram is lost because another peer is not there: %v", err)
		}
		select {
		case b.verdicts <- true: // the relay has received the ICMP error
		default: // Send has removed it
		}
	}
	for deadline := time.Now().Add(30 * time.Second); len(b.client.frames) == 0; {
		b.FromClient(frame(0x4001, []byte("to nobody")))
		select {
		case b.verdicts <- true:
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is said about the peer")
		}
	}
	m := &stun.Message{Raw: <-b.client.frames}
	if err := m.Decode(); err != nil {
		t.Fatal(err)
	}
	var peer stun.XORMappedAddress
	what, err := m.Get(attrICMP)
	if err != nil || !bytes.Equal(what, []byte{0, 0, 3 << 1, 3, 0, 0, 0, 0}) {
		t.Errorf("ICMP %x, %v: want destination unreachable, port unreachable", what, err)
	}
	if err := peer.GetFromAs(m, stun.AttrXORPeerAddress); err != nil || peer.Port != int(closed.Port()) {
		t.Errorf("about %v, %v", peer, err)
	}
}

// T-04: the routes apply to every datagram in both directions, even after the channel was bound.
func TestRoutesHoldForEveryDatagramBothWays(t *testing.T) {
	b := newFixture(t, &sink{frames: make(chan []byte, 8)})
	b.Bind(0x4000, b.peerAddr())()
	b.answer(t, []byte("in"))
	<-b.client.frames
	b.routes.Store(allow("127.0.0.1:<1-2>"))
	b.FromClient(frame(0x4000, []byte("out")))
	b.answer(t, []byte("in"))
	b.Send([]byte("indication"), b.peerAddr(), false)
	for b.meter.Drops()["port_denied"] < 3 {
		time.Sleep(time.Millisecond) // the peer's datagram arrives in a goroutine of its own
	}
	b.routes.Store(allow("127.0.0.1"))
	b.answer(t, []byte("back"))
	if got := <-b.client.frames; !bytes.Equal(got[4:], []byte("back")) {
		t.Errorf("%q came through a closed route", got[4:])
	}
}

// C-05: ChannelData of an unbound channel, or with a length that exceeds the frame, is dropped and counted.
func TestInvalidChannelDataIsDropped(t *testing.T) {
	b := newFixture(t, &sink{})
	b.Bind(0x4000, b.peerAddr())()
	for _, f := range [][]byte{nil, {0x40}, frame(0x4001, []byte("unbound")), frame(0x4000, []byte("short"))[:6]} {
		b.FromClient(f)
	}
	if b.meter.Drops()["malformed"] != 3 || b.meter.Drops()["channel_unbound"] != 1 {
		t.Errorf("drops: %v", b.meter.Drops())
	}
}

// G-11: a relayed packet does not allocate, in either direction.
func TestMediaAllocatesNothing(t *testing.T) {
	b := newFixture(t, &sink{})
	b.Bind(0x4000, b.peerAddr())()
	f := frame(0x4000, make([]byte, 160))
	if n := testing.AllocsPerRun(1000, func() { b.FromClient(f) }); n != 0 {
		t.Errorf("to the peer: %.1f allocations a packet", n)
	}
	answer, now := []Datagram{NewDatagram(make([]byte, 160), b.peerAddr())}, time.Now()
	if n := testing.AllocsPerRun(1000, func() { b.ReceiveBatch(answer, now) }); n != 0 {
		t.Errorf("to the client: %.1f allocations a packet", n)
	}
}

// G-11: a dropped packet does not allocate.
func TestDropsAllocateNothing(t *testing.T) {
	b := newFixture(t, &sink{})
	b.Bind(0x4000, b.peerAddr())()
	b.routes.Store(allow("127.0.0.1:<1-2>"))
	// The relay is closed, because an open relay sometimes takes a buffer for its poller.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	denied, unbound := frame(0x4000, make([]byte, 160)), frame(0x4001, make([]byte, 160))
	stranger := []Datagram{NewDatagram(make([]byte, 160), netip.MustParseAddrPort("192.0.2.9:9"))}
	now := time.Now()
	for what, drop := range map[string]func(){
		"denied":   func() { b.FromClient(denied) },
		"unbound":  func() { b.FromClient(unbound) },
		"stranger": func() { b.ReceiveBatch(stranger, now) },
	} {
		// One run, because an average would hide a single allocation.
		if n := testing.AllocsPerRun(1, func() {
			for range 1000 {
				drop()
			}
		}); n != 0 {
			t.Errorf("%s: %.0f allocations", what, n)
		}
	}
	if entries, suppressed := b.meter.Recent(); len(entries) == 0 || suppressed == 0 {
		t.Errorf("%d entries recent entries, %d suppressed", len(entries), suppressed)
	}
}

// G-11: the goroutine that receives does not allocate for a datagram of a bound peer.
func TestReceivingAllocatesNothing(t *testing.T) {
	b := newFixture(t, &sink{arrived: make(chan struct{})})
	b.Bind(0x4000, b.peerAddr())()
	payload := make([]byte, 160)
	n := testing.AllocsPerRun(1000, func() {
		b.answer(t, payload)
		<-b.client.arrived
	})
	if n > 0 {
		t.Errorf("%.1f allocations a packet", n)
	}
}

// T-A7: OpenEven opens an even port and the next one. A token returns the reserved port once.
func TestReservedPortIsTheNextOneAndGivenOnce(t *testing.T) {
	network := newKernel(t)
	even, odd, err := OpenEven(network, loopback, true)
	if err != nil {
		t.Fatal(err)
	}
	defer even.Close()
	if even.Port()%2 != 0 || odd.Port() != even.Port()+1 {
		t.Fatalf("ports %d and %d", even.Port(), odd.Port())
	}
	held := NewReservations()
	token, err := held.Hold(Reserved{Socket: odd, Advertised: loopback, User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := held.Take(token, "ann"); !ok || s != (Reserved{Socket: odd, Advertised: loopback, User: "ann"}) {
		t.Error("the token does not give the port")
	}
	if _, ok := held.Take(token, "ann"); ok {
		t.Error("the token gives the port twice")
	}
	if _, err := held.Hold(Reserved{Socket: odd, Advertised: loopback, User: "ann"}); err != nil {
		t.Fatal(err)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	again, err := network.Open(loopback, even.Port()+1)
	if err != nil {
		t.Fatalf("the port is not free again: %v", err)
	}
	_ = again.Close()
}

func BenchmarkFromClient(b *testing.B) {
	fixture := newFixture(b, &sink{})
	fixture.Bind(0x4000, fixture.peerAddr())()
	f := frame(0x4000, make([]byte, 160))
	b.ReportAllocs()
	for b.Loop() {
		fixture.FromClient(f)
	}
}

// C-06: the longest datagram of IPv6 does not fit into a Data indication, whose length has 16 bits. It is forwarded in
// a channel, and is otherwise dropped. A wrong length would make a client over a stream lose the start of the next
// message.
func TestDatagramThatNoIndicationHoldsIsDropped(t *testing.T) {
	peer := netip.MustParseAddrPort("[2001:db8::1]:1")
	for size, passes := range map[int]bool{65_504: true, 65_505: false, 65_527: false} {
		b := newFixture(t, &sink{connected: true, frames: make(chan []byte, 1)})
		b.routes.Store(allow("2001:db8::1"))
		d := NewDatagram(bytes.Repeat([]byte{1}, size), peer)
		r := relayOf(b.meter, &b.routes, b.client, &fakeSocket{})
		r.deliver(d)
		select {
		case frame := <-b.client.frames:
			if says := 20 + int(binary.BigEndian.Uint16(frame[2:])); !passes || says != len(frame) {
				t.Errorf("%d bytes come in a message of %d that says %d", size, len(frame), says)
			}
		default:
			if passes || b.meter.Drops()["too_large"] != 1 {
				t.Errorf("%d bytes are dropped: %v", size, b.meter.Drops())
			}
		}
	}
}

// T-17: a panic while a datagram is forwarded ends the session, and not the process.
func TestPanicEndsTheSession(t *testing.T) {
	b := newFixture(t, &sink{faulty: true})
	b.Bind(0x4000, b.peer.LocalAddr().(*net.UDPAddr).AddrPort())()
	if _, err := b.peer.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(b.session.Relay)); err != nil {
		t.Fatal(err)
	}
	<-b.ended
	if n := b.meter.Panics.Load(); n != 1 || !b.Closed() {
		t.Errorf("%d panics are counted, closed is %t", n, b.Closed())
	}
}
