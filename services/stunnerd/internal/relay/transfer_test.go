package relay

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// fakeSocket is a Socket that records each call of Send.
type fakeSocket struct {
	calls [][]string
	// before, if it is not nil, is called by Send.
	before func()
	// fails returns the error of a payload, unless it is nil.
	fails func(payload string) error
	// faulty makes Send panic.
	faulty bool
}

func (s *fakeSocket) Send(packets []datagram.Packet) {
	if s.faulty {
		panic("faulty")
	}
	if s.before != nil {
		s.before()
	}
	var call []string
	for i := range packets {
		call = append(call, string(packets[i].Payload))
		if s.fails != nil {
			packets[i].Err = s.fails(string(packets[i].Payload))
		}
	}
	s.calls = append(s.calls, call)
}

func (s *fakeSocket) Port() uint16          { return 1 }
func (s *fakeSocket) Bound() netip.AddrPort { return netip.AddrPort{} }
func (s *fakeSocket) Start(Receiver) error  { return nil }
func (s *fakeSocket) Drops() uint64         { return 0 }
func (s *fakeSocket) Close() error          { return nil }

// batchClient is a client transport that records each call of SendAll.
type batchClient struct {
	sink
	calls [][]string
	fails func(frame string) error
}

func (c *batchClient) SendAll(packets []datagram.Packet) {
	var call []string
	for i := range packets {
		call = append(call, string(packets[i].Payload[headerSize:]))
		if c.fails != nil {
			packets[i].Err = c.fails(string(packets[i].Payload[headerSize:]))
		}
	}
	c.calls = append(c.calls, call)
}

// relayOf returns a relay whose channels 0x4000 and above are bound to the peers.
func relayOf(m *meter.Meter, routes *Routes, client session.Client, s Socket, peers ...netip.AddrPort) *Relay {
	r := New(&session.Session{Client: client, Started: time.Now()}, s, loopback, routes, m, func(*Relay) {})
	for i, p := range peers {
		r.Bind(0x4000+uint16(i), p)()
	}
	return r
}

var (
	peer1 = netip.MustParseAddrPort("127.0.0.1:1001")
	peer2 = netip.MustParseAddrPort("127.0.0.1:1002")
)

// The payloads of a batch are sent by one call for each relay, in the order of the relays. The Outbox is empty
// afterwards.
func TestOutboxGroupsByRelay(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	m, now := meter.New(), time.Now()
	sockets := []*fakeSocket{{}, {}, {}}
	var relays []*Relay
	for _, s := range sockets {
		relays = append(relays, relayOf(m, &routes, &sink{}, s, peer1, peer2))
	}
	var o Outbox
	for range 2 {
		for i, at := range []int{0, 1, 0, 2, 0, 1} {
			o.Add(relays[at], frame(0x4000+uint16(i%2), []byte{'a' + byte(i)}), now)
		}
		o.Flush(time.Now())
		o.Flush(time.Now())
	}
	want := [][]string{{"a", "c", "e"}, {"b", "f"}, {"d"}}
	for i, s := range sockets {
		if len(s.calls) != 2 || !slices.Equal(s.calls[0], want[i]) || !slices.Equal(s.calls[1], want[i]) {
			t.Errorf("relay %d: %v, want %v twice", i, s.calls, want[i])
		}
	}
}

// The counters of a cluster change once for a batch, after the payloads of all relays were sent.
func TestOutboxCountsOnce(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	m, now := meter.New(), time.Now()
	sent := &m.Cluster("c").Tx
	var o Outbox
	for range 3 {
		r := relayOf(m, &routes, &sink{}, &fakeSocket{before: func() {
			if n := sent.Packets.Load(); n != 0 {
				t.Errorf("%d packets are counted before the end of the batch", n)
			}
		}}, peer1)
		o.Add(r, frame(0x4000, []byte("12")), now)
		o.Add(r, frame(0x4000, []byte("345")), now)
	}
	o.Flush(now)
	o.Flush(now)
	if packets, size := sent.Packets.Load(), sent.Bytes.Load(); packets != 6 || size != 15 {
		t.Errorf("%d packets of %d bytes, want 6 of 15", packets, size)
	}
}

