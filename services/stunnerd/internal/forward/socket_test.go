package forward

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echoes are sessions that answer every datagram at the end of the batch.
type echoes struct {
	testSessions
	packets []datagram.Packet
	front   ReturnPath
	answers chan string
	// bad is the client whose datagrams cause a panic.
	bad Client
}

func (e *echoes) Deliver(c Client, frame []byte, front ReturnPath, _ time.Time) bool {
	if !e.Has(c) {
		return false
	}
	if c == e.bad {
		panic("a bad session")
	}
	e.front = front
	e.packets = append(e.packets, datagram.Packet{Payload: frame})
	return true
}

func (e *echoes) Answer(_ Client, frame []byte, _ *datagram.Source) bool {
	e.answers <- string(frame)
	return true
}

func (e *echoes) Flush(time.Time) {
	e.front.SendAll(e.packets)
	e.packets = e.packets[:0]
}

// pods opens two Forwarders on the loopback interface, each with a list of both.
func pods(t testing.TB, bad Client) (f [2]*Forwarder, s [2]*echoes) {
	t.Helper()
	return podsAt(t, netip.MustParseAddr("127.0.0.1"), bad)
}

func podsAt(t testing.TB, local netip.Addr, bad Client) (f [2]*Forwarder, s [2]*echoes) {
	t.Helper()
	p := Peers{Keys: []Key{today}}
	for i := range f {
		s[i] = &echoes{testSessions: testSessions{has: map[Client]bool{}}, answers: make(chan string, 1000), bad: bad}
		var err error
		f[i], err = Open(Options{Local: local, Sessions: s[i], Meter: meter.New()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f[i].Close() })
		peer := f[i].Self()
		peer.Pod = fmt.Sprint("pod-", i)
		p.Pods = append(p.Pods, peer)
	}
	for i := range f {
		f[i].SetPeers(p)
	}
	return f, s
}

func TestSocket(t *testing.T) {
	f, s := pods(t, Client{})
	front := f[1].Outbox()
	var want []string
	const clients, each = 10, 20 // more than one batch
	for i := range clients {
		s[0].mu.Lock()
		s[0].has[client(i)] = true
		s[0].mu.Unlock()
		f[0].Added(client(i))
	}
	for f[1].Status().Held < clients {
		time.Sleep(time.Millisecond)
	}
	for i := range clients {
		for k := range each {
			payload := fmt.Sprintf("%d.%d %s", i, k, make([]byte, 50*k))
			want = append(want, payload)
			if !front.Pass(client(i), []byte(payload), datagram.Source{}, time.Now()) {
				t.Fatalf("datagram %s is dropped", payload)
			}
		}
	}
	large := string(make([]byte, maxFrame-Overhead6))
	front.Pass(client(0), []byte(large), datagram.Source{}, time.Now())
	want = append(want, large)
	front.Flush()
	var got []string
	for range want {
		got = append(got, <-s[1].answers)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Error("the answers are not the datagrams")
	}
	// The sender of this socket is not in the list.
	conn, err := net.Dial("udp", f[0].Self().Address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, size := range []int{0, 1, Overhead4 - 1, 1000, maxFrame} {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	for f[0].Status().Refused["bad_frame"] < 5 {
		time.Sleep(time.Millisecond)
	}
	a, b := f[0].Status(), f[1].Status()
	if n := uint64(len(want)); a.Delivered != n || a.Replied != n || b.Passed != n || b.Answered != n || b.Asked != 0 {
		t.Errorf("%d datagrams are counted as %+v and %+v", n, a, b)
	}
}

// No frame is sent to a pod whose first address has the other family, because a socket has one family. The others
// forward to each other, and the status names the problem.
func TestPodOfTheOtherFamily(t *testing.T) {
	for family, local := range map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"} {
		t.Run(family, func(t *testing.T) {
			f, s := podsAt(t, netip.MustParseAddr(local), Client{})
			stranger := Peer{Pod: "pod-2", Address: parse("[::1]:40000"), Sender: [8]byte{2}}
			if local == "::1" {
				stranger.Address = parse("127.0.0.1:40000")
			}
			list := f[0].view.Load().peers
			list.Pods = append(slices.Clone(list.Pods), stranger)
			const clients = 20 // the third pod would be a home of most of them
			for i := range f {
				f[i].SetPeers(list)
				if st := f[i].Status(); st.Peers != 1 || st.Problem == "" {
					t.Fatalf("%d peers, problem %q", st.Peers, st.Problem)
				}
			}
			front := f[1].Outbox()
			for i := range clients {
				s[0].mu.Lock()
				s[0].has[client(i)] = true
				s[0].mu.Unlock()
				f[0].Added(client(i))
			}
			for f[1].Status().Held < clients {
				time.Sleep(time.Millisecond)
			}
			for i := range clients {
				front.Pass(client(i), []byte("x"), datagram.Source{}, time.Now())
			}
			front.Flush()
			for range clients {
				<-s[1].answers
			}
		})
	}
}

// broken is a sender that panics.
type broken struct{}

func (broken) SendAll([]datagram.Packet) { panic("a sender") }
func (broken) Close() error              { return nil }

// A panic of a Flush is not repeated by the next one.
func TestOutboxIsEmptyAfterAPanic(t *testing.T) {
	f, _ := pods(t, Client{})
	o := f[0].Outbox()
	l := *f[0].view.Load().links[podID("pod-1")]
	l.sender = broken{}
	o.add(&l, ping, nobody, nil)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		o.Flush()
	}()
	o.Flush()
}

func TestOpenRefusesAddresses(t *testing.T) {
	for _, local := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.MustParseAddr("192.0.2.1")} {
		if f, err := Open(Options{Local: local, Meter: meter.New()}); err == nil {
			_ = f.Close()
			t.Errorf("a socket on %v is open", local)
		}
	}
}

