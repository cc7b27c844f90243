package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// inject makes a pod receive a frame from an address.
func (n *network) inject(from, to *node, frame []byte) {
	n.send(from.self.Address, to.self.Address, frame)
}

// forge returns a frame of a pod to another, sealed with a key.
func forge(from, to *node, key Key, counter uint64, k kind, c Client, payload []byte) []byte {
	s := sealer{keyID: key.ID, aead: derive(key.Secret, from.self.Sender, to.self.Sender)}
	return s.seal(nil, from.self.Sender, counter, k, c, payload)
}

// K-17: TestForgedFramesChangeNothing sends forged frames to an owner. The owner must drop and count each frame, and
// answer none.
func TestForgedFramesChangeNothing(t *testing.T) {
	c := client(1)
	for _, row := range []struct {
		name   string
		reason string
		// send sends frames to pods[1], which is the owner of c. pods[0] is another pod of the list.
		send func(n *network, pods []*node)
	}{
		{"an unlisted pod", "stranger", func(n *network, pods []*node) {
			unlisted := n.start("unlisted")
			n.inject(unlisted, pods[1], forge(unlisted, pods[1], yesterday, 1, data, c, []byte("x")))
		}},
		{"a listed sender at another address", "stranger", func(n *network, pods []*node) {
			elsewhere := n.start("elsewhere")
			n.inject(elsewhere, pods[1], forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x")))
		}},
		{"a pod of another Gateway", "bad_frame", func(n *network, pods []*node) {
			other := Key{ID: yesterday.ID, Secret: [32]byte{9}}
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], other, 1000, data, c, []byte("x")))
		}},
		{"a key that is not in the list", "bad_key", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], Key{ID: 9}, 1000, data, c, []byte("x")))
		}},
		{"yesterday's pod", "stranger", func(n *network, pods []*node) {
			publish(list(pods[1:]...), pods[1:]...)
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x")))
		}},
		{"the previous process of a pod", "stranger", func(n *network, pods []*node) {
			again := n.start(pods[0].name)
			publish(list(again, pods[1], pods[2]), pods[1:]...)
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x")))
		}},
		{"a replay", "replay", func(n *network, pods []*node) {
			frame := forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("once"))
			n.inject(pods[0], pods[1], bytes.Clone(frame))
			settle()
			pods[1].expect([]string{"once"}, nil)
			pods[0].sessions.got()
			n.frames()
			n.inject(pods[0], pods[1], frame)
		}},
		{"a frame behind the window", "replay", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000+windowSize, release, client(9), nil))
			settle()
			n.frames()
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x")))
		}},
		{"a replay after the sender was out of the list", "replay", func(n *network, pods []*node) {
			frame := forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("once"))
			n.inject(pods[0], pods[1], bytes.Clone(frame))
			settle()
			publish(list(pods[1:]...), pods[1:]...)
			publish(Peers{}, pods[1:]...)
			publish(list(pods...), pods[1:]...)
			pods[1].expect([]string{"once"}, nil)
			pods[0].sessions.got()
			n.frames()
			n.inject(pods[0], pods[1], frame)
		}},
		{"a frame for another pod", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[2], yesterday, 1000, data, c, []byte("x")))
		}},
		{"a truncated frame", "bad_frame", func(n *network, pods []*node) {
			frame := forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x"))
			n.inject(pods[0], pods[1], frame[:len(frame)-1])
		}},
		{"a frame without a sealed part", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, c, nil)[:headerSize])
		}},
		{"an empty frame", "bad_frame", func(n *network, pods []*node) { n.inject(pods[0], pods[1], nil) }},
		{"64 KiB of zeros", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], make([]byte, 1<<16))
		}},
		{"64 KiB of a listed sender", "bad_frame", func(n *network, pods []*node) {
			frame := forge(pods[0], pods[1], yesterday, 1000, data, c, make([]byte, maxFrame-Overhead6))
			n.inject(pods[0], pods[1], append(frame, 0))
		}},
		{"another version", "bad_frame", func(n *network, pods []*node) {
			frame := forge(pods[0], pods[1], yesterday, 1000, data, c, []byte("x"))
			frame[0]++
			n.inject(pods[0], pods[1], frame)
		}},
		{"an unknown kind", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, kinds, c, []byte("x")))
		}},
		{"a mapped IPv4 address", "bad_frame", func(n *network, pods []*node) {
			mapped := Client{Addr: parse("[::ffff:192.0.2.1]:5000"), Port: c.Port}
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, mapped, []byte("x")))
		}},
		{"a list of clients that is cut", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, release, c, make([]byte, record4-1)))
		}},
		{"numbers of sessions that are cut", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, counts, nobody, make([]byte, toldSize+1)))
		}},
		{"no numbers of sessions", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, counts, nobody, nil))
		}},
		{"a question about a session that is cut", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, admit, nobody, make([]byte, admitSize-1)))
		}},
		{"a decision that is cut", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, admitted, nobody, make([]byte, verdictSize-1)))
		}},
		{"a decision about nothing", "unasked", func(n *network, pods []*node) {
			verdict := append(make([]byte, verdictSize-2), 9, 1)
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, admitted, nobody, verdict))
		}},
		{"an owner without an id", "bad_frame", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, is, c, make([]byte, 7)))
		}},
		{"data for a listener that is not here", "listener", func(n *network, pods []*node) {
			pods[1].sessions.noPorts = true
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, data, client(9), []byte("x")))
		}},
		{"an ask for a listener that is not here", "listener", func(n *network, pods []*node) {
			pods[1].sessions.noPorts = true
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, ask, client(9), []byte("x")))
		}},
		{"an answer to a client that does not send to this pod", "unasked", func(n *network, pods []*node) {
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, reply, client(9), []byte("x")))
		}},
		{"an owner that was not asked for", "unasked", func(n *network, pods []*node) {
			owner := podID(pods[2].name)
			payload := binary.BigEndian.AppendUint64(nil, owner)
			n.inject(pods[0], pods[1], forge(pods[0], pods[1], yesterday, 1000, is, client(9), payload))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				pods := n.cluster(3)
				pods[1].create(c)
				settle()
				n.frames()
				row.send(n, pods)
				settle()
				pods[1].expect(nil, nil)
				pods[1].refused(map[string]uint64{row.reason: 1})
				for _, f := range n.frames() {
					if f.from == pods[1].self.Address && !n.isAnnouncement(f) {
						t.Errorf("the pod answers with a frame of %d bytes", len(f.frame))
					}
				}
			})
		})
	}
}