// A panic while one relay sends ends its session. The payloads of the other relays are sent once, even if the end of
// the session causes a panic too.
func TestPanicInAFlushKeepsTheRest(t *testing.T) {
	for _, endFails := range []bool{false, true} {
		var routes Routes
		routes.Store(allow("127.0.0.1"))
		m, now := meter.New(), time.Now()
		sockets := []*fakeSocket{{}, {faulty: true}, {}}
		var relays []*Relay
		for _, s := range sockets {
			relays = append(relays, relayOf(m, &routes, &sink{}, s, peer1))
		}
		if endFails {
			relays[1].ended = func(*Relay) { panic("end") }
		}
		var o Outbox
		flush := func() {
			defer func() { _ = recover() }()
			o.Flush(time.Now())
		}
		for i, r := range relays {
			o.Add(r, frame(0x4000, []byte{'a' + byte(i)}), now)
		}
		flush()
		flush() // the listener flushes again after a panic
		o.Add(relays[2], frame(0x4000, []byte("later")), now)
		flush()
		if first, last := fmt.Sprint(sockets[0].calls), fmt.Sprint(sockets[2].calls); first != "[[a]]" ||
			last != "[[c] [later]]" {
			t.Errorf("end fails is %t: sent %s and %s", endFails, first, last)
		}
		if n := m.Cluster("c").Tx.Packets.Load(); n != 3 {
			t.Errorf("end fails is %t: %d packets are counted, want 3", endFails, n)
		}
		if !relays[1].Closed() || relays[0].Closed() || relays[2].Closed() {
			t.Error("another session was ended")
		}
	}
}

// Counters of session and cluster count exactly the sent datagrams, in both directions. Each other datagram is counted
// as one drop.
func TestBatchesAreCountedExactly(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	fails := func(s string) error {
		switch s {
		case "full":
			return datagram.ErrCongested
		case "closed":
			return net.ErrClosed
		}
		return nil
	}
	payloads := []string{"1", "full", "", "333", "closed", "full", "55555"}
	const packets, size, congested, failed = 4, 9, 2, 1
	m, now := meter.New(), time.Now()
	client := &batchClient{fails: fails}
	r := relayOf(m, &routes, client, &fakeSocket{fails: fails}, peer1, peer2)
	r.session.Usage = usage.Open(usage.Options{}).Begin(usage.Identity{ID: usage.New()})
	billed := r.session.Usage.Route("c")
	var o Outbox
	var batch []Datagram
	for i, p := range payloads {
		o.Add(r, frame(0x4000+uint16(i%2), []byte(p)), now)
		batch = append(batch, NewDatagram([]byte(p), []netip.AddrPort{peer1, peer2}[i%2]))
	}
	o.Flush(time.Now())
	r.ReceiveBatch(batch, now)
	for what, f := range map[string]*meter.Flow{
		"session to peers": &r.session.Traffic.Tx, "cluster to peers": &m.Cluster("c").Tx,
		"session to client": &r.session.Traffic.Rx, "cluster to client": &m.Cluster("c").Rx,
		"usage to peers": &billed.Tx, "usage to client": &billed.Rx,
	} {
		if f.Packets.Load() != packets || f.Bytes.Load() != size {
			t.Errorf("%s: %d packets, %d bytes; want %d and %d", what, f.Packets.Load(), f.Bytes.Load(), packets, size)
		}
	}
	if d := m.Drops(); d["congested"] != 2*congested || d["send_failed"] != 2*failed {
		t.Errorf("drops %v", d)
	}
	if len(client.calls) != 1 || !slices.Equal(client.calls[0], payloads) {
		t.Errorf("to the client: %q", client.calls)
	}
	r.countKernel((*r.channels.Load())[0], offload.Counters{Up: offload.Flow{Packets: 2, Bytes: 20}, Down: offload.Flow{Packets: 3, Bytes: 30}})
	if up, down := billed.Tx.Bytes.Load(), billed.Rx.Bytes.Load(); up != size+20 || down != size+30 {
		t.Errorf("usage with what the kernel has forwarded: %d and %d bytes, want %d and %d", up, down, size+20, size+30)
	}
	r.Send([]byte("four"), peer1, false)
	if got := billed.Tx.Bytes.Load(); got != size+24 {
		t.Errorf("usage with a Send indication: %d bytes, want %d", got, size+24)
	}
}

