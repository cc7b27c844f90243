package forward

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, n *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newNetwork(t)) })
}

// a datagram that arrives at a pod without the session is delivered to the owner. The answer is sent to the
// client by the pod at which the datagram has arrived.
func TestADatagramReachesTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		for i := range 20 {
			c := client(i)
			homes := homesOf(c, nodes)
			owner := other(nodes, homes[:]...)
			for name, front := range map[string]*node{
				"neither home nor owner": other(nodes, owner, homes[0], homes[1]), "first home": homes[0], "second home": homes[1],
			} {
				owner.create(c)
				settle()
				asked := front.Status().Asked
				for k := range 3 {
					if !front.pass(c, fmt.Sprint(k)) {
						t.Fatalf("%s drops datagram %d of client %v", name, k, c)
					}
					settle()
				}
				owner.expect([]string{"0", "1", "2"}, nil)
				front.expect(nil, []string{"re: 0", "re: 1", "re: 2"})
				want := asked
				if front != homes[0] && front != homes[1] {
					want++
				}
				if got := front.Status().Asked; got != want {
					t.Errorf("%s has sent %d asks, want %d", name, got-asked, want-asked)
				}
				owner.end(c)
				settle()
				front.pass(c, "late") // the front forgets the owner
				settle()
				front.expect(nil, nil)
				time.Sleep(2 * answerTimeout)
			}
		}
		for _, d := range nodes {
			d.refused(map[string]uint64{})
		}
	})
}

func TestAHomeThatIsTheOwnerKeepsTheDatagram(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(1)
		homes := homesOf(c, nodes)
		owner, front := homes[0], other(nodes, homes[:]...)
		owner.create(c)
		settle()
		n.frames()
		front.pass(c, "first")
		settle()
		if got := len(n.frames()); got != 3 {
			t.Errorf("%d frames were sent, want 3: ask, is, reply", got)
		}
		owner.expect([]string{"first"}, nil)
		front.expect(nil, []string{"re: first"})
	})
}

func TestNoDatagramIsLostDuringASearch(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(2)
		homes := homesOf(c, nodes)
		owner, front := homes[1], other(nodes, homes[:]...)
		owner.create(c)
		settle()
		burst := func(c Client, datagrams int) (passed []string) {
			t.Helper()
			for k := range datagrams {
				passed = append(passed, fmt.Sprint(k))
				if !front.pass(c, passed[k]) {
					t.Errorf("datagram %d is dropped", k)
				}
			}
			limited := front.Status().Limited
			if !front.pass(c, "one more") {
				t.Error("the listener answers a client that may have a session")
			}
			if n := front.Status().Limited - limited; n != 1 {
				t.Errorf("%d datagrams above the limit of %d, want 1", n, datagrams)
			}
			settle()
			return passed
		}
		owner.expect(burst(c, burstPerHome), nil)
		// Asks for other clients have reached freeAsksPerSlot, so only the lower limit for one client applies now.
		for k := range freeAsksPerSlot {
			front.pass(client(2*k+4), "x")
		}
		settle()
		another := client(2 * freeAsksPerSlot)
		for homes = homesOf(another, nodes); homes[0] == front || homes[1] == front; homes = homesOf(another, nodes) {
			another.Addr = netip.AddrPortFrom(another.Addr.Addr(), another.Addr.Port()+1)
		}
		homes[0].create(another)
		settle()
		homes[0].sessions.got()
		delivered := burst(another, asksPerHome)
		homes[0].expect(delivered, nil)
	})
}

func TestAClientWithoutAnOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(3)
		homes := homesOf(c, nodes)
		front := other(nodes, homes[:]...)
		var passed []bool
		for range 4 {
			passed = append(passed, front.pass(c, "x"))
			settle()
		}
		if want := []bool{true, false, false, false}; !slices.Equal(passed, want) {
			t.Errorf("passed %v, want %v: the first is passed to both homes", passed, want)
		}
		time.Sleep(answerTimeout)
		synctest.Wait()
		if !front.pass(c, "x") {
			t.Error("an ownerless client is not asked for again")
		}
		// The first datagram counts too, because both homes have returned it.
		if s := front.Status(); s.Asked != 3 || s.Unknown != 4 {
			t.Errorf("%d asks and %d unknown, want 3 and 4", s.Asked, s.Unknown)
		}
	})
}

// A STUN message of a client without a session in any pod is returned to the pod to which the client sends, so that the
// client gets an error.
func TestAMessageWithoutAnOwnerIsReturned(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		for i, front := range nodes {
			for _, datagram := range []string{"\x00\x04 Refresh", "@ ChannelData"} {
				c := client(10*i + len(datagram))
				if front.pass(c, datagram) {
					settle()
				} else if datagram[0] < 4 {
					t.Errorf("%s is not passed", datagram)
				}
			}
			front.sessions.mu.Lock()
			if got := front.sessions.unowned; len(got) != 1 || got[0] != "\x00\x04 Refresh" {
				t.Errorf("%s got %q", front.name, got)
			}
			front.sessions.mu.Unlock()
		}
	})
}

// If no home answers, the listener gets the STUN messages of a client after three seconds.
func TestAMessageIsAnsweredAlsoIfHomesAreSilent(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(2)
		n.lose(nodes[1])
		c, begun := client(1), time.Now()
		for nodes[0].pass(c, "\x00\x04 Refresh") {
			for range 25 {
				nodes[0].pass(c, "@ ChannelData")
				time.Sleep(20 * time.Millisecond)
			}
			if time.Since(begun) > 10*time.Second {
				t.Fatal("the message is passed to silent homes")
			}
		}
		if took := time.Since(begun); took < unanswered {
			t.Errorf("the search ended after %s", took)
		}
	})
}

func TestASilentHomeIsReplacedByTheOther(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(4)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		n.lose(homes[0])
		front.pass(c, "lost")
		time.Sleep(answerTimeout)
		synctest.Wait()
		front.pass(c, "found")
		settle()
		owner.expect([]string{"found"}, nil)
	})
}

// TestBothHomesLost is the longest search. The owner announces the session to the new homes when it receives the list,
// up to a second later than the front receives the list.
func TestBothHomesLost(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(8)
		c := client(5)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		n.lose(homes[0])
		n.lose(homes[1])
		begin := time.Now()
		alive := slices.DeleteFunc(slices.Clone(nodes), func(d *node) bool { return d == homes[0] || d == homes[1] })
		go func() {
			time.Sleep(time.Second)
			publish(list(alive...), alive...)
		}()
		for k := 0; ; k++ {
			front.pass(c, fmt.Sprint(k))
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			if delivered, _ := owner.sessions.got(); len(delivered) > 0 {
				break
			}
			if time.Since(begin) > time.Minute {
				t.Fatal("the owner is not found")
			}
		}
		if took := time.Since(begin); took > 1300*time.Millisecond {
			t.Errorf("the search took %v, want at most 1.25 s and a round trip", took)
		}
	})
}

// homes store the pod of the owner and not its process, so a restart of the owner changes nothing in the index.
func TestAnOwnerRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(6)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		front.pass(c, "1")
		settle()
		owner.expect([]string{"1"}, nil)
		n.lose(owner)
		again := n.start(owner.name)
		if again.self.Sender == owner.self.Sender {
			t.Fatal("the new process has the sender of the old one")
		}
		again.sessions.has[c] = true
		nodes[slices.Index(nodes, owner)] = again
		publish(list(nodes...), nodes...)
		front.pass(c, "2")
		settle()
		again.expect([]string{"2"}, nil)
		if got := front.Status().Asked; got != 1 {
			t.Errorf("the front has asked %d times, want once", got)
		}
	})
}

func TestAHomeRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(7)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		owner.create(c)
		settle()
		n.lose(homes[0])
		again := n.start(homes[0].name)
		nodes[slices.Index(nodes, homes[0])] = again
		// The home receives the list after the owner, and drops the first announcement.
		owner.SetPeers(list(nodes...))
		settle()
		publish(list(nodes...), nodes...)
		if got := again.Status().Held; got != 0 {
			t.Fatalf("the home stores %d clients, want 0", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := again.Status().Held; got != 1 {
			t.Errorf("the home stores %d clients, want 1", got)
		}
	})
}

func TestTheIndexExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		held := func() (sum int) {
			synctest.Wait()
			for _, d := range nodes[1:] {
				sum += d.Status().Held
			}
			return sum
		}
		const clients = 1000
		want := 0
		for i := range clients {
			homes := homesOf(client(i), nodes)
			for _, h := range homes {
				if h != nodes[0] {
					want++
				}
			}
			nodes[0].create(client(i))
		}
		settle()
		if held() != want {
			t.Fatalf("%d clients are held, want %d", held(), want)
		}
		n.frames()
		time.Sleep(10 * time.Minute)
		if held() != want {
			t.Errorf("%d clients are held after 10 minutes, want %d: they are renewed", held(), want)
		}
		frames := n.frames()
		for _, f := range frames {
			if len(f.frame) > 1200 {
				t.Errorf("a frame of %d bytes, want at most 1,200", len(f.frame))
			}
		}
		if most := 10 * (want*record6/(batchSize-record6) + 2*len(nodes)); len(frames) > most {
			t.Errorf("%d frames in 10 minutes, want at most %d", len(frames), most)
		}
		for i := range clients / 2 {
			nodes[0].end(client(i))
		}
		settle()
		if got := held(); got >= want*6/10 {
			t.Errorf("%d clients are held after half has ended, want about half of %d", got, want)
		}
		n.lose(nodes[1])
		n.lose(nodes[2])
		time.Sleep(holdTime + 31*time.Second)
		if held() != 0 {
			t.Errorf("%d clients are held without renewal, want 0", held())
		}
	})
}

// after each pod that is added, drained or removed, every client is found at once.
func TestChangesOfTheList(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(6)
		owner := nodes[0]
		const clients = 300
		for i := range clients {
			owner.create(client(i))
		}
		settle()
		found := func(event string, front *node) {
			t.Helper()
			for i := range clients {
				if !front.pass(client(i), "x") {
					t.Fatalf("%s: the front drops a datagram", event)
				}
				time.Sleep(time.Millisecond)
			}
			settle()
			if delivered, _ := owner.sessions.got(); len(delivered) != clients {
				t.Errorf("%s: %d datagrams of %d are delivered", event, len(delivered), clients)
			}
			time.Sleep(idle + 2*time.Second) // the front forgets the owner
			synctest.Wait()
			if got := front.Status().Clients; got != 0 {
				t.Fatalf("the front knows %d clients", got)
			}
		}
		found("start", nodes[1])
		added := n.start("pod-new")
		nodes = append(nodes, added)
		publish(list(nodes...), nodes...)
		found("added pod as front", added)
		found("added pod as home", nodes[2])
		p := list(nodes...)
		p.Pods[2].Draining, p.Pods[3].Draining = true, true
		publish(p, nodes...)
		if got := len(nodes[0].view.Load().homes); got != 5 {
			t.Errorf("%d homes, want 5: two drain", got)
		}
		found("drained", nodes[2])
		nodes = slices.Delete(nodes, 2, 4)
		publish(list(nodes...), nodes...)
		found("removed", nodes[1])
		p = list(nodes...)
		for i := range p.Pods {
			p.Pods[i].Draining = true
		}
		publish(p, nodes...)
		found("all drain", nodes[1])
		publish(Peers{}, nodes...)
		if nodes[1].pass(client(1), "x") {
			t.Error("a datagram is passed without a list")
		}
		publish(list(nodes...), nodes...)
		found("list again", nodes[1])
	})
}

