package forward

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// frontOf makes a client of an owner send to another pod, and returns the return path through that pod.
func frontOf(t *testing.T, owner, front *node, c Client) ReturnPath {
	t.Helper()
	front.pass(c, "first")
	settle()
	owner.sessions.mu.Lock()
	defer owner.sessions.mu.Unlock()
	if n := len(owner.sessions.paths); n == 0 || owner.sessions.paths[n-1].Pod() != front.name {
		t.Fatal("the owner does not know the front")
	}
	return owner.sessions.paths[len(owner.sessions.paths)-1]
}

// Adopt moves a session to the front of its client, even if another pod has a higher rendezvous hash. The front
// gets the address to which the client sends. A datagram that the front has forwarded before the move may arrive at the
// former owner after the move. The former owner returns it to the front, so it is not lost.
func TestAdopt(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		owner, c := nodes[0], client(7)
		order := byHash(c, nodes, owner)
		front := order[len(order)-1]
		owner.create(c)
		settle()
		via := frontOf(t, owner, front, c)
		front.expect(nil, []string{"re: first"})
		owner.sessions.got()
		n.frames()
		path, err := owner.Adopt(c, []byte("record"), datagram.Source{}, via)
		if err != nil || path != via {
			t.Fatalf("handed over to %q: %v", path.Pod(), err)
		}
		if got := front.offered(); !slices.Equal(got, []string{"record"}) || front.sessions.here == nil {
			t.Fatalf("offered: %q, to an address: %v", got, front.sessions.here)
		}
		front.sessions.mu.Lock()
		delete(front.sessions.has, c) // a session is provisional until the owner has ended it
		front.sessions.mu.Unlock()
		front.pass(c, "late")
		owner.end(c)
		front.sessions.mu.Lock()
		front.sessions.has[c] = true
		front.sessions.mu.Unlock()
		settle()
		front.expect([]string{"late"}, nil)
		if got := front.tunnelled(); !slices.Equal(got, []string{"from invalid AddrPort: "}) {
			t.Errorf("confirmed by the datagram: %q", got)
		}
		path.Confirm()
		front.Added(c)
		settle()
		if n := front.Status().Refused["loop"]; n > 0 {
			t.Errorf("%d frames count as loops", n)
		}
	})
}

// a front refuses a session if it does not forward datagrams of the client to the pod that offers the session, or
// if the client sends to two of its addresses. A draining front is not offered sessions. A front that does not answer,
// such as a pod of an earlier release, gets no further such offer within silentFor, and still gets sessions of draining
// pods.
func TestRefusedAdoption(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		owner, front := nodes[0], nodes[1]
		fails := func(what string, c Client, via ReturnPath) {
			t.Helper()
			begun := time.Now()
			if _, err := owner.Adopt(c, []byte("record"), datagram.Source{}, via); !errors.Is(err, ErrNoSuccessor) {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(begun); took > offerTimes*offerTimeout+time.Second/10 {
				t.Errorf("%s: the attempt took %v", what, took)
			}
			if len(front.offered()) > 0 {
				t.Errorf("%s: the session was taken", what)
			}
		}
		owner.create(client(1))
		settle()
		via := frontOf(t, owner, front, client(1))
		notArrived := ReturnPath{forwarder: via.forwarder, pod: via.pod, client: client(2)}
		fails("no datagram of the client", client(2), notArrived)
		fails("no front", client(1), ReturnPath{})
		owner.create(client(3))
		settle()
		both := frontOf(t, owner, front, client(3))
		for i := range byte(2) {
			at := sourceOf(t, [4]byte{10, 9, 0, i})
			front.front.Pass(client(3), []byte("x"), at, time.Now())
		}
		front.front.Flush()
		settle()
		fails("two addresses", client(3), both)
		if _, err := owner.Adopt(client(1), make([]byte, MaxRecord+1), datagram.Source{}, via); !errors.Is(err, ErrRecord) {
			t.Errorf("a record that is too long: %v", err)
		}
		front.sessions.full = true
		if _, err := owner.Adopt(client(1), []byte("record"), datagram.Source{}, via); !errors.Is(err, ErrNoSuccessor) {
			t.Errorf("a full front: %v", err)
		}
		front.sessions.full = false
		front.offered()
		n.lose(front)
		fails("no answer", client(1), via)
		n.regain(front)
		if owner.Adopts(via) || front.name != owner.successors(keyFor(t, clientOf(t, front, nodes)))[0].link.Load().peer.Pod {
			t.Error("the front is offered sessions, or none of a pod that drains")
		}
		time.Sleep(silentFor)
		if !owner.Adopts(via) {
			t.Error("the front is offered no sessions any more")
		}
		p := list(nodes...)
		p.Pods[1].Draining = true
		publish(p, nodes...)
		if owner.Adopts(via) {
			t.Error("a draining front is offered sessions")
		}
		fails("a draining front", client(1), via)
		path, err := owner.HandOver(client(1), []byte("record"), datagram.Source{})
		if err != nil || path.Pod() == front.name {
			t.Errorf("handed over to %q: %v", path.Pod(), err)
		}
	})
}

// clientOf returns a client for which a node has the highest rendezvous hash.
func clientOf(t *testing.T, first *node, nodes []*node) Client {
	t.Helper()
	for i := range 1000 {
		if c := client(i); byHash(c, nodes, nodes[0])[0] == first {
			return c
		}
	}
	t.Fatal("no client")
	return Client{}
}
