package relay

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// trafficOf returns the traffic of the peers of a relay by address.
func trafficOf(r *Relay) map[netip.AddrPort]session.PeerTraffic {
	all := map[netip.AddrPort]session.PeerTraffic{}
	r.session.Peers(func(p session.PeerTraffic) { all[p.Peer] = p })
	return all
}

// The packets of each peer are counted in both directions, and the time of the last packet is recorded. A packet that
// could not be sent to the peer does not count. A packet of the peer counts even if the client does not get it.
func TestPacketsOfEachPeer(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	lost := func(string) error { return datagram.ErrCongested }
	client, socket := &batchClient{fails: lost}, &fakeSocket{}
	r := relayOf(meter.New(), &routes, client, socket, peer1, peer2)
	started := r.session.Started
	at := func(seconds int) time.Time { return started.Add(time.Duration(seconds) * time.Second) }
	send := func(seconds int, numbers ...uint16) {
		var o Outbox
		for _, n := range numbers {
			o.Add(r, frame(n, []byte("x")), at(seconds))
		}
		o.Flush(at(seconds))
	}
	check := func(peer netip.AddrPort, want session.PeerTraffic) {
		t.Helper()
		want.Peer, want.Cluster = peer, "c"
		if got := trafficOf(r)[peer]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check(peer1, session.PeerTraffic{})
	send(1, 0x4000, 0x4001, 0x4000)
	send(2, 0x4000)
	check(peer1, session.PeerTraffic{Sent: 3, Unanswered: 3, LastSent: at(2), UnansweredSince: at(1)})
	check(peer2, session.PeerTraffic{Sent: 1, Unanswered: 1, LastSent: at(1), UnansweredSince: at(1)})

	r.ReceiveBatch([]Datagram{NewDatagram([]byte("a"), peer1), NewDatagram([]byte("b"), peer1)}, at(3))
	check(peer1, session.PeerTraffic{Sent: 3, Received: 2, LastSent: at(2), LastReceived: at(3)})
	socket.fails = lost
	send(4, 0x4000)
	check(peer1, session.PeerTraffic{Sent: 3, Received: 2, LastSent: at(2), LastReceived: at(3)})
	socket.fails = nil
	send(5, 0x4000)
	send(6, 0x4000)
	check(peer1, session.PeerTraffic{
		Sent: 5, Received: 2, Unanswered: 2, LastSent: at(6), LastReceived: at(3), UnansweredSince: at(5),
	})

	c := r.byPeer(peer2, 0)
	r.countKernel(c, offload.Counters{Up: offload.Flow{Packets: 7, Bytes: 70}})
	if got := trafficOf(r)[peer2]; got.Sent != 8 || got.Unanswered != 8 || got.LastReceived != (time.Time{}) {
		t.Errorf("after 7 packets in the kernel: %+v", got)
	}
	r.countKernel(c, offload.Counters{Up: offload.Flow{Packets: 1}, Down: offload.Flow{Packets: 2}})
	if got := trafficOf(r)[peer2]; got.Sent != 9 || got.Received != 2 || got.Unanswered != 0 {
		t.Errorf("after 2 answers in the kernel: %+v", got)
	}
}

// Packets of Send indications count before and after the peer gets a channel, and after the channel has ended.
func TestPacketsOfAPeerWithAndWithoutAChannel(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	r := relayOf(meter.New(), &routes, &batchClient{}, &fakeSocket{})
	sent := func(want uint64) {
		t.Helper()
		n := 0
		r.Peers(func(p session.PeerTraffic) {
			if n++; p.Peer != peer1 || p.Sent != want {
				t.Errorf("%+v, want %d packets", p, want)
			}
		})
		if n != 1 {
			t.Errorf("%d entries of one peer", n)
		}
	}
	r.Send([]byte("a"), peer1, false)
	r.Send([]byte("b"), peer1, false)
	sent(2)
	r.Bind(0x4000, peer1)()
	r.Send([]byte("c"), peer1, false)
	sent(3)
	r.byPeer(peer1, r.now()).until.Store(0)
	r.Bind(0x4001, peer1)()
	r.Send([]byte("d"), peer1, false)
	sent(4)
}

// If a client keeps sending to new peers, the relay keeps the counters of a few of them, and of all peers with a
// channel.
func TestCountedPeersAreBounded(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.0/8"))
	r := relayOf(meter.New(), &routes, &batchClient{}, &fakeSocket{}, peer1)
	peer := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 4000)
	}
	for n := range 1000 {
		r.Send([]byte("x"), peer(n), false)
	}
	if got := trafficOf(r); len(got) > maxUnbound+1 || got[peer1].Peer != peer1 {
		t.Errorf("%d peers, want %d with the one of the channel", len(got), maxUnbound+1)
	}
	// Counters are replaced at most once in unboundInterval. The counters of the peer with the longest inactivity are
	// replaced.
	now := r.now() + unboundInterval
	first := r.unbound.find(peer(0))
	first.addSent(1, now)
	if p := r.unbound.get(peer(2000), now); p == nil || r.unbound.find(peer(0)) != first || r.unbound.find(peer(1)) != nil {
		t.Errorf("%v replaces the counters of an active peer", p)
	}
	if p := r.unbound.get(peer(2001), now); p != nil {
		t.Error("counters are replaced twice at a time")
	}
	if n := len(*r.unbound.counts.Load()); n != maxUnbound {
		t.Errorf("%d counters, want %d", n, maxUnbound)
	}
}

