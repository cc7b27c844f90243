package forward

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// network is a network of pods in memory. Its frames take latency.
type network struct {
	t       *testing.T
	mu      sync.Mutex
	nodes   map[netip.AddrPort]*node
	started int
	// sent are copies of all frames since the last call of frames.
	sent []sentFrame
	// lost contains the addresses to which all frames are lost.
	lost map[netip.AddrPort]bool
	// apart contains functions that report whether a frame is lost. dice selects the lost frames if a share of all
	// frames is lost.
	apart []func(from, to netip.AddrPort) bool
	dice  *rand.Rand
	share float64
	// rough is the random source of losses, duplicates and reordering; nil means that there are none.
	rough *rand.Rand
}

type sentFrame struct {
	from, to netip.AddrPort
	frame    []byte
}

const latency = 250 * time.Microsecond

// node is the socket of one pod, and the pod.
type node struct {
	*Forwarder
	name     string
	network  *network
	queue    chan arrival
	sessions *testSessions
	front    *Outbox
}

type arrival struct {
	sentFrame
	at time.Time
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, nodes: map[netip.AddrPort]*node{}, lost: map[netip.AddrPort]bool{}}
}

// start starts a process of a pod.
func (n *network) start(name string) *node {
	n.mu.Lock()
	n.started++
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n.started >> 8), byte(n.started)}), 40000)
	d := &node{name: name, network: n, queue: make(chan arrival, 100_000), sessions: newTestSessions()}
	n.nodes[address] = d
	n.mu.Unlock()
	d.Forwarder = newForwarder(Options{Sessions: d.sessions, Meter: meter.New()}, &pipe{d, address}, address)
	d.sessions.added, d.sessions.ended = d.Added, d.Ended
	d.front = d.Outbox()
	d.running.Go(d.read)
	n.t.Cleanup(func() { _ = d.Close() })
	return d
}

func (d *node) read() {
	for {
		select {
		case <-d.closed:
			return
		case a := <-d.queue:
			if wait := time.Until(a.at); wait > 0 {
				time.Sleep(wait)
			}
			now := time.Now()
			d.Forwarder.receive(a.from, a.frame, now)
			d.Forwarder.flush(now)
		}
	}
}

// pipe is the wire of a node.
type pipe struct {
	node *node
	from netip.AddrPort
}

func (p *pipe) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = nil
		p.node.network.send(p.from, packets[i].To, packets[i].Payload)
	}
}

func (p *pipe) connect() (sender, bool) { return p, true }

func (p *pipe) Close() error { return nil }

func (n *network) send(from, to netip.AddrPort, frame []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := sentFrame{from, to, slices.Clone(frame)}
	n.sent = append(n.sent, f)
	d := n.nodes[to]
	lost := slices.ContainsFunc(n.apart, func(apart func(from, to netip.AddrPort) bool) bool { return apart(from, to) })
	if d == nil || lost || n.lost[to] || n.dice != nil && n.dice.Float64() < n.share {
		return
	}
	f.frame = slices.Clone(frame)
	if n.rough == nil {
		d.queue <- arrival{f, time.Now().Add(latency)}
		return
	}
	for range n.rough.IntN(3) { // a third is lost, and a third arrives twice
		again := f
		again.frame = slices.Clone(frame)
		time.AfterFunc(time.Duration(n.rough.IntN(80))*time.Millisecond, func() { d.queue <- arrival{again, time.Now()} })
	}
}

// roughen makes the network lose, duplicate and reorder frames, until it is called with nil.
func (n *network) roughen(random *rand.Rand) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rough = random
}

// frames returns the frames that were sent since the last call.
func (n *network) frames() []sentFrame {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.sent = nil }()
	return n.sent
}

// cut drops all frames from and to a pod until heal.
func (n *network) cut(d *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := d.self.Address
	n.apart = append(n.apart, func(from, to netip.AddrPort) bool { return from == self || to == self })
}

// split drops the frames between two groups of pods until heal.
func (n *network) split(one, two []*node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	side := map[netip.AddrPort]int{}
	for i, group := range [][]*node{one, two} {
		for _, d := range group {
			side[d.self.Address] = i
		}
	}
	n.apart = append(n.apart, func(from, to netip.AddrPort) bool { return side[from] != side[to] })
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apart = nil
}

// loss makes the network lose a share of all frames.
func (n *network) loss(dice *rand.Rand, share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dice, n.share = dice, share
}

