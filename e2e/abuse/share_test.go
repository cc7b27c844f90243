package abuse

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// private is a private address, such as that of a load balancer that forwards traffic of many clients. elsewhere is
// another one.
var private, elsewhere = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")

// behind runs the test in a network namespace in which 10.77.0.0/24 is local, and reports whether this process is in
// it.
func behind(t *testing.T) bool {
	t.Helper()
	if !netns.Isolated(t) {
		return false
	}
	if out, err := exec.Command("ip", "address", "add", "10.77.0.1/24", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("add addresses: %v: %s", err, out)
	}
	return true
}

// allocations returns the number of allocations created so far.
func (d *target) allocations(t *testing.T) int { return int(d.metric(t, "stunner_allocations_total")) }

// T-07: guessing 20,000 passwords does not succeed although the right one is among them, and the user can allocate from
// another address meanwhile. The guesses come from one public address on which the user has a call, or from one private
// address with a new port each.
func TestT07Guessing(t *testing.T) {
	siege(t, func(d *target, _ *call.Call) {
		guesser := d.client(t, public, user, "guess")
		if code := d.ask(t, guesser, stun.MethodAllocate, ask.UDP()); code != stun.CodeUnauthorized {
			t.Errorf("wrong password: %d", code)
		}
		f := newFlood(t, d, guesser)
		for i := range list {
			if i%5000 == 0 {
				if code := d.ask(
					t, d.client(t, public.Next(), user, password), stun.MethodAllocate, ask.UDP(),
				); code != 0 {
					t.Errorf("the right password elsewhere: %d", code)
				}
			}
			f.send(guess(guesser, i))
		}
		if answers := f.answers(); answers > 19 { // plus the response above
			t.Errorf("%d responses to %d guesses", answers, list)
		}
		// A second correct guess would get 437.
		if n := d.metric(t, `stunner_refused_total{reason="allocation_exists"}`); n > 0 {
			t.Error("the password was guessed")
		}
	})
}

// list is the number of passwords, and right the position of the correct one, which is included twice. It directly
// follows other guesses: after a pause, the limiter would admit a guess.
const list, right = 20_000, 10_000/few*few + few - 2

// guess returns the guess at a position of the list.
func guess(c *ask.Client, i int) []byte {
	if i == right-1 || i == right {
		return c.With(user, password, stun.MethodAllocate, ask.UDP())
	}
	return c.With(user, fmt.Sprint("guess ", i), stun.MethodAllocate, ask.UDP())
}

// T-07: the same from behind a load balancer, with a new port for each guess. The password is not guessed, and neither
// clients at other addresses nor calls at this address are affected.
func TestT07GuessingBehindALoadBalancer(t *testing.T) {
	if !behind(t) {
		return
	}
	d := start(t)
	live, err := call.Start(t.Context(), call.Options{
		Gateway: netip.AddrPortFrom(private, uint16(d.ports[call.UDP])), Network: call.UDP, Username: user,
		Password: password, Peer: d.peer,
	})
	if err != nil {
		t.Fatal(err)
	}
	guesser := d.clientAt(t, private, user, "guess")
	d.ask(t, guesser, stun.MethodAllocate, ask.UDP())
	before := d.allocations(t)
	f := newForger(t, d, private)
	for i := range list {
		f.send(uint16(10_000+i), guess(guesser, i))
	}
	f.arrived()
	if found := d.allocations(t) - before; found > 0 {
		t.Errorf("the password was guessed: %d allocations of the attacker", found)
	}
	if code := d.ask(t, d.clientAt(t, elsewhere, user, password), stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Errorf("the right password at another private address: %d", code)
	}
	if err := live.Renew(); err != nil {
		t.Errorf("a call at the address of the attacker: %v", err)
	}
	if s := live.End(patience); s.Lost > 0 {
		t.Errorf("call: %s", s)
	}
}

const secret = "a shared secret of some length"