// Permission and channel end at the time of the batch, to the nanosecond.
func TestBatchEndsWithPermissionAndChannel(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	for after, want := range map[time.Duration]string{
		PermissionLifetime - 1: "map[]", PermissionLifetime: "map[no_permission:1]",
	} {
		m := meter.New()
		r := relayOf(m, &routes, &batchClient{}, &fakeSocket{}, peer1)
		granted := (*r.channels.Load())[0].permitted.Load() - int64(PermissionLifetime)
		r.ReceiveBatch([]Datagram{NewDatagram([]byte("x"), peer1)}, r.session.Started.Add(time.Duration(granted)+after))
		if got := fmt.Sprint(present(m.Drops())); got != want {
			t.Errorf("a permission after %v: drops %s, want %s", after, got, want)
		}
	}
	for after, want := range map[time.Duration]string{
		ChannelLifetime - 1: "map[]", ChannelLifetime: "map[channel_unbound:1]",
	} {
		m := meter.New()
		r := relayOf(m, &routes, &batchClient{}, &fakeSocket{}, peer1)
		bound := (*r.channels.Load())[0].until.Load() - int64(ChannelLifetime)
		var o Outbox
		o.Add(r, frame(0x4000, []byte("x")), r.session.Started.Add(time.Duration(bound)+after))
		o.Flush(time.Now())
		if got := fmt.Sprint(present(m.Drops())); got != want {
			t.Errorf("a channel after %v: drops %s, want %s", after, got, want)
		}
	}
}

func present(drops map[string]uint64) map[string]uint64 {
	for reason, n := range drops {
		if n == 0 {
			delete(drops, reason)
		}
	}
	return drops
}

// ChannelData is never sent before the answer to its ChannelBind. Datagrams that arrive during a ChannelBind are not
// lost, and keep their order.
func TestBindInProgressKeepsTheOrder(t *testing.T) {
	const before, during, behind = 20, 20, 20
	for range 50 {
		b := newFixture(t, &sink{frames: make(chan []byte, before+during+behind+1)})
		peer := b.peerAddr()
		next := byte(0)
		batch := func(n int) (d []Datagram) {
			for range n {
				d = append(d, NewDatagram([]byte{next}, peer))
				next++
			}
			return d
		}
		answered := b.Bind(0x4000, peer)
		b.ReceiveBatch(batch(before), time.Now())
		b.ReceiveBatch(batch(during), time.Now())
		b.client.frames <- []byte("answer")
		answered()
		for range behind {
			b.ReceiveBatch(batch(1), time.Now())
		}
		if got := after(t, b.client.frames); string(got) != "answer" {
			t.Fatalf("%x overtook the answer", got)
		}
		for i := range before + during + behind {
			if got, want := after(t, b.client.frames), frame(0x4000, []byte{byte(i)}); !bytes.Equal(got, want) {
				t.Fatalf("got %x, want %x", got, want)
			}
		}
	}
}

// Datagrams that wait for the decision of the engine are sent before later ChannelData of their peer.
func TestDecisionOfTheEngineKeepsTheOrder(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	client := &sink{frames: make(chan []byte, 2)}
	r := relayOf(meter.New(), &routes, client, &fakeSocket{})
	asked, answer := make(chan struct{}), make(chan bool)
	r.permitted = func(netip.AddrPort) bool {
		close(asked)
		return <-answer
	}
	r.ReceiveBatch([]Datagram{NewDatagram([]byte("0"), peer1)}, time.Now())
	after(t, asked)
	r.Bind(0x4000, peer1)()
	r.ReceiveBatch([]Datagram{NewDatagram([]byte("1"), peer1)}, time.Now())
	answer <- true
	if got := after(t, client.frames); got[0] == 0x40 {
		t.Errorf("%q overtook the Data indication", got)
	}
	if got := after(t, client.frames); !bytes.Equal(got, frame(0x4000, []byte("1"))) {
		t.Errorf("%q behind the Data indication", got)
	}
}