// regain reverts lose for one node.
func (n *network) regain(d *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.lost, d.self.Address)
}

func (n *network) lose(d *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost[d.self.Address] = true
}

var today, yesterday = Key{ID: 2, Secret: [32]byte{2}}, Key{ID: 1, Secret: [32]byte{1}}

// list returns the list of pods of nodes.
func list(nodes ...*node) Peers {
	p := Peers{Keys: []Key{today, yesterday}}
	for _, d := range nodes {
		self := d.Self()
		self.Pod = d.name
		p.Pods = append(p.Pods, self)
	}
	return p
}

// cluster starts pods that have a list of all of them.
func (n *network) cluster(number int) (nodes []*node) {
	for i := range number {
		nodes = append(nodes, n.start(fmt.Sprintf("pod-%d", i)))
	}
	publish(list(nodes...), nodes...)
	return nodes
}

func publish(p Peers, nodes ...*node) {
	for _, d := range nodes {
		d.SetPeers(p)
	}
	settle()
}

// settle waits until all frames and announcements have arrived.
func settle() {
	time.Sleep(10 * latency)
	synctest.Wait()
}

// testSessions records the delivered datagrams. It answers each datagram of a client with "re: " and the datagram.
type testSessions struct {
	mu        sync.Mutex
	has       map[Client]bool
	silent    bool
	noPorts   bool
	delivered []string
	answered  []string
	unowned   []string
	sources   []*datagram.Source
	paths     []ReturnPath
	// taken are the records that were offered. If full is set, offers are refused. former is the pod of the latest
	// offer.
	taken  []string
	full   bool
	former ReturnPath
	clock  time.Time
	// here is the address to which the client of the latest offer sends, if it sends to this pod.
	here *datagram.Source
	// Take blocks until wait is closed.
	wait chan struct{}
	// versions are the versions of copied sessions. takenOver are the records of the sessions that were taken over.
	versions  map[Client]Version
	takenOver map[Client]string
	// If refuse is set, no session of a lost pod is taken over.
	refuse bool
	// added and ended are methods of the Forwarder.
	added, ended func(Client)
	// users has the number of sessions of each user to which a limit applies.
	users map[User]int64
	// places has the same numbers, including the sessions that are not admitted yet.
	places map[User]int64
	// tunnelled are the datagrams from and to peers.
	tunnelled []string
}

func newTestSessions() *testSessions {
	return &testSessions{
		has: map[Client]bool{}, versions: map[Client]Version{}, takenOver: map[Client]string{},
	}
}

func (s *testSessions) Serves(uint16) bool { return !s.noPorts }

func (s *testSessions) Has(c Client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[c]
}

func (s *testSessions) All(yield func(Client) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.has {
		if !yield(c) {
			return
		}
	}
}

func (s *testSessions) Deliver(c Client, frame []byte, front ReturnPath, _ time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has[c] {
		return false
	}
	s.delivered = append(s.delivered, string(frame))
	s.paths = append(s.paths, front)
	if !s.silent && front != (ReturnPath{}) {
		_ = front.Send([]byte("re: " + string(frame)))
	}
	return true
}

func (s *testSessions) Begin(c Client, request []byte, front ReturnPath) bool {
	s.mu.Lock()
	s.delivered = append(s.delivered, string(request))
	s.mu.Unlock()
	_ = front.Send([]byte("begun: " + string(request)))
	return !s.noPorts
}

func (s *testSessions) Answer(_ Client, frame []byte, asked *datagram.Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noPorts {
		return false
	}
	s.answered = append(s.answered, string(frame))
	s.sources = append(s.sources, asked)
	return true
}

func (s *testSessions) Unowned(_ Client, message []byte, asked *datagram.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unowned = append(s.unowned, string(message))
	s.sources = append(s.sources, asked)
}

func (s *testSessions) Flush(time.Time) {}

func (s *testSessions) Sweep(time.Time) {}

func (s *testSessions) Take(c Client, record []byte, clock time.Time, from ReturnPath, here *datagram.Source) bool {
	if s.wait != nil {
		<-s.wait
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, string(record))
	if s.full {
		return false
	}
	s.has[c] = true
	s.former, s.clock, s.here = from, clock, here
	return true
}

func (s *testSessions) Version(c Client) (Version, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.versions[c]
	return v, ok && s.has[c]
}