// mint returns an ephemeral credential of a user ID.
func mint(t *testing.T, id string) credential.Credential {
	t.Helper()
	c, err := credential.Authority{SharedSecret: secret}.Mint(id, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allocate sends an Allocate request from an address, and returns the client with the error code.
func (d *target) allocate(
	t *testing.T, from netip.Addr, c credential.Credential, attrs ...stun.Setter,
) (*ask.Client, stun.ErrorCode) {
	t.Helper()
	client, err := ask.Dial(
		from, netip.AddrPortFrom(private, uint16(d.ports[call.UDP])), c.Username, string(c.Password),
	)
	if err != nil {
		t.Error(err)
		return nil, 0
	}
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, _, err := client.Do(ctx, stun.MethodAllocate, append(attrs, ask.UDP())...)
	if err != nil {
		t.Errorf("allocate as %s from %s: %v", c.Username, from, err)
	}
	return client, ask.Code(answer)
}

// T-12: the holder of one credential tries continuously to use all 2,000 descriptors of a process. 300 callers that
// share one user ID and one address get their allocations, also if the holder has the same user ID or address. Other
// users do too.
func TestT12OneHolderDoesNotTakeTheProcess(t *testing.T) {
	if !behind(t) {
		return
	}
	const files, callers = 2000, 300
	for name, holder := range map[string]struct {
		id   string
		from netip.Addr
	}{
		"a stranger": {"greedy", elsewhere}, "the same user id": {"app", elsewhere},
		"the same address": {"greedy", private},
	} {
		t.Run(name, func(t *testing.T) {
			d := startWith(t, settings{files: files, secret: secret})
			greedy, app := mint(t, holder.id), mint(t, "app")
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
					t, netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}), mint(t, fmt.Sprint("user ", i)),
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

// T-12: a user that reserves ports and ends the allocations keeps no reservation, and does not block other users.
func TestT12ReservedPortsAreNotHoarded(t *testing.T) {
	if !behind(t) {
		return
	}
	d := startWith(t, settings{secret: secret})
	pair := stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{0x80}}
	descriptors := func() int {
		list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(d.process.PID()), "fd"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before, hoarder := descriptors(), mint(t, "hoarder")
	for range 300 {
		c, code := d.allocate(t, private, hoarder, pair)
		if code != 0 {
			t.Fatalf("allocate with a reserved port: %d", code)
		}
		if code := d.ask(t, c, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
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
	if _, code := d.allocate(t, private, mint(t, "another"), pair); code != 0 {
		t.Errorf("another user requests a reserved port: %d", code)
	}
}

// T-10: 60,000 first requests per second, from one socket or from random ports of the callers' address, prevent none of
// 40 new calls.
func TestT10FloodKeepsNobodyOut(t *testing.T) {
	if !behind(t) {
		return
	}
	const rate, calls, atATime, usual = 60_000, 40, 8, 7500 * time.Millisecond
	for _, ports := range []int{1, 60_000} {
		for _, repeated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d ports, one request %v", ports, repeated), func(t *testing.T) {
				d := start(t)
				f := newForger(t, d, private)
				var sent atomic.Int64
				done, flooding := make(chan struct{}), sync.WaitGroup{}
				began := time.Now()
				t.Cleanup(flooding.Wait)
				end := sync.OnceFunc(func() { close(done) })
				t.Cleanup(end)
				flooding.Go(func() { sent.Store(int64(f.firstRequests(done, rate, ports, repeated))) })
				d.await(t, patience, func(ctx context.Context) error { // until then the flood is below the limit
					if n, err := d.read(ctx, `stunner_dropped_total{reason="rate_limited"}`); err != nil || n < 1000 {
						return fmt.Errorf("%.0f requests not answered: %w", n, err)
					}
					return nil
				})
				var failed, slowest atomic.Int64
				turn := make(chan struct{}, atATime)
				var calling sync.WaitGroup
				for range calls {
					turn <- struct{}{}
					calling.Go(func() {
						defer func() { <-turn }()
						took, err := d.newCall(t.Context(), usual)
						if err != nil {
							failed.Add(1)
							t.Logf("new call: %v", err)
						}
						for was := slowest.Load(); int64(took) > was &&
							!slowest.CompareAndSwap(was, int64(took)); was = slowest.Load() {
						}
					})
				}
				calling.Wait()
				end()
				flooding.Wait()
				t.Logf("%.0f requests a second, slowest set-up %s, %d not answered", float64(sent.Load())/time.Since(
					began,
				).Seconds(),
					time.Duration(slowest.Load()), d.dropped(t, "rate_limited"))
				if n := failed.Load(); n > 0 {
					t.Errorf("%d of %d new calls failed", n, calls)
				}
			})
		}
	}
}

// newCall makes a call, waits for one echo and ends it.
func (d *target) newCall(ctx context.Context, patience time.Duration) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := call.Start(ctx, call.Options{
		Gateway: netip.AddrPortFrom(private, uint16(d.ports[call.UDP])), Network: call.UDP, Username: user,
		Password: password, Peer: d.peer,
	})
	if err != nil {
		return time.Since(began), err
	}
	err = c.Await(ctx, 1)
	c.End(time.Second)
	return time.Since(began), err
}

// clientAt returns a raw client at a private address.
func (d *target) clientAt(t *testing.T, from netip.Addr, user, password string) *ask.Client {
	t.Helper()
	c, err := ask.Dial(from, netip.AddrPortFrom(private, uint16(d.ports[call.UDP])), user, password)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// forger sends datagrams from ports of an address without owning sockets there.
type forger struct {
	*flood
	raw  int
	from netip.Addr
	to   netip.AddrPort
}

func newForger(t *testing.T, d *target, from netip.Addr) *forger {
	t.Helper()
	raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(raw) })
	return &forger{
		flood: &flood{t: t, port: fmt.Sprintf(":%04X", d.ports[call.UDP])}, raw: raw, from: from,
		to: netip.AddrPortFrom(private, uint16(d.ports[call.UDP])),
	}
}

// send sends as fast as the dataplane reads.
func (f *forger) send(port uint16, payload []byte) {
	f.t.Helper()
	if f.sent++; f.sent%few == 0 {
		f.below(much)
	}
	if err := f.forge(port, payload); err != nil {
		f.t.Fatal(err)
	}
}

func (f *forger) forge(port uint16, payload []byte) error {
	packet := ipv4(f.from, port, f.to.Addr(), f.to.Port(), payload)
	return syscall.Sendto(f.raw, packet, 0, &syscall.SockaddrInet4{Addr: f.to.Addr().As4()})
}

// firstRequests sends requests without credentials at a rate until done is closed, and returns their number.
func (f *forger) firstRequests(done <-chan struct{}, rate, ports int, repeated bool) (sent int) {
	dice := rand.New(rand.NewPCG(10, 10))
	first := func() []byte {
		return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest), ask.UDP()).Raw
	}
	raw, tick := first(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-done:
			return sent
		case <-tick.C:
		}
		for due := min(int(time.Since(began).Seconds()*float64(rate)), sent+rate/100); sent < due; sent++ {
			if !repeated {
				raw = first()
			}
			if err := f.forge(uint16(1024+dice.IntN(ports)), raw); err != nil {
				f.t.Error(err)
				return sent
			}
		}
	}
}