// isAnnouncement reports whether a frame announces sessions to a home.
func (n *network) isAnnouncement(f sentFrame) bool {
	from, to := n.nodes[f.from].self.Sender, n.nodes[f.to].self.Sender
	m, ok := open(derive(yesterday.Secret, from, to), bytes.Clone(f.frame))
	return ok && (m.kind == renew || m.kind == hold || m.kind == release)
}

// A reply frame of a pod that is not the owner is not sent to the client.
func TestAReplyOfAPodThatIsNotTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		pods := n.cluster(3)
		c := client(1)
		pods[0].create(c)
		settle()
		pods[1].pass(c, "x")
		settle()
		pods[1].expect(nil, []string{"re: x"})
		to := pods[2].view.Load().links[podID(pods[1].name)].pod
		path := ReturnPath{forwarder: pods[2].Forwarder, pod: to, client: c}
		if err := path.Send([]byte("forged")); err != nil {
			t.Fatal(err)
		}
		settle()
		pods[1].expect(nil, nil)
		pods[1].refused(map[string]uint64{"unasked": 1})
	})
}

// A frame of kind is sets the owner of a client only if this front has asked the sender of the frame, and it never
// replaces a known owner. The front still forwards the datagram in the frame.
func TestAnOwnerIsNamedOnlyByAHomeThatWasAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(1)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		wrong := other(nodes, owner, front, homes[0], homes[1])
		named := append(binary.BigEndian.AppendUint64(nil, podID(wrong.name)), "late"...)
		owner.create(c)
		settle()
		front.pass(c, "x")
		n.inject(wrong, front, forge(wrong, front, yesterday, 1000, is, c, named))
		n.inject(homes[1], front, forge(homes[1], front, yesterday, 1000, is, c, named))
		settle()
		owner.expect([]string{"x"}, nil)
		front.refused(map[string]uint64{"unasked": 2})
		n.inject(homes[0], front, forge(homes[0], front, yesterday, 1000, is, c, named))
		settle()
		front.pass(c, "y")
		settle()
		owner.expect([]string{"late", "y"}, nil)
		wrong.expect(nil, nil)
		front.expect(nil, []string{"re: x", "re: late", "re: y"})
	})
}

