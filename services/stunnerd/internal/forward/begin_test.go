package forward

import (
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// all Allocate requests of a client are passed to the same pod that does not drain, even if a pod is added
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

// drainingIn returns the list of nodes, with some of them draining.
func drainingIn(nodes []*node, draining ...*node) Peers {
	p := list(nodes...)
	for i, d := range nodes {
		p.Pods[i].Draining = slices.Contains(draining, d)
	}
	return p
}
