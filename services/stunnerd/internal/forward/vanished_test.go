package forward

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// passAll makes a pod pass datagrams of clients to other pods, and send answers through them. It waits for the answers
// to the first client, whose owner lives. It returns an error if an answer does not arrive.
func passAll(front, owner *Forwarder, answers chan string, clients []Client) error {
	out, payload := front.Outbox(), make([]byte, 1200)
	owners := map[Client]*pod{} // the front forgets a pod that does not answer
	for _, c := range clients[1:] {
		k, _ := keyOf(c)
		owners[c] = front.front.find(k).owner.Load()
	}
	for batch := range 40 {
		for _, c := range clients[1:] {
			by := owners[c]
			for range 4 {
				out.Pass(c, payload, datagram.Source{}, time.Now())
				path := ReturnPath{forwarder: owner, pod: owner.view.Load().pods[by.id], client: c}
				_ = path.Send(payload) // the pod has vanished
			}
		}
		out.Pass(clients[0], []byte("x"), datagram.Source{}, time.Now())
		out.Flush()
		select {
		case <-answers:
		case <-time.After(30 * time.Second):
			return fmt.Errorf("batch %d: the answer does not arrive; %+v", batch, front.Status())
		}
	}
	return nil
}

// Clients of a reachable pod lose neither datagrams to the owner nor answers when other pods vanish. The kernel keeps
// the frames to a vanished pod in the send buffer of their socket for three seconds.
func TestVanishedPodsAffectNoClients(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	testnet.IP(t, "link add near type veth peer name far")
	testnet.IP(t, "link set far up")
	testnet.IP(t, "link set near up")
	testnet.IP(t, "address add 192.0.2.1/24 dev near")
	testnet.IP(t, "address add 2001:db8::1/64 dev near nodad")
	for local, others := range map[string]string{"192.0.2.1": "192.0.2.%d", "2001:db8::1": "2001:db8::%d"} {
		// Frames to this many pods fill a send buffer of the size that the socket requests, if the kernel grants that
		// size.
		const vanished = 60
		var f [2]*Forwarder
		p, answers := Peers{Keys: []Key{today}}, make(chan string, 1000)
		for i := range f {
			s := &echoes{testSessions: testSessions{has: map[Client]bool{client(0): i == 0}}, answers: answers}
			var err error
			f[i], err = Open(Options{
				Local: netip.MustParseAddr(local), Sessions: s, Meter: meter.New(), Descriptors: 1000,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f[i].Close() })
			peer := f[i].Self()
			peer.Pod = fmt.Sprint("pod-", i)
			p.Pods = append(p.Pods, peer)
		}
		clients := []Client{client(0)}
		for i := range vanished {
			address := netip.MustParseAddr(fmt.Sprintf(others, 10+i))
			p.Pods = append(p.Pods, Peer{
				Pod: fmt.Sprint("gone-", i), Address: netip.AddrPortFrom(address, 4000), Sender: [8]byte{byte(i), 1},
			})
			clients = append(clients, client(i+1))
		}
		front := f[1]
		for _, pod := range f {
			pod.SetPeers(p)
		}
		for i, c := range clients {
			k, _ := keyOf(c)
			name := "pod-0"
			if i > 0 {
				name = fmt.Sprint("gone-", i-1)
			}
			front.front.learn(k, front.view.Load().links[podID(name)].pod, new(datagram.Source), front.now())
		}
		if err := passAll(front, f[0], answers, clients[:1]); err != nil {
			t.Errorf("%s, control: %v", local, err)
		}
		if err := passAll(front, f[0], answers, clients); err != nil {
			t.Errorf("%s, with vanished pods: %v", local, err)
		}
	}
}

// sockets is a wire that records its senders.
type sockets struct {
	// left is how many more pods get a sender of their own.
	left   int
	opened []*recorded
	closed bool
}

type recorded struct {
	shared, closed bool
}

func (w *sockets) connect() (sender, bool) {
	r := &recorded{shared: w.closed || len(w.opened) >= w.left}
	if !r.shared {
		w.opened = append(w.opened, r)
	}
	return r, r.shared
}

func (w *sockets) Close() error {
	w.closed = true
	return nil
}

func (*recorded) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = nil
	}
}

func (r *recorded) Close() error {
	if r.shared {
		panic("other pods use the sender")
	}
	r.closed = true
	return nil
}

// open returns the senders that are open.
func (w *sockets) open() (open []int) {
	for i, r := range w.opened {
		if !r.closed {
			open = append(open, i)
		}
	}
	return open
}

// A sender of a pod is opened by the first list that contains the pod, and closed by the first list without the pod or
// with another address of it.
func TestSendersOfPods(t *testing.T) {
	w := &sockets{left: 4}
	d := newForwarder(Options{Sessions: &testSessions{}, Meter: meter.New()}, w, parse("192.0.2.8:9"))
	peer := func(name, address string) Peer {
		return Peer{Pod: name, Address: parse(address), Sender: [8]byte([]byte(fmt.Sprintf("%-8s", name)))}
	}
	self := Peer{Pod: "self", Sender: d.self.Sender}
	a, b, moved := peer("a", "192.0.2.1:1"), peer("b", "192.0.2.2:1"), peer("a", "192.0.2.3:1")
	restarted := b
	restarted.Sender[0]++
	for i, step := range []struct {
		pods   []Peer
		open   []int
		shared map[string]bool
	}{
		{[]Peer{self, a, b}, []int{0, 1}, nil},
		{[]Peer{self, a, b}, []int{0, 1}, nil},
		{[]Peer{self, a, restarted}, []int{0, 1}, nil},
		{[]Peer{self, moved, restarted}, []int{1, 2}, nil},
		{[]Peer{self, restarted}, []int{1}, nil},
		{[]Peer{self, a, restarted}, []int{1, 3}, nil},
		{[]Peer{self, moved, restarted}, []int{1}, map[string]bool{"a": true}},
		{nil, nil, nil},
	} {
		d.SetPeers(Peers{Keys: []Key{today}, Pods: step.pods})
		d.settle()
		if open := w.open(); !slices.Equal(open, step.open) {
			t.Errorf("step %d: senders %v are open, want %v", i, open, step.open)
		}
		for _, l := range d.view.Load().links {
			if l.shared != step.shared[l.peer.Pod] || l.sender.(*recorded).closed {
				t.Errorf("step %d: %s has the sender %+v", i, l.peer.Pod, l.sender)
			}
		}
	}
	w.left = 5
	d.SetPeers(Peers{Keys: []Key{today}, Pods: []Peer{self, a}})
	if open := w.open(); !slices.Equal(open, []int{4}) {
		t.Errorf("senders %v are open before Close", open)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.SetPeers(Peers{Keys: []Key{today}, Pods: []Peer{self, b}})
	if open := w.open(); open != nil {
		t.Errorf("senders %v are open after Close", open)
	}
}

// A socket receives all frames although the senders of pods share its port. If no descriptors are left, the socket also
// sends.
func TestSocketSendsToScarcePodsItself(t *testing.T) {
	s, err := listen(netip.MustParseAddr("127.0.0.1"), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer s.receiver.Close()
	defer s.Close()
	if !s.steered {
		t.Fatal("the socket is not steered")
	}
	for most, want := range map[int]bool{0: true, 1000: false} {
		s.most = most
		own, shared := s.connect()
		if shared != want || shared != (own == sender(s.sender)) {
			t.Errorf("descriptors up to %d: shared %t", most, shared)
		}
		if !shared {
			defer own.Close()
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.most = 1000
	if _, shared := s.connect(); !shared {
		t.Error("a closed socket opens others")
	}
}