// If the first home does not know the owner, the other home is asked, and no datagram is lost.
func TestTheSecondHomeIsAskedAfterTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(8)
		k, _ := keyOf(c)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		homes[0].index.release(k, podID(owner.name))
		front.pass(c, "media")
		settle()
		owner.expect([]string{"media"}, nil)
	})
}

// A front that is also a home receives the announcement of the owner while it asks the other home, which has ended.
func TestAHomeReceivesTheOwnerDuringItsSearch(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(8)
		k, _ := keyOf(c)
		homes := homesOf(c, nodes)
		owner, front := other(nodes, homes[:]...), homes[0]
		owner.create(c)
		settle()
		front.index.release(k, podID(owner.name))
		n.lose(homes[1])
		for range 3 {
			front.pass(c, "lost")
			time.Sleep(answerTimeout)
		}
		owner.Forwarder.queue(k, c, hold)
		settle()
		front.pass(c, "media")
		settle()
		owner.expect([]string{"media"}, nil)
	})
}

// The end of the earlier session of a client may be queued after the beginning of a later session. The homes then keep
// the later session.
func TestASessionThatReplacesAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(4)
		c := client(8)
		homes := homesOf(c, nodes)
		owner := other(nodes, homes[:]...)
		front := other(nodes, owner, homes[0], homes[1])
		owner.create(c)
		settle()
		owner.create(c)
		owner.Ended(c)
		settle()
		front.pass(c, "x")
		settle()
		owner.expect([]string{"x"}, nil)
		owner.end(c)
		settle()
		if held := homes[0].Status().Held + homes[1].Status().Held; held != 0 {
			t.Errorf("the homes store %d ended sessions", held)
		}
	})
}

// A reader builds frames, and is not scheduled for 300 ms in which the other readers send. Its frames are still
// accepted.
func TestAReaderThatDoesNotRun(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(2)
		c := client(8)
		nodes[0].create(c)
		settle()
		nodes[1].pass(c, "first")
		settle()
		late := nodes[1].Outbox()
		for range 60 {
			late.Pass(c, []byte("late"), datagram.Source{}, time.Now())
		}
		for i := range 30_000 {
			nodes[1].front.Pass(c, []byte("x"), datagram.Source{}, time.Now())
			if i%1000 == 0 {
				nodes[1].front.Flush()
				settle()
			}
		}
		nodes[1].front.Flush()
		settle()
		late.Flush()
		settle()
		if delivered, _ := nodes[0].sessions.got(); len(delivered) != 1+30_000+60 {
			t.Errorf("%d datagrams are delivered, refused %v", len(delivered), nodes[0].Status().Refused)
		}
	})
}

func TestANewerSessionAtAnotherPodReplacesTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(5)
		c := client(8)
		homes := homesOf(c, nodes)
		older := other(nodes, homes[:]...)
		newer := other(nodes, older, homes[0], homes[1])
		front := other(nodes, older, newer, homes[0], homes[1])
		older.create(c)
		settle()
		newer.create(c)
		settle()
		time.Sleep(3 * renewEvery)
		synctest.Wait()
		front.pass(c, "x")
		settle()
		newer.expect([]string{"x"}, nil)
		older.expect(nil, nil)
	})
}

