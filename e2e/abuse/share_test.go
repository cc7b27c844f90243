package abuse

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// allocations returns the number of allocations created so far.
func (d *target) allocations(t *testing.T) int { return int(d.metric(t, "stunner_allocations_total")) }

// T-07: of 20,000 guessed passwords none is accepted, although the right password is among them. Meanwhile the user can
// allocate from another address. The guesses come from one public address on which the user has a call, or from one
// private address with a new port each.
func TestPasswordIsNotGuessedFromOneAddress(t *testing.T) {
	siege(t, func(d *target, _ *call.Call) {
		guesser := d.client(t, public, public, user, "guess")
		if code := codeOf(t, guesser, stun.MethodAllocate, ask.UDP()); code != stun.CodeUnauthorized {
			t.Errorf("wrong password: %d", code)
		}
		f := newFlood(t, d, guesser)
		for i := range list {
			if i%5000 == 0 {
				c := d.client(t, public.Next(), public, user, password)
				if code := codeOf(t, c, stun.MethodAllocate, ask.UDP()); code != 0 {
					t.Errorf("the right password elsewhere: %d", code)
				}
			}
			f.send(guess(guesser, i))
		}
		if answers := f.answers(); answers > 19 { // at most 20, with the response above
			t.Errorf("%d responses to %d guesses", answers, list)
		}
		// A second correct guess would get 437.
		if n := d.metric(t, `stunner_refused_total{reason="allocation_exists"}`); n > 0 {
			t.Error("the password was guessed")
		}
	})
}

// list is the number of passwords. right is the position of the correct password, which the list also contains directly
// before. The correct guesses directly follow other guesses, because after a pause the limiter would admit a guess.
const list, right = 20_000, 10_000/few*few + few - 2

// guess returns the guess at a position of the list.
func guess(c *ask.Client, i int) []byte {
	if i == right-1 || i == right {
		return c.With(user, password, stun.MethodAllocate, ask.UDP())
	}
	return c.With(user, fmt.Sprint("guess ", i), stun.MethodAllocate, ask.UDP())
}

// T-07: the same guesses behind a load balancer, with a new port for each. The password is not found. Neither clients
// at other addresses nor calls at this address are affected.
func TestPasswordIsNotGuessedFromManyPorts(t *testing.T) {
	t.Parallel()
	d := start(t)
	live, err := call.Start(t.Context(), d.options(call.UDP, private))
	must(t, err)
	guesser := d.client(t, private, private, user, "guess")
	codeOf(t, guesser, stun.MethodAllocate, ask.UDP())
	before := d.allocations(t)
	f := newForger(t, d)
	for i := range list {
		f.send(uint16(10_000+i), guess(guesser, i))
	}
	f.arrived()
	if found := d.allocations(t) - before; found > 0 {
		t.Errorf("the password was guessed: %d allocations of the attacker", found)
	}
	other := d.client(t, elsewhere, private, user, password)
	if code := codeOf(t, other, stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Errorf("the right password at another private address: %d", code)
	}
	if err := live.Renew(); err != nil {
		t.Errorf("a call at the address of the attacker: %v", err)
	}
	if s := live.End(timeout); s.Lost > 0 {
		t.Errorf("call: %s", s)
	}
}

const secret = "a shared secret of some length"

// mint returns an ephemeral credential of a user ID.
func mint(id string) credential.Credential {
	c, err := credential.Authority{SharedSecret: secret}.Mint(id, time.Hour, time.Now())
	if err != nil {
		panic(err) // the ID in the test is not valid
	}
	return c
}

// allocate sends an Allocate request from an address, and returns the client with the error code.
func (d *target) allocate(
	t *testing.T, from netip.Addr, c credential.Credential, attrs ...stun.Setter,
) (*ask.Client, stun.ErrorCode) {
	t.Helper()
	client := d.client(t, from, private, c.Username, string(c.Password))
	return client, codeOf(t, client, stun.MethodAllocate, append(attrs, ask.UDP())...)
}

