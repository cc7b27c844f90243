package forward

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// offered returns the records that were offered to a node since the last call.
func (d *node) offered() []string {
	d.sessions.mu.Lock()
	defer d.sessions.mu.Unlock()
	list := d.sessions.taken
	d.sessions.taken = nil
	return list
}

// tunnelled returns the datagrams from and to peers since the last call.
func (d *node) tunnelled() []string {
	d.sessions.mu.Lock()
	defer d.sessions.mu.Unlock()
	list := d.sessions.tunnelled
	d.sessions.tunnelled = nil
	return list
}

// byHash returns the nodes in the order of their rendezvous hashes for a client, the highest first. The node in without
// is left out.
func byHash(c Client, nodes []*node, without *node) []*node {
	k, _ := keyOf(c)
	others := slices.DeleteFunc(slices.Clone(nodes), func(d *node) bool { return d == without })
	slices.SortFunc(others, func(a, b *node) int {
		if mix(k.hash()^podID(a.name)) > mix(k.hash()^podID(b.name)) {
			return -1
		}
		return 1
	})
	return others
}

// a session moves to the pod with the highest rendezvous hash that has room. The former owner then is the front
// of the client, and forwards datagrams of peers in both directions.
func TestHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner, c := nodes[0], client(7)
		order := byHash(c, nodes, owner)
		full, successor := order[0], order[1]
		full.sessions.full = true
		owner.create(c)
		settle()
		begun := time.Now()
		path, err := owner.HandOver(c, []byte("record"), datagram.Source{})
		if err != nil || path.Pod() != successor.name {
			t.Fatalf("handed over to %q: %v", path.Pod(), err)
		}
		if full, taken := full.offered(), successor.offered(); len(full) != 1 || !slices.Equal(taken, []string{"record"}) {
			t.Errorf("offered: %q, %q", full, taken)
		}
		if successor.sessions.clock.Before(begun.Add(-time.Millisecond)) {
			t.Errorf("the clock of the owner is %v, want %v", successor.sessions.clock, begun)
		}
		owner.end(c)
		path.Confirm()
		settle()
		if got := successor.tunnelled(); !slices.Equal(got, []string{"from invalid AddrPort: "}) {
			t.Errorf("confirmed: %q", got)
		}
		owner.pass(c, "up")
		settle()
		successor.expect([]string{"up"}, nil)
		owner.expect(nil, []string{"re: up"})
		for _, peer := range []string{"192.0.2.9:5000", "[2001:db8::9]:5000"} {
			at := netip.MustParseAddrPort(peer)
			path.FromPeer(at, []byte("down"))
			back := successor.sessions.former
			if err := back.ToPeer(at, []byte("up")); err != nil {
				t.Error(err)
			}
			settle()
			if got := successor.tunnelled(); !slices.Equal(got, []string{"from " + peer + ": down"}) {
				t.Errorf("at the successor: %q", got)
			}
			if got := owner.tunnelled(); !slices.Equal(got, []string{"to " + peer + ": up"}) {
				t.Errorf("at the former owner: %q", got)
			}
		}
		successor.sessions.former = ReturnPath{} // the session does not need the former relayed address
		path.Confirm()
		settle()
		if got := owner.tunnelled(); !slices.Equal(got, []string{"part"}) {
			t.Errorf("at the end: %q", got)
		}
	})
}

// the former owner sends the successor to another front, and no datagram is lost.
func TestOtherFrontFollowsTheHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		owner, c := nodes[0], client(3)
		successor := byHash(c, nodes, owner)[0]
		homes := homesOf(c, nodes)
		front := other(nodes, owner, successor, homes[0], homes[1])
		owner.create(c)
		settle()
		front.pass(c, "before")
		settle()
		if _, err := owner.HandOver(c, []byte("record"), datagram.Source{}); err != nil {
			t.Fatal(err)
		}
		owner.end(c)
		settle()
		owner.sessions.got()
		front.expect(nil, []string{"re: before"})
		for range 3 {
			front.pass(c, "after")
			settle()
		}
		successor.expect([]string{"after", "after", "after"}, nil)
		front.expect(nil, []string{"re: after", "re: after", "re: after"})
	})
}

