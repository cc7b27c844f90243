package forward

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// userAt returns a user whose home is one of nodes.
func userAt(home *node, nodes []*node, skip int) (u User) {
	for i := uint64(1); ; i++ {
		binary.BigEndian.PutUint64(u[:], i)
		if homeOf(u, nodes) == home {
			if skip--; skip < 0 {
				return u
			}
		}
	}
}

func homeOf(u User, nodes []*node) *node {
	h := rank(nodes[0].view.Load().homes, u.key())[0]
	for _, d := range nodes {
		if podID(d.name) == h.pod.id {
			return d
		}
	}
	return nil
}

// allocate handles an Allocate request of a user as the gate and the session table do. answer is 0 until the request is
// answered, then 1 if the session was admitted, or -1.
func (d *node) allocate(u User, limit int64) (answer *atomic.Int32) {
	answer = new(atomic.Int32)
	s := d.sessions
	s.mu.Lock()
	if s.users == nil {
		s.users, s.places = map[User]int64{}, map[User]int64{}
	}
	full := s.places[u] >= limit
	if !full {
		s.places[u]++
	}
	places := s.places[u]
	s.mu.Unlock()
	if full {
		answer.Store(-1)
		return answer
	}
	d.Admit(u, uint32(places), uint32(limit), func(ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if answer.Load() != 0 {
			d.network.t.Error("a second answer to Admit")
		}
		if ok {
			answer.Store(1)
			s.users[u]++
		} else {
			answer.Store(-1)
			s.places[u]--
		}
		d.tell(u, false)
	})
	return answer
}

// tell reports the number of sessions of a user if no request of the user waits for an answer. The caller must hold mu
// of the sessions.
func (d *node) tell(u User, fewer bool) {
	if d.sessions.users[u] == d.sessions.places[u] {
		d.Count(u, uint32(d.sessions.users[u]), fewer)
	}
}

// leave ends a session of a user.
func (d *node) leave(u User) {
	d.sessions.mu.Lock()
	defer d.sessions.mu.Unlock()
	d.sessions.places[u]--
	d.sessions.users[u]--
	d.tell(u, true)
}

// sessionsOf returns the number of sessions of a user in all pods.
func sessionsOf(u User, nodes []*node) (total int64) {
	for _, d := range nodes {
		d.sessions.mu.Lock()
		total += d.sessions.users[u]
		d.sessions.mu.Unlock()
	}
	return total
}

func answers(list []*atomic.Int32) (admitted, refused, open int) {
	for _, a := range list {
		switch a.Load() {
		case 1:
			admitted++
		case -1:
			refused++
		default:
			open++
		}
	}
	return admitted, refused, open
}

// decidedAlone returns how many times pods have decided without an answer of a home.
func decidedAlone(nodes []*node) (n uint64) {
	for _, d := range nodes {
		n += d.meter.QuotaUnanswered.Load()
	}
	return n
}

// allocateEach makes each pod handle requests of a user, all at the same time.
func allocateEach(u User, each int, limit int64, nodes []*node) (list []*atomic.Int32) {
	for range each {
		for _, d := range nodes {
			list = append(list, d.allocate(u, limit))
		}
	}
	return list
}

// T-12: of concurrent requests at several pods, exactly as many are admitted as the quota allows. When a session at any
// pod has ended, another session is admitted.
func TestQuotaOverPods(t *testing.T) {
	for _, pods := range []int{2, 3, 20} {
		inBubble(t, func(t *testing.T, n *network) {
			nodes := n.cluster(pods)
			const limit = 3
			var users []User
			var lists [][]*atomic.Int32
			for i := range 30 {
				u := userAt(nodes[i%pods], nodes, i/pods)
				users, lists = append(users, u), append(lists, allocateEach(u, 10, limit, nodes))
			}
			settle()
			for i, u := range users {
				admitted, refused, open := answers(lists[i])
				if admitted != limit || open != 0 || sessionsOf(u, nodes) != limit {
					t.Errorf("user %d in %d pods: %d admitted, %d refused, %d open", i, pods, admitted, refused, open)
				}
			}
			for i, u := range users {
				at := slices.IndexFunc(nodes, func(d *node) bool { return d.sessionsOf(u) > 0 })
				nodes[at].leave(u)
				settle()
				if got := allocateEach(u, 1, limit, nodes); sessionsOf(u, nodes) > limit {
					t.Errorf("user %d: %v", i, got)
				}
				settle()
				if got := sessionsOf(u, nodes); got != limit {
					t.Errorf("user %d has %d sessions after one has ended, want %d", i, got, limit)
				}
			}
			if got := decidedAlone(nodes); got != 0 {
				t.Errorf("pods have decided alone %d times", got)
			}
		})
	}
}