// K-17: a datagram with a forged source arrives at another address of the front. The answers are sent from both
// addresses, so they reach a client that rarely sends, and a client that now sends to the other address.
func TestAnswersAreSentFromBothAddresses(t *testing.T) {
	real, other := sourceOf(t, [4]byte{192, 0, 2, 1}), sourceOf(t, [4]byte{192, 0, 2, 2})
	third := sourceOf(t, [4]byte{192, 0, 2, 3})
	const media = 20 * time.Millisecond // less than a step of the test, because settle takes 10*latency
	type step struct {
		after time.Duration
		times int
		asked datagram.Source
		want  []datagram.Source
	}
	for name, steps := range map[string][]step{
		"a client that sends media": {
			{media, 50, real, []datagram.Source{real}},
			{0, 1, other, []datagram.Source{real, other}},
			{media, int(secondIdle / (media + 10*latency)), real, []datagram.Source{real, other}},
			{media, 2, real, []datagram.Source{real}},
		},
		"a client that sends nothing": {
			{0, 1, real, []datagram.Source{real}},
			{100 * time.Millisecond, 290, other, []datagram.Source{real, other}},
			{100 * time.Millisecond, 1, real, []datagram.Source{real, other}},
			{100 * time.Millisecond, 290, other, []datagram.Source{real, other}},
		},
		"a client that has moved": {
			{0, 1, real, []datagram.Source{real}},
			{time.Second, 29, other, []datagram.Source{real, other}},
			{time.Second, 2, other, []datagram.Source{other}},
			{0, 1, real, []datagram.Source{other, real}},
		},
		"a forger at two addresses": {
			{0, 1, real, []datagram.Source{real}},
			{time.Second, 1, other, []datagram.Source{real, other}},
			{time.Second, 1, third, []datagram.Source{real, third}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				nodes := n.cluster(2)
				c := client(10)
				nodes[0].create(c)
				settle()
				for i, s := range steps {
					for range s.times {
						time.Sleep(s.after)
						nodes[1].front.Pass(c, []byte("x"), s.asked, time.Now())
						nodes[1].front.Flush()
						settle()
						var got []datagram.Source
						for _, from := range nodes[1].sessions.sources {
							got = append(got, *from)
						}
						if nodes[1].sessions.sources = nil; !slices.Equal(got, s.want) {
							t.Fatalf("step %d: answers from %d addresses, want %d", i, len(got), len(s.want))
						}
					}
				}
			})
		})
	}
}

func TestNilForwarder(t *testing.T) {
	var f *Forwarder
	c := client(1)
	f.SetPeers(Peers{})
	f.Added(c)
	f.Ended(c)
	o := f.Outbox()
	if o.Pass(c, nil, datagram.Source{}, time.Now()) {
		t.Error("a nil Forwarder passes a datagram")
	}
	o.Flush()
	var w ReturnPath
	if w.Send(nil) == nil || w.Front().IsValid() || w.Pod() != "" {
		t.Error("the zero ReturnPath leads somewhere")
	}
	if f.Self() != (Peer{}) || f.Status().Problem == "" || f.Tasks() != nil || f.Close() != nil {
		t.Error("a nil Forwarder is not off")
	}
}

func TestClientsThatCannotBeForwarded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(2)
		zoned := client(1)
		zoned.Addr = parse("[fe80::1%2]:5000")
		if nodes[0].pass(zoned, "x") {
			t.Error("a client with a zone is passed")
		}
		alone := n.start("alone")
		alone.SetPeers(list(alone))
		if alone.pass(client(1), "x") {
			t.Error("a pod without others passes a datagram")
		}
		for problem, p := range map[string]Peers{
			"there is no list of the pods of the Gateway":            {},
			"the list of pods has no keys":                           {Pods: list(nodes...).Pods},
			"this pod is not in the list of the pods of the Gateway": list(nodes...),
		} {
			alone.SetPeers(p)
			if alone.pass(client(1), "x") || alone.Status().Problem != problem {
				t.Errorf("problem %q, want %q and no datagram passed", alone.Status().Problem, problem)
			}
		}
		nodes[0].create(client(1))
		settle()
		if nodes[1].pass(client(1), string(make([]byte, maxFrame))) {
			settle()
			nodes[0].expect(nil, nil)
		}
		if got := nodes[1].Status().Failed; got != 1 {
			t.Errorf("%d frames failed, want 1: too long", got)
		}
	})
}