// ICMP messages of the host of a peer are counted, whether the poller or a send removes them from the socket.
func TestICMPErrorsAreCounted(t *testing.T) {
	for _, indicate := range []bool{true, false} {
		countsICMPErrors(t, indicate)
	}
}

func countsICMPErrors(t *testing.T, indicate bool) {
	t.Helper()
	b := newFixtureOf(t, &sink{}, indicate)
	closed, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.LocalAddr().(*net.UDPAddr).AddrPort()
	_ = closed.Close()
	b.Bind(0x4000, dead)()
	deadline := time.Now().Add(30 * time.Second)
	for trafficOf(b.Relay)[dead].ICMPErrors == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("no ICMP error: %+v", trafficOf(b.Relay)[dead])
		}
		b.FromClient(frame(0x4000, []byte("x")))
	}

	s := &kernelSocket{receiver: b.Relay}
	raw, err := datagram.Listen(netip.AddrPortFrom(loopback, 0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Sender = raw
	defer func() { _ = raw.Close() }()
	if err := s.prepare(false); err != nil {
		t.Fatal(err)
	}
	s.Retry = s.removePending
	before := trafficOf(b.Relay)[dead].ICMPErrors
	for trafficOf(b.Relay)[dead].ICMPErrors == before {
		if time.Now().After(deadline) {
			t.Fatal("a send that removes an ICMP error does not count it")
		}
		s.Send([]datagram.Packet{{Payload: []byte("x"), To: dead}})
	}
}

// Counting packets by peer does not allocate.
func TestCountingDoesNotAllocate(t *testing.T) {
	var routes Routes
	routes.Store(allow("127.0.0.1"))
	r := relayOf(meter.New(), &routes, &sink{}, &quietSocket{}, peer1)
	now, f := time.Now(), frame(0x4000, []byte("x"))
	batch := []Datagram{NewDatagram([]byte("y"), peer1)}
	var o Outbox
	for what, do := range map[string]func(){
		"to a peer":            func() { o.Add(r, f, now); o.Flush(now) },
		"from a peer":          func() { r.ReceiveBatch(batch, now) },
		"of a lookup of peers": func() { r.Peers(func(session.PeerTraffic) {}) },
	} {
		do()
		if n := testing.AllocsPerRun(500, do); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// quietSocket is a Socket that sends nothing.
type quietSocket struct{ fakeSocket }

func (*quietSocket) Send([]datagram.Packet) {}
