package gate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// first returns a first request of a client, without a nonce.
func (v *virtual) first() []byte { return v.build(request4(stun.MethodAllocate), udp) }

// T-10: behind an address that many clients share, every new client gets its challenge during a flood, whether the
// flood uses one or random ports, and one or many transaction IDs. A client sends its request at most seven times.
func TestFloodPreventsNoChallenge(t *testing.T) {
	const perClient = 12_000 // requests in the 200 ms before a client repeats its own: 60,000 a second
	for name, flood := range map[string]func(v *virtual, dice *rand.Rand, i int) (*client, []byte){
		"one socket": func(
			v *virtual, _ *rand.Rand, _ int,
		) (*client, []byte) {
			return newClient("10.0.0.1:1"), v.first()
		},
		"ports at random": func(v *virtual, dice *rand.Rand, _ int) (*client, []byte) {
			return newClient(fmt.Sprint("10.0.0.1:", 1+dice.IntN(65535))), v.first()
		},
	} {
		for _, repeated := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", one request: ", repeated), func(t *testing.T) {
				virtually(t, func(v *virtual) {
					dice := rand.New(rand.NewPCG(1, 2))
					_, same := flood(v, dice, 0)
					late := 0
					for i := range 4 {
						c, asked, tries := newClient(fmt.Sprint("10.0.0.1:", 60_000+i)), v.first(), 0
						for answered := false; !answered && tries < 8; tries++ {
							time.Sleep(200 * time.Millisecond)
							for j := range perClient {
								from, raw := flood(v, dice, j)
								if repeated {
									raw = same
								}
								from.frames = make(chan []byte, 1)
								v.Receive(raw, from)
							}
							answered = v.send(c, asked) != nil
						}
						if tries > 7 {
							t.Errorf("client %d has no challenge after seven requests", i)
						}
						late = max(late, tries)
					}
					if name == "ports at random" && late < 2 {
						t.Error("the flood has taken nothing: this shows nothing")
					}
				})
			})
		}
	}
}

// T-10: one socket behind a load balancer gets few answers, even if it repeats its requests. The number of answers of a
// listener is bounded.
func TestOneSocketGetsFewAnswers(t *testing.T) {
	virtually(t, func(v *virtual) {
		answers, c, raw := 0, newClient("10.0.0.1:1"), v.first()
		for range 10_000 {
			if v.send(c, raw) != nil {
				answers++
			}
		}
		if want := limit.TupleBurst + limit.TupleRepeatBurst; answers != want {
			t.Errorf("%d answers to 10,000 requests of one socket, want %d", answers, want)
		}
		all := 0
		for i := range 20_000 {
			c, raw := newClient(fmt.Sprintf("10.0.%d.1:%d", i/60_000, 2+i)), v.first()
			for range 3 {
				if v.send(c, raw) != nil {
					all++
				}
			}
		}
		if most := limit.ChallengeBurst*limit.PrivateFactor + limit.RepeatBurst; all > most || all < most/2 {
			t.Errorf("%d answers to 60,000 requests at once, want at most %d", all, most)
		}
	})
}

// T-10: each listener has its own limit.
func TestListenersHaveTheirOwnChallenges(t *testing.T) {
	virtually(t, func(v *virtual) {
		for i := range 3000 {
			v.send(newClient(fmt.Sprint("10.0.0.1:", 1+i)), v.first())
		}
		one := v.Gate
		other := New("other", one.protocol, Shared{
			Engine: one.engine, Nonces: one.nonces, Network: one.network, Reservations: one.reservations,
			Limits: one.limits, Table: one.table, Meter: one.meter, Log: one.log,
		})
		other.Update(policy(), routes())
		c := newClient("10.0.0.1:60000")
		other.Receive(v.first(), c)
		if len(c.frames) != 1 {
			t.Error("a flood of one listener silences another")
		}
		if one.Receive(v.first(), c); len(c.frames) != 1 {
			t.Error("the flood has taken nothing: this shows nothing")
		}
	})
}

// T-10: a session with an expired nonce gets a 438 during a flood of requests from its address.
func TestFloodPreventsNoNewNonceOfASession(t *testing.T) {
	virtually(t, func(v *virtual) {
		c := newClient("203.0.113.7:9")
		v.allocate(c)
		for i := range 100 {
			v.send(newClient(fmt.Sprint("203.0.113.7:", 100+i)), v.first())
		}
		stale := v.build(request4(stun.MethodRefresh), stun.NewUsername(username), stun.NewRealm(realm), stun.NewNonce(
			"of another day",
		),
			stun.NewLongTermIntegrity(username, realm, password))
		if code := codeOf(v.send(c, stale)); code != 438 {
			t.Errorf("%d, want 438", code)
		}
		answers := 0
		for range 1000 {
			if v.send(c, stale) != nil {
				answers++
			}
		}
		if answers > limit.TupleBurst {
			t.Errorf("%d answers to 1,000 requests in the name of a session", answers)
		}
	})
}