// The answer of a home may arrive after the list of pods has changed, and after the search for the owner has begun
// again.
func TestTheListChangesDuringASearch(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(1)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		next := list(nodes...)
		for i := range next.Pods {
			next.Pods[i].Draining = next.Pods[i].Pod == homes[0].name // a draining pod is not a home
		}
		n.lose(homes[1])
		front.pass(c, "before")
		front.SetPeers(next)
		front.pass(c, "lost")
		settle()
		owner.expect([]string{"before"}, nil)
	})
}

// If the index names a front as the owner, and the front has no session, no frame circulates.
func TestNoFrameCirculates(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(1)
		k, _ := keyOf(c)
		homes := homesOf(c, nodes)
		front := other(nodes, homes[:]...)
		wrong := other(nodes, front, homes[0], homes[1])
		for name, owner := range map[string]*node{"the front": front, "a pod without the session": wrong} {
			for _, h := range homes {
				h.index.hold(k, podID(owner.name), h.now(), true)
			}
			n.frames()
			passed := 0
			for range 100 {
				if front.pass(c, "x") {
					passed++
				}
				settle()
			}
			if frames := len(n.frames()); frames > 2*passed+8 {
				t.Errorf("%s: %d datagrams caused %d frames", name, passed, frames)
			}
			if held := homes[0].Status().Held + homes[1].Status().Held; held != 0 {
				t.Errorf("%s: the homes still store the owner", name)
			}
			time.Sleep(2 * time.Second)
		}
		if homes[0].Status().Refused["loop"] != 1 || homes[1].Status().Refused["loop"] != 1 {
			t.Errorf("loops counted: %v and %v, want 1 each", homes[0].Status().Refused, homes[1].Status().Refused)
		}
		// A home with another list of pods names the front.
		front.front.Pass(c, []byte("x"), datagram.Source{}, time.Now())
		payload := append(binary.BigEndian.AppendUint64(nil, podID(front.name)), 'x')
		n.inject(homes[0], front, forge(homes[0], front, yesterday, 1000, is, c, payload))
		settle()
		front.refused(map[string]uint64{"loop": 1})
		if got := front.Status().Clients; got != 0 {
			t.Errorf("the front knows %d owners, want 0", got)
		}
	})
}

// K-17: datagrams with the forged source of a client at another pod do not move the client. The owner learns both
// fronts, and continues to use the first one.
func TestAForgedClientMovesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		c := client(1)
		nodes[0].create(c)
		settle()
		nodes[1].pass(c, "real")
		nodes[2].pass(c, "forged")
		settle()
		nodes[0].expect([]string{"real", "forged"}, nil)
		paths := nodes[0].sessions.paths
		if len(paths) != 2 || paths[0] == paths[1] ||
			paths[0].Pod() != nodes[1].name || paths[1].Pod() != nodes[2].name {
			t.Errorf("the paths are %v", paths)
		}
		nodes[1].pass(c, "real")
		settle()
		if paths := nodes[0].sessions.paths; paths[2] != paths[0] {
			t.Error("two return paths through one front are not equal")
		}
		if paths[0].Front() != nodes[1].self.Address {
			t.Errorf("the front is at %v", paths[0].Front())
		}
		nodes[0].SetPeers(list(nodes[0], nodes[2]))
		if paths[0].Send(nil) == nil || paths[0].Front().IsValid() {
			t.Error("a return path through a front that is gone leads somewhere")
		}
	})
}

// 100,000 datagrams a second with forged sources cause a bounded number of asks, and use bounded memory.
func TestForgedSources(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(1)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		for _, d := range nodes {
			d.sessions.silent = true
		}
		owner.create(c)
		settle()
		front.pass(c, "live")
		settle()
		const seconds, perMillisecond = 5, 100
		live, before := 0, front.Status().Asked
		for i := range seconds * 1000 {
			now := time.Now()
			for k := range perMillisecond {
				x := i*perMillisecond + k
				forged := Client{Port: 3478, Addr: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{100, byte(x >> 16), byte(x >> 8), byte(x)}), 5000)}
				front.front.Pass(forged, []byte("x"), datagram.Source{}, now)
			}
			if i%10 == 0 && front.pass(c, "live") {
				live++
			}
			front.front.Flush()
			if i%100 == 0 {
				n.frames() // frees the recorded frames
			}
			time.Sleep(time.Millisecond)
			if asked := front.Status().Asked - before; asked > uint64(asksPerSlot*(i/100+2)) {
				t.Fatalf("%d asks after %d ms", asked, i)
			}
			if got := len(front.front.known); got > 200 {
				t.Fatalf("the outbox knows %d clients", got)
			}
		}
		settle()
		asked := front.Status().Asked - before
		if asked > 5000*seconds+asksPerSlot || asked < 4000*seconds {
			t.Errorf("%d asks in %d s, want about 5,000 a second", asked, seconds)
		}
		if delivered, _ := owner.sessions.got(); len(delivered) != live+1 {
			t.Errorf("%d datagrams of the live call are delivered of %d", len(delivered), live+1)
		}
		front.Forwarder.front.mu.Lock()
		defer front.Forwarder.front.mu.Unlock()
		if got := len(front.Forwarder.front.searches); got > maxSearches {
			t.Errorf("%d searches, want at most %d", got, maxSearches)
		}
		if got := len(front.Forwarder.front.known); got != 1 {
			t.Errorf("%d known clients, want 1", got)
		}
	})
}

