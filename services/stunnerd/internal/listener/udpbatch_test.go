package listener

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// batchFixture is a reader that a test runs batch by batch. Datagrams on loopback are in the receive buffer of the
// reader when the call that has sent them returns, so a test knows the content of a batch.
type batchFixture struct {
	*udpSocket
	t   *testing.T
	raw syscall.RawConn
}

func newBatchFixture(t *testing.T) *batchFixture {
	t.Helper()
	g, m := newGate(t, config.TURNUDP)
	g.Update(&gate.Policy{
		Authority:  credential.Authority{Realm: "test.example", Username: "ann", Password: "first"},
		RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}, cluster.NewView(
		[]config.Cluster{{Name: "c", Type: config.Static, Endpoints: []string{"127.0.0.1"}}}, []string{"c"},
	))
	s := newSocket(t, m)
	s.gate, s.relays = g, map[netip.AddrPort]*relay.Relay{}
	s.attempt = func(fd uintptr) bool {
		s.receive(fd)
		return s.received > 0
	}
	raw, err := s.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.port.Close(); err != nil {
			t.Error(err)
		}
	})
	return &batchFixture{s, t, raw}
}

// batch receives and handles one batch, which has a number of datagrams.
func (b *batchFixture) batch(want int) {
	b.t.Helper()
	if err := b.raw.Read(b.attempt); err != nil {
		b.t.Fatal(err)
	}
	if b.received != want {
		b.t.Fatalf("a batch of %d datagrams, want %d", b.received, want)
	}
}

func (b *batchFixture) dial() *batchedClient {
	b.t.Helper()
	conn, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port.number)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return &batchedClient{conn, b, nil}
}

// batchedClient is a client of a batchFixture.
type batchedClient struct {
	net.Conn
	fixture *batchFixture
	nonce   stun.Nonce
}

func (c *batchedClient) addr() netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

func (c *batchedClient) send(frame []byte) {
	c.fixture.t.Helper()
	if _, err := c.Write(frame); err != nil {
		c.fixture.t.Fatal(err)
	}
}

func (c *batchedClient) data(number uint16, payload string) {
	c.fixture.t.Helper()
	frame := binary.BigEndian.AppendUint16(nil, number)
	c.send(append(binary.BigEndian.AppendUint16(frame, uint16(len(payload))), payload...))
}

// request returns a signed request.
func (c *batchedClient) request(method stun.Method, attrs ...stun.Setter) []byte {
	c.fixture.t.Helper()
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attrs...)
	if c.nonce != nil {
		setters = append(setters, stun.NewUsername("ann"), stun.NewRealm("test.example"), c.nonce,
			stun.NewLongTermIntegrity("ann", "test.example", "first"))
	}
	return stun.MustBuild(setters...).Raw
}

// read returns the next message or frame for the client.
func (c *batchedClient) read() []byte {
	c.fixture.t.Helper()
	return read(c.fixture.t, c.Conn)
}

func read(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// answer returns the next answer to the client, which must have a class.
func (c *batchedClient) answer(class stun.MessageClass) *stun.Message {
	c.fixture.t.Helper()
	m := &stun.Message{Raw: c.read()}
	if err := m.Decode(); err != nil {
		c.fixture.t.Fatalf("%q: %v", m.Raw, err)
	}
	if m.Type.Class != class {
		c.fixture.t.Fatalf("%v, want %v", m.Type, class)
	}
	return m
}

var requestedUDP = stunmsg.Number{Type: stun.AttrRequestedTransport, Value: 17 << 24}

func bind(number uint16, peer net.Conn) []stun.Setter {
	return []stun.Setter{
		stunmsg.Number{Type: stun.AttrChannelNumber, Value: uint32(number) << 16},
		stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: peer.LocalAddr().(*net.UDPAddr).AddrPort()},
	}
}

// allocate makes an allocation with channel 0x4000 for a peer.
func (c *batchedClient) allocate(peer net.Conn) {
	c.fixture.t.Helper()
	c.send(c.request(stun.MethodAllocate, requestedUDP))
	c.fixture.batch(1)
	if err := c.nonce.GetFrom(c.answer(stun.ClassErrorResponse)); err != nil {
		c.fixture.t.Fatal(err)
	}
	for _, request := range [][]byte{
		c.request(stun.MethodAllocate, requestedUDP), c.request(stun.MethodChannelBind, bind(0x4000, peer)...),
	} {
		c.send(request)
		c.fixture.batch(1)
		c.answer(stun.ClassSuccessResponse)
	}
}

func newPeer(t *testing.T) *net.UDPConn {
	t.Helper()
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	return peer
}

// expectPayloads reads payloads in this order, and no more.
func expectPayloads(t *testing.T, peer *net.UDPConn, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := read(t, peer); string(got) != w {
			t.Errorf("got %q, want %q", got, w)
		}
	}
	if err := peer.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := peer.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes more, %v", n, err)
	}
}

