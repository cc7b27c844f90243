package forward

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// all Allocate requests of a client are passed to one pod, which does not drain, even if a pod is added
// meanwhile. The answers are returned to the client, and later datagrams of the client reach the same pod. If all pods
// drain, Begin reports false.
func TestBeginAtAnotherPod(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		draining, c := nodes[0], client(5)
		began := func(request string) bool {
			t.Helper()
			ok := draining.front.Begin(c, []byte(request), datagram.Source{})
			draining.front.Flush()
			settle()
			return ok
		}
		publish(drainingIn(nodes, draining), nodes...)
		first := byHash(c, nodes, draining)[0]
		if !began("\x00\x03one") {
			t.Fatal("no pod has got the request")
		}
		first.expect([]string{"\x00\x03one"}, nil)
		draining.expect(nil, []string{"begun: \x00\x03one"})
		for i := range 8 {
			nodes = append(nodes, n.start(string(rune('a'+i))))
		}
		publish(drainingIn(nodes, draining), nodes...)
		if byHash(c, nodes, draining)[0] == first {
			t.Fatal("the first pod has still the highest hash")
		}
		began("\x00\x03two")
		first.expect([]string{"\x00\x03two"}, nil)
		draining.expect(nil, []string{"begun: \x00\x03two"})
		first.create(c)
		draining.pass(c, "media")
		settle()
		first.expect([]string{"media"}, nil)
		if began("media"); first.Status().Refused[meter.BadFrame.String()] != 1 {
			t.Errorf("a request that is none is refused: %v", first.Status().Refused)
		}
		publish(drainingIn(nodes, nodes...), nodes...)
		if began("\x00\x03three") {
			t.Error("a pod that drains gets the request")
		}
	})
}

// a pod does not search for the owner of a client if another client may have its address and port at another pod:
// the datagrams would reach the session of that client. Datagrams of a client whose request was passed are passed too.
func TestAmbiguousClientsAreNotSearchedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		for _, d := range nodes {
			d.ambiguous = func(netip.Addr) bool { return true }
		}
		c := client(1)
		nodes[0].create(c)
		settle()
		for _, d := range nodes[1:] {
			if d.pass(c, "of another client") {
				t.Errorf("%s passes a datagram", d.name)
			}
		}
		settle()
		nodes[0].expect(nil, nil)
		draining, late := nodes[1], client(2)
		publish(drainingIn(nodes, draining), nodes...)
		if !draining.front.Begin(late, []byte("\x00\x03"), datagram.Source{}) {
			t.Fatal("no pod gets the request")
		}
		draining.front.Flush()
		settle()
		next := byHash(late, nodes, draining)[0]
		next.create(late)
		if !draining.pass(late, "media") {
			t.Error("a datagram of a passed client is dropped")
		}
		settle()
		next.expect([]string{"\x00\x03", "media"}, nil)
	})
}

// drainingIn returns the list of nodes, with some of them draining.
func drainingIn(nodes []*node, draining ...*node) Peers {
	p := list(nodes...)
	for i, d := range nodes {
		p.Pods[i].Draining = slices.Contains(draining, d)
	}
	return p
}