// A panic in the session of one client ends the handling of one frame only.
func TestAPanicEndsOneFrame(t *testing.T) {
	bad := client(1)
	f, s := pods(t, bad)
	s[0].mu.Lock()
	s[0].has[client(2)] = true
	s[0].has[bad] = true
	s[0].mu.Unlock()
	f[0].Added(bad)
	f[0].Added(client(2))
	for f[1].Status().Held < 2 {
		time.Sleep(time.Millisecond)
	}
	front := f[1].Outbox()
	for _, c := range []Client{bad, client(2), bad, client(2)} {
		front.Pass(c, []byte("x"), datagram.Source{}, time.Now())
	}
	front.Flush()
	for range 2 {
		<-s[1].answers
	}
	if f[0].Tasks()[0].Stuck(time.Now()) {
		t.Error("the reader is stuck")
	}
}

// discard is a wire that discards all frames.
type discard struct{}

func (discard) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = nil
	}
}
func (d discard) connect() (sender, bool) { return d, true }
func (discard) Close() error              { return nil }

// still are sessions that have every client and do nothing with datagrams.
type still struct{ testSessions }

func (*still) Deliver(Client, []byte, ReturnPath, time.Time) bool { return true }
func (*still) Answer(Client, []byte, *datagram.Source) bool       { return true }

// pairOf returns a front and an owner without a network. The front knows the owner of client(1).
func pairOf(b testing.TB) (front, owner *Forwarder) {
	var list Peers
	list.Keys = []Key{today, yesterday}
	for i := range 2 {
		f := newForwarder(Options{Sessions: &still{}, Meter: meter.New()}, discard{},
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 4000))
		b.Cleanup(func() { _ = f.Close() })
		peer := f.Self()
		peer.Pod = fmt.Sprint("pod-", i)
		list.Pods = append(list.Pods, peer)
		front, owner = owner, f
	}
	front.SetPeers(list)
	owner.SetPeers(list)
	k, _ := keyOf(client(1))
	var source datagram.Source
	front.front.learn(k, front.view.Load().links[podID("pod-1")].pod, &source, 0)
	return front, owner
}

// received returns frames of one kind from one pod to another, with increasing counters.
func received(from, to *Forwarder, number int, k kind, size int) (frames [][]byte) {
	l := from.view.Load().senders[to.self.Sender]
	for range number {
		frames = append(frames, l.sealer.seal(nil, from.self.Sender, from.counter.Add(1), k, client(1), make([]byte, size)))
	}
	return frames
}

// Forwarding a datagram of a known client does not allocate.
func TestNoAllocations(t *testing.T) {
	front, owner := pairOf(t)
	o, now := front.Outbox(), time.Now()
	payload := make([]byte, 1200)
	to := owner.view.Load().senders[front.self.Sender].pod
	path := ReturnPath{forwarder: owner, pod: to, client: client(1)}
	packets := make([]datagram.Packet, 64)
	for i := range packets {
		packets[i].Payload = payload
	}
	const runs = 200
	toOwner, toFront := received(front, owner, runs+1, data, 1200), received(owner, front, runs+1, reply, 1200)
	next := 0
	for name, run := range map[string]func(){
		"Pass":            func() { o.Pass(client(1), payload, datagram.Source{}, now) },
		"Send":            func() { _ = path.Send(payload) },
		"SendAll":         func() { path.SendAll(packets) },
		"receive data":    func() { owner.receive(front.self.Address, toOwner[next], now); next++ },
		"receive reply":   func() { front.receive(owner.self.Address, toFront[next], now); next++ },
		"refuse a replay": func() { owner.receive(front.self.Address, toOwner[0], now) },
	} {
		next = 0
		if got := testing.AllocsPerRun(runs, run); got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
	if front.counters.passed.Load() != runs+1 || owner.counters.delivered.Load() != runs+1 ||
		front.counters.answered.Load() != runs+1 {
		t.Errorf("the datagrams were dropped: %+v and %+v", front.Status(), owner.Status())
	}
}

var sizes = []int{200, 1200}

func BenchmarkPass(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			front, _ := pairOf(b)
			o, payload, now := front.Outbox(), make([]byte, size), time.Now()
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				o.Pass(client(1), payload, datagram.Source{}, now)
			}
		})
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			front, owner := pairOf(b)
			frames := received(front, owner, 1000, data, size)
			work, now := make([]byte, 2000), time.Now()
			opener := owner.view.Load().senders[front.self.Sender].openers[1].opener
			i := 0
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if i%len(frames) == 0 {
					opener.window = window{}
				}
				frame := work[:copy(work, frames[i%len(frames)])]
				owner.receive(front.self.Address, frame, now)
				i++
			}
			if got := owner.counters.delivered.Load(); got != uint64(i) {
				b.Errorf("%d of %d frames are delivered", got, i)
			}
		})
	}
}

func BenchmarkReply(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			front, owner := pairOf(b)
			to := owner.view.Load().senders[front.self.Sender].pod
			path := ReturnPath{forwarder: owner, pod: to, client: client(1)}
			packets := make([]datagram.Packet, 64)
			for i := range packets {
				packets[i].Payload = make([]byte, size)
			}
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				if i%len(packets) == 0 {
					path.SendAll(packets)
				}
			}
		})
	}
}

// BenchmarkForgedSource is the cost of a datagram of a client without an owner when the limit of asks is reached.
func BenchmarkForgedSource(b *testing.B) {
	front, _ := pairOf(b)
	o, payload, now := front.Outbox(), make([]byte, 200), time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		addr := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		o.Pass(Client{Addr: netip.AddrPortFrom(addr, 5000), Port: 3478}, payload, datagram.Source{}, now)
	}
}