// A batch contains datagrams of several clients in any order: the media of each is forwarded in its order, each request
// is answered, and everything is counted once.
func TestBatchOfSeveralClients(t *testing.T) {
	b := newBatchFixture(t)
	var clients []*batchedClient
	var peers []*net.UDPConn
	for range 3 {
		c, peer := b.dial(), newPeer(t)
		c.allocate(peer)
		clients, peers = append(clients, c), append(peers, peer)
	}
	stranger := b.dial()
	before := b.meter.Rx.Packets.Load()
	binding := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
	const rounds = 5
	for round := range rounds {
		for i, c := range clients {
			c.data(0x4000, fmt.Sprint("client ", i, " round ", round))
		}
		clients[round%3].send(binding)
		stranger.data(0x4000, "no session")
		clients[0].data(0x4001, "no channel")
		stranger.send(nil)
	}
	b.batch(rounds * 7)
	for i, peer := range peers {
		var want []string
		for round := range rounds {
			want = append(want, fmt.Sprint("client ", i, " round ", round))
		}
		expectPayloads(t, peer, want...)
	}
	for round := range rounds {
		clients[round%3].answer(stun.ClassSuccessResponse)
	}
	if n := b.meter.Rx.Packets.Load() - before; n != rounds*7 {
		t.Errorf("%d received datagrams are counted, want %d", n, rounds*7)
	}
	if n := b.drops.Cluster("c").Tx.Packets.Load(); n != rounds*3 {
		t.Errorf("%d forwarded datagrams are counted, want %d", n, rounds*3)
	}
	drops := b.drops.Drops()
	for _, reason := range []string{"no_allocation", "channel_unbound", "malformed"} {
		if drops[reason] != rounds {
			t.Errorf("%d drops because of %s, want %d", drops[reason], reason, rounds)
		}
	}
}

// Requests between the media of their client take effect in the order of the datagrams.
func TestRequestsBetweenMediaTakeEffectInOrder(t *testing.T) {
	b := newBatchFixture(t)
	one, two, c := newPeer(t), newPeer(t), b.dial()
	c.allocate(one)
	c.data(0x4000, "before")
	c.data(0x4001, "too early")
	c.send(c.request(stun.MethodChannelBind, bind(0x4001, two)...))
	c.data(0x4001, "bound")
	c.data(0x4000, "last")
	c.send(c.request(stun.MethodRefresh, stunmsg.Number{Type: stun.AttrLifetime}))
	c.data(0x4000, "too late")
	b.batch(7)
	expectPayloads(t, one, "before", "last")
	expectPayloads(t, two, "bound")
	c.answer(stun.ClassSuccessResponse)
	c.answer(stun.ClassSuccessResponse)
	if d := b.drops.Drops(); d["channel_unbound"] != 1 || d["no_allocation"] != 1 || d["send_failed"] != 0 {
		t.Errorf("drops %v", d)
	}
}

// T-17: a panic in the middle of a batch ends the session of its client only. The other datagrams of the batch are
// handled, once.
func TestPanicInTheMiddleOfABatch(t *testing.T) {
	b := newBatchFixture(t)
	one, two := b.dial(), b.dial()
	peer1, peer2 := newPeer(t), newPeer(t)
	one.allocate(peer1)
	two.allocate(peer2)
	poison := b.dial()
	b.relays[poison.addr()] = new(relay.Relay)
	before := b.meter.Rx.Packets.Load()
	one.data(0x4000, "1")
	poison.data(0x4000, "causes a panic")
	two.data(0x4000, "2")
	one.data(0x4000, "3")
	poison.data(0x4000, "causes a panic")
	two.data(0x4000, "4")
	done := make(chan struct{})
	go func() { defer close(done); b.read() }()
	for _, want := range []string{"1", "3"} {
		if got := read(t, peer1); string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, want := range []string{"2", "4"} {
		if got := read(t, peer2); string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	one.send(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw)
	one.answer(stun.ClassSuccessResponse)
	if n := b.gate.Sessions(); n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
	if err := b.port.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	expectPayloads(t, peer1)
	expectPayloads(t, peer2)
	if n := b.drops.Panics.Load(); n != 2 {
		t.Errorf("%d panics, want 2", n)
	}
	if n := b.meter.Rx.Packets.Load() - before; n != 7 {
		t.Errorf("%d received datagrams are counted, want 7", n)
	}
	if b.task.Working() {
		t.Error("the reader seems to be at work")
	}
}

// The datagrams of a round for one client arrive in order, are counted once, and are sent from the address to which the
// client has sent its request.
func TestSendAllToAClient(t *testing.T) {
	b := newBatchFixture(t)
	c, peer := b.dial(), newPeer(t)
	c.allocate(peer)
	relayed := b.gate.Relay(c.addr())
	before, bytesBefore := b.meter.Tx.Packets.Load(), b.meter.Tx.Bytes.Load()
	packets := make([]datagram.Packet, 100)
	for i := range packets {
		packets[i].Payload = bytes.Repeat([]byte{byte(i)}, 100)
	}
	relayed.Session().Client.SendAll(packets)
	for i := range packets {
		if got := c.read(); packets[i].Err != nil || !bytes.Equal(got, packets[i].Payload) {
			t.Fatalf("frame %d: %.4x, %v", i, got, packets[i].Err)
		}
	}
	if n, size := b.meter.Tx.Packets.Load()-before, b.meter.Tx.Bytes.Load()-bytesBefore; n != 100 || size != 100*100 {
		t.Errorf("%d datagrams of %d bytes are counted", n, size)
	}
	if err := relayed.Close(); err != nil {
		t.Fatal(err)
	}
	relayed.Session().Client.SendAll(packets)
	for i := range packets {
		if packets[i].Err != net.ErrClosed {
			t.Fatalf("frame %d after the end of the session: %v", i, packets[i].Err)
		}
	}
	if n := b.meter.Tx.Packets.Load() - before; n != 100 {
		t.Errorf("%d datagrams are counted after the end of the session", n)
	}
}