func (s *testSessions) Copy(c Client) ([]byte, bool) {
	v, ok := s.Version(c)
	return []byte(fmt.Sprintf("record %d of %v", v.Generation, c.Addr)), ok
}

func (s *testSessions) TakeOver(c Client, v Version, record []byte, _ time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		return false
	}
	s.has[c], s.versions[c], s.takenOver[c] = true, v, string(record)
	go s.added(c)
	return true
}

func (s *testSessions) GiveUp(c Client, v Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.versions[c] == v {
		delete(s.has, c)
		delete(s.versions, c)
		go s.ended(c)
	}
}

func (s *testSessions) FromPeer(_ Client, from ReturnPath, peer netip.AddrPort, datagram []byte, _ time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tunnelled = append(s.tunnelled, fmt.Sprintf("from %v: %s", peer, datagram))
	return from == s.former
}

func (s *testSessions) ToPeer(_ Client, to ReturnPath, peer netip.AddrPort, datagram []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tunnelled = append(s.tunnelled, fmt.Sprintf("to %v: %s", peer, datagram))
}

func (s *testSessions) Part(Client, ReturnPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tunnelled = append(s.tunnelled, "part")
}

func (s *testSessions) Users(yield func(User, int64) bool) {
	s.mu.Lock()
	users := maps.Clone(s.places)
	s.mu.Unlock()
	for u, n := range users {
		if !yield(u, n) {
			return
		}
	}
}

// got returns the datagrams that were delivered and answered since the last call.
func (s *testSessions) got() (delivered, answered []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delivered, answered = s.delivered, s.answered
	s.delivered, s.answered = nil, nil
	return delivered, answered
}

// create creates a session of a client.
func (d *node) create(c Client) {
	d.sessions.mu.Lock()
	d.sessions.has[c] = true
	d.sessions.mu.Unlock()
	d.Added(c)
}

// end ends a session.
func (d *node) end(c Client) {
	d.sessions.mu.Lock()
	delete(d.sessions.has, c)
	d.sessions.mu.Unlock()
	d.Ended(c)
}

// pass passes a datagram of a client that arrives at the pod.
func (d *node) pass(c Client, payload string) bool {
	ok := d.front.Pass(c, []byte(payload), datagram.Source{}, time.Now())
	d.front.Flush()
	return ok
}

// client returns the nth client. Every client has an address of its own.
func client(n int) Client {
	addr := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	if n%2 == 1 {
		addr = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, byte(n >> 8), byte(n), 15: 1})
	}
	return Client{Addr: netip.AddrPortFrom(addr, 5000), Port: 3478}
}

// homesOf returns the homes of a client among nodes, the first home first.
func homesOf(c Client, nodes []*node) (homes [2]*node) {
	k, _ := keyOf(c)
	for i, h := range rank(nodes[0].view.Load().homes, k) {
		for _, d := range nodes {
			if h.pod != nil && podID(d.name) == h.pod.id {
				homes[i] = d
			}
		}
	}
	return homes
}

// other returns a node that is not among the given nodes.
func other(nodes []*node, not ...*node) *node {
	for _, d := range nodes {
		if !slices.Contains(not, d) {
			return d
		}
	}
	return nil
}

// expect fails unless the pod has delivered and answered exactly these datagrams.
func (d *node) expect(delivered, answered []string) {
	t := d.network.t
	t.Helper()
	gotDelivered, gotAnswered := d.sessions.got()
	if !slices.Equal(gotDelivered, delivered) || !slices.Equal(gotAnswered, answered) {
		t.Errorf("%s has delivered %q and answered %q, want %q and %q",
			d.name, gotDelivered, gotAnswered, delivered, answered)
	}
}

// refused fails unless the pod has refused these numbers of frames, by reason.
func (d *node) refused(want map[string]uint64) {
	t := d.network.t
	t.Helper()
	if got := d.Status().Refused; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s has refused %v, want %v", d.name, got, want)
	}
}

func parse(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// sourceOf returns the source of an answer to a datagram that was sent to an address.
func sourceOf(t *testing.T, address [4]byte) datagram.Source {
	t.Helper()
	message := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&message[0]))
	h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	copy(message[unix.CmsgLen(8):], address[:])
	s := datagram.SourceOf(message)
	if s.Addr() != netip.AddrFrom4(address) {
		t.Fatalf("the source is %v", s.Addr())
	}
	return s
}