// if the other pods do not answer, drain or are full, the session stays, and the attempt takes a bounded time.
func TestSessionStaysWithoutASuccessor(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		owner := nodes[0]
		n.lose(nodes[1])
		nodes[2].sessions.full = true
		for i := range 5 {
			begun := time.Now()
			_, err := owner.HandOver(client(i), []byte("record"), datagram.Source{})
			if !errors.Is(err, ErrNoSuccessor) {
				t.Errorf("client %d: %v", i, err)
			}
			if took := time.Since(begun); took > offerTimes*offerTimeout+time.Second/10 || i > 0 && took > time.Second/10 {
				t.Errorf("client %d: the search took %v", i, took)
			}
		}
		if owner.front.find(keyFor(t, client(0))) != nil {
			t.Error("a pod that has not taken the session counts as its owner")
		}
		draining := list(nodes...)
		for i := range draining.Pods[1:] {
			draining.Pods[i+1].Draining = true
		}
		publish(draining, nodes...)
		if owner.HasSuccessors() {
			t.Error("a draining pod counts as a successor")
		}
		if _, err := owner.HandOver(client(9), make([]byte, MaxRecord+1), datagram.Source{}); !errors.Is(err, ErrRecord) {
			t.Errorf("a record that is too long: %v", err)
		}
	})
}

func keyFor(t *testing.T, c Client) clientKey {
	t.Helper()
	k, ok := keyOf(c)
	if !ok {
		t.Fatal("the client has no key")
	}
	return k
}

// frames of a pod of another Gateway, repeated frames, unexpected answers and malformed frames change nothing. A
// flood of offers stores at most maxTaking records.
func TestForeignHandoversAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		a, b, c := nodes[0], nodes[1], client(1)
		foreign := n.start("foreign")
		p := list(nodes...)
		p.Keys = []Key{{ID: today.ID, Secret: [32]byte{99}}}
		self := foreign.Self()
		self.Pod = foreign.name
		p.Pods = append(p.Pods, self)
		publish(p, foreign)
		if _, err := foreign.HandOver(c, []byte("record"), datagram.Source{}); err == nil {
			t.Error("a pod of another Gateway hands over a session")
		}
		if len(a.offered())+len(b.offered()) > 0 {
			t.Error("a pod of another Gateway offers a session")
		}
		n.frames()
		path := ReturnPath{forwarder: a.Forwarder, pod: a.view.Load().links[podID(b.name)].pod, client: c}
		_ = path.send(taken, []byte{1})
		_ = path.send(taken, nil)
		_ = path.send(take, []byte("short"))
		_ = path.send(toPeer, []byte{7, 1, 2, 3})
		_ = path.send(toPeer, nil)
		_ = path.send(fromPeer, []byte{record4, 1, 2})
		settle()
		if got := b.tunnelled(); len(got) > 0 || len(b.offered()) > 0 {
			t.Errorf("malformed frames: %q", got)
		}
		b.refused(map[string]uint64{
			meter.Unasked.String(): 1, meter.BadFrame.String(): 5,
			meter.Stranger.String(): b.Status().Refused[meter.Stranger.String()],
		})
		path.FromPeer(netip.MustParseAddrPort("192.0.2.9:1"), []byte("x"))
		settle()
		sent := n.frames()
		last := sent[slices.IndexFunc(sent, func(f sentFrame) bool { return f.to == b.self.Address && len(f.frame) > 60 })]
		b.tunnelled()
		n.send(last.from, last.to, last.frame)
		settle()
		if got := b.tunnelled(); len(got) > 0 {
			t.Errorf("a repeated frame: %q", got)
		}
		b.sessions.wait = make(chan struct{})
		for i := range 10 * maxTaking {
			_ = (&ReturnPath{forwarder: a.Forwarder, pod: path.pod, client: client(i)}).send(take, make([]byte, 100))
		}
		settle()
		if n := len(b.handovers.queue); n > maxTaking {
			t.Errorf("%d offers wait", n)
		}
		close(b.sessions.wait)
		settle()
		if n := len(b.offered()); n > maxTaking+2 {
			t.Errorf("%d offers were handled", n)
		}
	})
}