// T-12: pods that cannot reach the home of a user decide alone, and wait for the home only once. When the home is
// reachable again, it decides again, and counts all sessions.
func TestQuotaWithoutTheHome(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		home, others, u := nodes[0], nodes[1:], userAt(nodes[0], nodes, 0)
		const limit = 3
		n.lose(home)
		begun := time.Now()
		first := others[0].allocate(u, limit)
		time.Sleep(admitTimes*admitTimeout - time.Millisecond)
		synctest.Wait()
		if first.Load() != 0 {
			t.Errorf("an answer %d after %v", first.Load(), time.Since(begun))
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if first.Load() != 1 {
			t.Errorf("an answer %d after %v, want 1", first.Load(), time.Since(begun))
		}
		if list := allocateEach(u, 10, limit, others[:1]); list[0].Load() != 1 || list[1].Load() != 1 || list[2].Load() != -1 {
			t.Error("a pod waits for a home that has not answered")
		}
		allocateEach(u, 10, limit, others[1:])
		allocateEach(u, 10, limit, nodes[:1])
		time.Sleep(time.Second)
		if got := sessionsOf(u, nodes); got != int64(len(nodes)*limit) {
			t.Errorf("%d sessions while no pod can reach the home, want the quota of each pod", got)
		}
		n.regain(home)
		time.Sleep(countEvery + time.Second)
		for _, d := range nodes {
			d.leave(u)
		}
		settle()
		if list := allocateEach(u, 3, limit, nodes); sessionsOf(u, nodes) != 6 {
			settle()
			admitted, _, _ := answers(list)
			t.Errorf("%d admitted above the quota after the home is back", admitted)
		}
	})
}

// Sessions of a pod that has ended do not count. If the pod has left the list, or was replaced by a process with the
// same sessions, they stop counting at once. Otherwise they count until the numbers of the pod expire.
func TestQuotaForgets(t *testing.T) {
	for name, c := range map[string]struct {
		goes func(n *network, nodes []*node) []*node
		wait time.Duration
	}{
		"left": {func(_ *network, nodes []*node) []*node {
			publish(list(nodes[:2]...), nodes[:2]...)
			return nodes[:2]
		}, 0},
		"replaced": {func(n *network, nodes []*node) []*node {
			again := n.start(nodes[2].name)
			again.sessions.users = map[User]int64{}
			again.sessions.places = map[User]int64{}
			now := []*node{nodes[0], nodes[1], again}
			publish(list(now...), now...)
			return now
		}, 0},
		"cut off": {func(n *network, nodes []*node) []*node {
			n.lose(nodes[0]) // no number reaches the home
			return nodes
		}, countTime},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				nodes := n.cluster(3)
				u := userAt(nodes[0], nodes, 0)
				for range 2 {
					nodes[2].allocate(u, 2)
				}
				settle()
				if got := nodes[0].allocate(u, 2); got.Load() != -1 {
					t.Fatalf("the answer is %d although another pod has the quota", got.Load())
				}
				now := c.goes(n, nodes)
				if c.wait > 0 {
					time.Sleep(c.wait - countEvery - time.Second)
					if got := nodes[0].allocate(u, 2); got.Load() != -1 {
						t.Errorf("the answer is %d before the number expires", got.Load())
					}
					time.Sleep(countEvery + time.Second)
				}
				settle()
				if home := homeOf(u, now); home != nodes[0] {
					t.Fatalf("the home of the user is %s", home.name)
				}
				if got := nodes[0].allocate(u, 2); got.Load() != 1 {
					t.Errorf("the answer is %d after the pod has gone", got.Load())
				}
			})
		})
	}
}