// T-04: changed routes apply also to queued datagrams.
func TestRoutesHoldForQueuedDatagrams(t *testing.T) {
	b := newFixture(t, &sink{frames: make(chan []byte, 3)}) // room for all, so that a datagram that passes does not block
	b.ReceiveBatch([]Datagram{NewDatagram([]byte("x"), b.peerAddr())}, time.Now())
	b.routes.Store(allow("127.0.0.1:<1-2>"))
	b.verdicts <- true
	b.ReceiveBatch([]Datagram{{icmp: ICMP{Type: 3}, peer: b.peerAddr()}}, time.Now())
	b.verdicts <- true
	b.ReceiveBatch([]Datagram{NewDatagram([]byte("y"), netip.AddrPortFrom(loopback, 1))}, time.Now())
	b.verdicts <- true
	if got := after(t, b.client.frames); !bytes.Contains(got, []byte("y")) {
		t.Errorf("%q passed a closed route", got)
	}
	if d := present(b.meter.Drops()); d["port_denied"] != 2 {
		t.Errorf("drops %v", d)
	}
}

// The queue for the engine is bounded by number and by bytes. It keeps no memory of datagrams that it has returned, and
// is empty after close.
func TestQueueForTheEngineIsBounded(t *testing.T) {
	for _, c := range []struct{ size, fit int }{
		{0, maxUndecided}, {1000, maxUndecided}, {2048, maxUndecidedBytes / 2048}, {65_507, maxUndecidedBytes / 65_507},
	} {
		u, d := &undecided{}, NewDatagram(make([]byte, c.size), peer1)
		fits := func() bool {
			ok, _ := u.add(&d)
			return ok
		}
		n := 0
		for fits() {
			n++
		}
		if n != c.fit {
			t.Errorf("%d datagrams of %d bytes fit, want %d", n, c.size, c.fit)
		}
		queue := u.queue
		if _, behind, ok := u.next(); !ok || behind != n-1 || queue[0].room != nil {
			t.Errorf("%d datagrams behind the first one of %d, or the queue still holds it", behind, n)
		}
		if !fits() {
			t.Error("there is no room after next")
		}
		for range n {
			u.next()
		}
		if u.queue != nil || u.bytes != 0 {
			t.Errorf("the empty queue has %d bytes and capacity for %d", u.bytes, cap(u.queue))
		}
		u.close()
		if !fits() || u.queue != nil {
			t.Error("the queue keeps a datagram after close")
		}
		if _, _, ok := u.next(); ok {
			t.Error("next returns a datagram after close")
		}
	}
}

// When the queue for the engine is full, further datagrams are dropped and counted. Datagrams of bound peers are still
// forwarded.
func TestFullQueueStopsNoBoundPeer(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.0/8"))
	m, client := meter.New(), &batchClient{}
	r := relayOf(m, &routes, client, &fakeSocket{}, peer1)
	answer := make(chan bool)
	defer close(answer)
	r.permitted = func(netip.AddrPort) bool { return <-answer }
	unbound := netip.MustParseAddrPort("127.0.0.2:1002") // a channel permits all ports of the address of its peer
	var batch []Datagram
	for range maxUndecided + 10 {
		batch = append(batch, NewDatagram([]byte("unbound"), unbound))
	}
	batch = append(batch, NewDatagram([]byte("bound"), peer1))
	r.ReceiveBatch(batch, time.Now())
	// The engine may already handle one datagram, which is not in the queue then.
	if d := m.Drops(); d["congested"] < 9 || d["congested"] > 10 || fmt.Sprint(client.calls) != "[[bound]]" {
		t.Errorf("drops %v, passed %v", present(d), client.calls)
	}
}