// A flood from one address with many ports causes few asks.
func TestAFloodOfOneSourceCausesFewAsks(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(1)
		for range 9 { // for most clients, other pods are the homes
			nodes = append(nodes, n.start(fmt.Sprint("more-", len(nodes))))
		}
		publish(list(nodes...), nodes...)
		front := nodes[0]
		before := front.Status().Asked
		const seconds = 10
		for i := range seconds * 1000 {
			for k := range 10 {
				forged := Client{Port: 3478, Addr: netip.AddrPortFrom(client(2).Addr.Addr(), uint16(i*10+k))}
				front.front.Pass(forged, []byte("x"), datagram.Source{}, time.Now())
			}
			front.front.Flush()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		const most = int(time.Second/slot)*freeAsksPerSlot + asksPerSource
		if asked := int(front.Status().Asked - before); asked > most*(seconds+1) || asked < most*(seconds-1) {
			t.Errorf("%d asks of one source in %d s, want %d a second", asked, seconds, most)
		}
	})
}

// All clients of an office with one public address are found quickly after a load balancer has redistributed them.
func TestClientsOfOneAddressDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(1)
		for range 9 {
			nodes = append(nodes, n.start(fmt.Sprint("more-", len(nodes))))
		}
		publish(list(nodes...), nodes...)
		front := nodes[0]
		before := front.Status().Asked
		const clients = 200
		for i := range 50 { // each client sends a datagram every 20 ms
			for k := range clients {
				c := Client{Port: 3478, Addr: netip.AddrPortFrom(client(2).Addr.Addr(), uint16(1024+k))}
				front.front.Pass(c, []byte("x"), datagram.Source{}, time.Now())
			}
			front.front.Flush()
			if i == 25 {
				synctest.Wait()
				if asked := front.Status().Asked - before; asked < clients*8/10 { // this pod is the home of the other clients
					t.Errorf("%d asks for %d clients in half a second", asked, clients)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

func TestBoundsOfMemory(t *testing.T) {
	x := newIndex(0, 0)
	for i := range maxHeld + 1 {
		if ok := x.hold(clientKey{low: uint64(i)}, 1, 0, true); ok != (i < maxHeld) {
			t.Fatalf("client %d is stored: %t", i, ok)
		}
	}
	if !x.hold(clientKey{low: 1}, 2, 0, true) {
		t.Error("a full index does not take a new owner of a client that it has")
	}
	x.sweep(holdTime)
	if x.len() != 0 {
		t.Errorf("%d clients are stored after their time", x.len())
	}
	front := newFront()
	var source datagram.Source
	v := &view{homes: []home{{pod: &pod{id: 1}}}}
	for i := range maxSearches + 1 {
		if s := front.search(v, clientKey{low: uint64(i)}, &source, 0); (s != nil) != (i < maxSearches) {
			t.Fatalf("client %d is searched: %t", i, s != nil)
		}
	}
	owner := &pod{}
	for i := range maxKnown + 1 {
		if n := front.learn(clientKey{high: 1, low: uint64(i)}, owner, &source, 0); (n != nil) != (i < maxKnown) {
			t.Fatalf("client %d is known: %t", i, n != nil)
		}
	}
	front.none(clientKey{high: 2}, &source, 0)
	front.sweep(idle)
	if len(front.searches) != 0 || len(front.known) != 0 {
		t.Errorf("%d searches and %d owners are left", len(front.searches), len(front.known))
	}
}