// Each restored session counts once, and all homes get the numbers after a change of the list.
func TestQuotaOfRestoredSessions(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		u := userAt(nodes[0], nodes, 0)
		nodes[2].allocate(u, 3)
		nodes[2].allocate(u, 3)
		settle()
		again := n.start(nodes[2].name)
		again.sessions.users, again.sessions.places = map[User]int64{u: 2}, map[User]int64{u: 2}
		now := []*node{nodes[0], nodes[1], again}
		publish(list(now...), now...)
		list := allocateEach(u, 2, 3, now)
		settle()
		if admitted, _, open := answers(list); admitted != 1 || open != 0 {
			t.Errorf("%d admitted beside two restored sessions, %d open, want 1", admitted, open)
		}
		// One pod leaves, so the home of the user changes. The pod is also the home of other users.
		v := userAt(nodes[1], now, 0)
		for range 3 {
			nodes[0].allocate(v, 3)
		}
		settle()
		rest := []*node{nodes[0], again}
		publish(listOf(rest), rest...)
		lists := allocateEach(v, 2, 3, rest)
		settle()
		if admitted, _, _ := answers(lists); admitted != 0 {
			t.Errorf("%d admitted above the quota after the home has left", admitted)
		}
	})
}

func listOf(nodes []*node) Peers { return list(nodes...) }

// TestQuotaInARoughNetwork loses, duplicates and reorders frames. The sessions of a user never exceed the quota plus
// the sessions that pods have admitted alone. A user below the quota is never refused. The numbers are right
// afterwards.
func TestQuotaInARoughNetwork(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				random := rand.New(rand.NewPCG(seed, 3))
				nodes := n.cluster(4)
				n.roughen(rand.New(rand.NewPCG(seed, 4)))
				const limit = 5
				greedy, modest := userAt(nodes[0], nodes, 0), userAt(nodes[0], nodes, 1)
				var requests, allowed []*atomic.Int32
				for range 2000 {
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
					d := nodes[random.IntN(len(nodes))]
					d.sessions.mu.Lock()
					held := d.sessions.users[greedy]
					d.sessions.mu.Unlock()
					if held > 0 && random.IntN(4) == 0 {
						d.leave(greedy)
					} else {
						requests = append(requests, d.allocate(greedy, limit))
					}
					if got, most := sessionsOf(greedy, nodes), limit+int64(decidedAlone(nodes)); got > most {
						t.Fatalf("%d sessions, %d is the most", got, most)
					}
					if random.IntN(20) == 0 && nodes[0].sessionsOf(modest) == 0 {
						allowed = append(allowed, nodes[0].allocate(modest, limit))
					} else if nodes[0].sessionsOf(modest) > 0 {
						nodes[0].leave(modest)
					}
				}
				n.roughen(nil)
				time.Sleep(countEvery + 2*time.Second)
				if _, _, open := answers(requests); open != 0 {
					t.Errorf("%d requests have no answer", open)
				}
				if _, refused, _ := answers(allowed); refused > 0 || len(allowed) == 0 {
					t.Errorf("a user below the quota is refused %d of %d times", refused, len(allowed))
				}
				home := homeOf(greedy, nodes)
				home.quotas.mu.Lock()
				defer home.quotas.mu.Unlock()
				for _, d := range nodes {
					got, want := int64(0), d.sessionsOf(greedy)
					for _, c := range home.quotas.counts[greedy] {
						if c.sender == d.self.Sender {
							got = int64(c.sessions)
						}
					}
					if got != want {
						t.Errorf("the home counts %d sessions of %s, want %d", got, d.name, want)
					}
				}
			})
		})
	}
}

func (d *node) sessionsOf(u User) int64 { return sessionsOf(u, []*node{d}) }

// The readers of a pod may send their questions in another order than the order in which the sessions were counted.
func TestQuestionsOutOfOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		home, pod, u := nodes[0], nodes[1], userAt(nodes[0], nodes, 0)
		var answers []bool
		for _, sessions := range []uint32{2, 1} {
			pod.Admit(u, sessions, 3, func(ok bool) { answers = append(answers, ok) })
			settle()
		}
		if !slices.Equal(answers, []bool{true, true}) {
			t.Errorf("the answers are %v", answers)
		}
		if list := allocateEach(u, 2, 3, []*node{home}); list[0].Load() != 1 || list[1].Load() != -1 {
			t.Errorf("the home admits %d and %d beside two of three sessions", list[0].Load(), list[1].Load())
		}
	})
}