// T-12: one user tries continuously to use all 2,000 descriptors of a process. 150 callers that share one user ID and
// one address get their allocations, even if this user has the same user ID or address. Other users get theirs too.
func TestOneUserDoesNotTakeAllAllocations(t *testing.T) {
	t.Parallel()
	const files, callers = 2000, 150
	for name, holder := range map[string]struct {
		id   string
		from netip.Addr
	}{
		"another user and address": {"greedy", elsewhere}, "the same user id": {"app", elsewhere},
		"the same address": {"greedy", private},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startWith(t, settings{files: files, secret: secret})
			greedy, app := mint(holder.id), mint("app")
			held := 0
			for ; held < files; held++ {
				if _, code := d.allocate(t, holder.from, greedy); code != 0 {
					if code != stun.CodeInsufficientCapacity {
						t.Errorf("the holder gets error %d", code)
					}
					break
				}
			}
			capacity := int(d.metric(t, "stunner_allocations_capacity"))
			if held < capacity*3/4 || held > capacity*4/5+1 {
				t.Errorf("the holder has %d of %d allocations", held, capacity)
			}
			var more atomic.Int64
			done, trying := make(chan struct{}), sync.WaitGroup{}
			trying.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						if _, code := d.allocate(t, holder.from, greedy); code == 0 {
							more.Add(1)
						}
					}
				}
			})
			refused := map[stun.ErrorCode]int{}
			for range callers {
				if _, code := d.allocate(t, private, app); code != 0 {
					refused[code]++
				}
			}
			for i := range 20 {
				if _, code := d.allocate(
					t, netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}), mint(fmt.Sprint("user ", i)),
				); code != 0 {
					t.Errorf("another user at another address: %d", code)
				}
			}
			close(done)
			trying.Wait()
			if len(refused) > 0 {
				t.Errorf("refusals of %d callers by code: %v", callers, refused)
			}
			t.Logf(
				"the holder has %d of %d allocations, and got %d more while others allocated", held, capacity,
				more.Load(),
			)
		})
	}
}

// T-12: 300 users behind one public address, as in a conference, each get an allocation. Another user there tries to
// use all descriptors of the process: the 300 keep their allocations, and further users there and elsewhere get theirs.
func TestUsersBehindOneAddress(t *testing.T) {
	t.Parallel()
	const files, users = 2000, 300
	d := startWith(t, settings{files: files, secret: secret})
	room := make([]*ask.Client, 0, users)
	refused := map[stun.ErrorCode]int{}
	for i := range users {
		c, code := d.allocate(t, public, mint(fmt.Sprint("user ", i)))
		if code != 0 {
			refused[code]++
			continue
		}
		room = append(room, c)
	}
	if len(refused) > 0 {
		t.Fatalf("%d of %d users behind one address get an allocation; refusals by code: %v", len(room), users, refused)
	}
	greedy, held := mint("greedy"), 0
	for ; held < files; held++ {
		if _, code := d.allocate(t, public, greedy); code != 0 {
			if code != stun.CodeInsufficientCapacity {
				t.Errorf("the user that takes all gets error %d", code)
			}
			break
		}
	}
	if capacity := int(d.metric(t, "stunner_allocations_capacity")); held < capacity/2 {
		t.Fatalf("TEST NOT VALID: one user has %d of %d allocations", held, capacity)
	}
	for i, c := range room {
		if code := codeOf(t, c, stun.MethodRefresh); code != 0 {
			t.Errorf("refresh of user %d: %d", i, code)
		}
	}
	for i := range 40 {
		if _, code := d.allocate(t, public, mint(fmt.Sprint("late user ", i))); code != 0 {
			t.Errorf("late user %d behind the address: %d", i, code)
		}
		if _, code := d.allocate(t, private, mint(fmt.Sprint("distant user ", i))); code != 0 {
			t.Errorf("user %d at another address: %d", i, code)
		}
	}
}

// T-12: a user that reserves ports and ends the allocations keeps no reservation, and does not block other users.
func TestReservedPortsOfOneUserAreBounded(t *testing.T) {
	t.Parallel()
	d := startWith(t, settings{secret: secret})
	pair := stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{0x80}}
	descriptors := func() int {
		list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(d.process.PID()), "fd"))
		must(t, err)
		return len(list)
	}
	before, hoarder := descriptors(), mint("hoarder")
	for range 300 {
		c, code := d.allocate(t, private, hoarder, pair)
		if code != 0 {
			t.Fatalf("allocate with a reserved port: %d", code)
		}
		if code := codeOf(t, c, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
			t.Fatalf("end of an allocation: %d", code)
		}
	}
	if after := descriptors(); after > before+10 {
		t.Errorf("%d more descriptors for a user without an allocation", after-before)
	}
	kept := 0
	for range 50 {
		if _, code := d.allocate(t, private, hoarder, pair); code == 0 {
			kept++
		}
	}
	if kept == 0 || kept > 10 {
		t.Errorf("one user has %d reserved ports", kept)
	}
	if _, code := d.allocate(t, private, mint("another"), pair); code != 0 {
		t.Errorf("another user requests a reserved port: %d", code)
	}
}

// T-10: 60,000 first requests per second, from one socket or from random ports of the callers' address, prevent none of
// 40 new calls.
func TestFloodPreventsNoCalls(t *testing.T) {
	t.Parallel()
	const rate, calls, atATime, usual = 60_000, 40, 8, 7500 * time.Millisecond
	for _, ports := range []int{1, 60_000} {
		for _, repeated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d ports, one request %v", ports, repeated), func(t *testing.T) {
				d := start(t)
				f := newForger(t, d)
				var sent atomic.Int64
				done, flooding := make(chan struct{}), sync.WaitGroup{}
				began := time.Now()
				t.Cleanup(flooding.Wait)
				end := sync.OnceFunc(func() { close(done) })
				t.Cleanup(end)
				flooding.Go(func() { sent.Store(int64(f.firstRequests(done, rate, ports, repeated))) })
				d.await(t, timeout, func(ctx context.Context) error { // before that, the flood is below the rate limit
					if n, err := d.read(ctx, `stunner_dropped_total{reason="rate_limited"}`); err != nil || n < 1000 {
						return fmt.Errorf("%.0f requests not answered: %w", n, err)
					}
					return nil
				})
				var failed atomic.Int64
				turn := make(chan struct{}, atATime)
				var calling sync.WaitGroup
				for range calls {
					turn <- struct{}{}
					calling.Go(func() {
						defer func() { <-turn }()
						if _, err := d.newCall(t.Context(), call.UDP, private, usual); err != nil {
							failed.Add(1)
							t.Logf("new call: %v", err)
						}
					})
				}
				calling.Wait()
				end()
				flooding.Wait()
				t.Logf("%.0f requests a second, %d not answered",
					float64(sent.Load())/time.Since(began).Seconds(), d.dropped(t, "rate_limited"))
				if n := failed.Load(); n > 0 {
					t.Errorf("%d of %d new calls failed", n, calls)
				}
			})
		}
	}
}

// forger sends datagrams from ports of a private address without owning sockets there.
type forger struct {
	*flood
	raw netns.RawSocket
	to  netip.AddrPort
}

func newForger(t *testing.T, d *target) *forger {
	t.Helper()
	return &forger{
		flood: &flood{t: t, port: uint16(d.ports[call.UDP])}, raw: netns.NewRawSocket(t), to: d.at(private, call.UDP),
	}
}

// send sends as fast as the dataplane reads.
func (f *forger) send(port uint16, payload []byte) {
	f.t.Helper()
	if f.sent++; f.sent%few == 0 {
		f.below(much)
	}
	must(f.t, f.forge(port, payload))
}

func (f *forger) forge(port uint16, payload []byte) error {
	return f.raw.Send(netip.AddrPortFrom(private, port), f.to, payload)
}

// firstRequests sends requests without credentials at a rate until done is closed, and returns their number.
func (f *forger) firstRequests(done <-chan struct{}, rate, ports int, repeated bool) (sent int) {
	dice := rand.New(rand.NewPCG(10, 10))
	raw, tick := firstRequest(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-done:
			return sent
		case <-tick.C:
		}
		for due := min(int(time.Since(began).Seconds()*float64(rate)), sent+rate/100); sent < due; sent++ {
			if !repeated {
				raw = firstRequest()
			}
			if err := f.forge(uint16(1024+dice.IntN(ports)), raw); err != nil {
				f.t.Error(err)
				return sent
			}
		}
	}
}