// An older frame does not replace the number of a newer frame. An answer of a pod that is not the home is ignored.
func TestQuotaFrames(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(3)
		home, pod, u := nodes[0], nodes[1], userAt(nodes[0], nodes, 0)
		tell := func(counter uint64, sessions uint32) {
			payload := binary.BigEndian.AppendUint64(appendCount(nil, u, sessions), counter)
			n.inject(pod, home, forge(pod, home, yesterday, counter, counts, nobody, payload))
			settle()
		}
		tell(1001, 3)
		tell(1000, 0)
		if got := home.allocate(u, 3); got.Load() != -1 {
			t.Errorf("an older frame has replaced a newer one: %d", got.Load())
		}
		tell(1002, 2)
		if got := home.allocate(u, 3); got.Load() != 1 {
			t.Errorf("a newer frame has not replaced an older one: %d", got.Load())
		}
		home.leave(u)
		settle()
		// A pod that is not the home answers.
		n.lose(home)
		asked := pod.allocate(u, 3)
		for id := range uint64(5) {
			verdict := append(binary.BigEndian.AppendUint64(nil, id), 0)
			n.inject(nodes[2], pod, forge(nodes[2], pod, yesterday, 2000+id, admitted, nobody, verdict))
		}
		settle()
		if asked.Load() != 0 {
			t.Errorf("a pod that was not asked has answered: %d", asked.Load())
		}
		if got := pod.Status().Refused["unasked"]; got != 4 { // id 0 is never used, and 2 to 4 are not used yet
			t.Errorf("%d answers are refused, want 4: %v", got, pod.Status().Refused)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if asked.Load() != 1 {
			t.Errorf("the answer is %d", asked.Load())
		}
	})
}

// The quota of a user costs little: two frames for each session, and one frame in each period for all users of one
// home.
func TestCostOfQuota(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		nodes := n.cluster(20)
		const users = 1000 // of one pod
		for i := range users {
			var u User
			binary.BigEndian.PutUint64(u[8:], mix(uint64(i)))
			nodes[0].allocate(u, 3)
		}
		settle()
		sent := len(n.frames())
		time.Sleep(2 * time.Second)
		n.frames()
		time.Sleep(countEvery)
		synctest.Wait()
		renewals, size := n.frames(), 0
		for _, f := range renewals {
			size += len(f.frame)
		}
		t.Logf("%d users in one of 20 pods: %d frames for their sessions; %d frames with %d bytes in each %v",
			users, sent, len(renewals), size, countEvery)
		if sent > 2*users || len(renewals) > 2*len(nodes) {
			t.Errorf("%d frames for %d sessions, and %d in each period", sent, users, len(renewals))
		}
		for _, f := range renewals {
			if len(f.frame) > 1200 {
				t.Errorf("a frame has %d bytes", len(f.frame))
			}
		}
		home := nodes[1]
		home.quotas.mu.Lock()
		for i := range maxCounts + 10 {
			var u User
			binary.BigEndian.PutUint64(u[:], uint64(i))
			home.store(u, count{sessions: 1, counter: 1, until: countTime})
		}
		if got := home.quotas.counted; got != maxCounts || len(home.quotas.counts) > maxCounts {
			t.Errorf("%d numbers are stored, want %d", got, maxCounts)
		}
		home.quotas.mu.Unlock()
		home.sweepQuotas(time.Hour)
		if got := len(home.quotas.counts) + home.quotas.counted; got != 0 {
			t.Errorf("%d numbers are stored after their time", got)
		}
	})
}

// BenchmarkAdmits is the cost of a decision of a home with 10,000 users that have sessions in several pods.
func BenchmarkAdmits(b *testing.B) {
	for _, pods := range []int{1, 3, 10} {
		b.Run(fmt.Sprint(pods, " pods"), func(b *testing.B) {
			f := &Forwarder{quotas: newQuotas()}
			v := &view{senders: map[[8]byte]*link{}}
			users := make([]User, 10_000)
			for i := range users {
				binary.BigEndian.PutUint64(users[i][:], uint64(i))
			}
			for i := range pods {
				sender := [8]byte{byte(i + 1)}
				v.senders[sender] = &link{}
				for _, u := range users {
					f.store(u, count{sender: sender, sessions: 1, counter: 1, until: countTime})
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				next := count{sender: [8]byte{1}, sessions: 1, counter: uint64(i + 2), until: countTime}
				if !f.admits(v, users[i%len(users)], next, 100) {
					b.Fatal("refused")
				}
			}
		})
	}
}
