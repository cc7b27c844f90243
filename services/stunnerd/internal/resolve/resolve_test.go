package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zone answers lookups of IPv4 addresses. It has IPv6 addresses only if six is set.
type zone struct {
	mu    sync.Mutex
	four  []netip.Addr
	six   []netip.Addr
	err   error
	asked map[string][]time.Time
}

func (z *zone) lookup(_ context.Context, family, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.asked == nil {
		z.asked = map[string][]time.Time{}
	}
	z.asked[family+" "+host] = append(z.asked[family+" "+host], time.Now())
	switch {
	case family == "ip6":
		return z.six, nil
	case z.err != nil:
		return nil, z.err
	}
	return z.four, nil
}

// set changes the answers.
func (z *zone) set(err error, four ...netip.Addr) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.four, z.err = four, err
}

func (z *zone) times(question string) []time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked[question])
}

func addrs(list ...string) (parsed []netip.Addr) {
	for _, a := range list {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

// numbered returns n addresses in random order.
func numbered(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	rand.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// watching is a resolver in virtual time that counts the calls of changed.
type watching struct {
	*Resolver
	told atomic.Int64
}

func newWatching(t *testing.T, lookup Lookup, hosts ...string) *watching {
	w := new(watching)
	w.Resolver = New(lookup, func() { w.told.Add(1) }, slog.New(slog.DiscardHandler))
	t.Cleanup(w.Close)
	w.Watch(hosts)
	synctest.Wait()
	return w
}

// after waits and returns the addresses of sfu.test.
func (w *watching) after(d time.Duration) []netip.Addr {
	time.Sleep(d)
	synctest.Wait()
	return w.Answers()["sfu.test"]
}

var errTrouble = errors.New("name server in trouble")

func TestAnswersChangeAtOnceAndChangedIsCalledSoonAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1"), six: addrs("2001:db8::1")}
		w := newWatching(t, z.lookup, "sfu.test")
		if got := w.Answers()["sfu.test"]; !slices.Equal(got, addrs("192.0.2.1", "2001:db8::1")) {
			t.Errorf("addresses %v", got)
		}
		if w.after(time.Minute); w.told.Load() != 1 {
			t.Errorf("told %d times, want once for both families", w.told.Load())
		}
	})
}

// while lookups fail, the last addresses are kept without a time limit.
func TestFailureKeepsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1", "192.0.2.2")}
		w := newWatching(t, z.lookup, "sfu.test")
		z.set(errTrouble)
		if got := w.after(24 * time.Hour); !slices.Equal(got, addrs("192.0.2.1", "192.0.2.2")) {
			t.Errorf("addresses %v after a day of failures", got)
		}
		z.set(nil, addrs("192.0.2.3")...)
		if got := w.after(Interval); !slices.Equal(got, addrs("192.0.2.3")) {
			t.Errorf("addresses %v after the trouble", got)
		}
	})
}

// a failure before the first answer gives no addresses.
func TestFailureBeforeTheFirstAnswerGivesNoAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t, (&zone{err: errTrouble}).lookup, "sfu.test")
		if got := w.after(time.Hour); got != nil || len(w.Answers()) != 0 || w.told.Load() != 0 {
			t.Errorf("addresses %v, told %d times", w.Answers(), w.told.Load())
		}
	})
}

// addresses are dropped after a minute of answers without addresses, not earlier.
func TestAddressesAreDroppedAfterAMinuteWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test")
		z.set(nil)
		// The first lookup without addresses is between four fifths of an interval and one interval from now.
		if got := w.after(KeepMissing + Interval*4/5 - time.Nanosecond); len(got) != 1 {
			t.Error("addresses are gone within a minute")
		}
		if got := w.after(Interval*6/5 + batchDelay); len(got) != 0 {
			t.Errorf("addresses %v are still there", got)
		}
		if w.told.Load() != 2 {
			t.Errorf("told %d times, want 2", w.told.Load())
		}
	})
}

func TestTheMinuteBeginsAgainAfterAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test")
		for range 5 {
			z.set(nil)
			if got := w.after(KeepMissing - 2*Interval); len(got) != 1 {
				t.Fatal("addresses are gone")
			}
			z.set(nil, addrs("192.0.2.1")...)
			w.after(Interval)
		}
		if w.told.Load() != 1 {
			t.Errorf("told %d times though nothing changed", w.told.Load())
		}
	})
}

func TestFailureNeitherEndsNorProlongsAnAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test")
		z.set(nil)
		w.after(Interval)
		z.set(errTrouble)
		if got := w.after(time.Hour); len(got) != 1 {
			t.Error("a failure has ended the addresses")
		}
		z.set(nil)
		if got := w.after(Interval); len(got) != 0 {
			t.Errorf("addresses %v though there was none an hour ago and is none now", got)
		}
	})
}

func TestAddressFamiliesFailIndependently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1"), six: addrs("2001:db8::1")}
		w := newWatching(t, z.lookup, "sfu.test")
		z.set(errTrouble)
		z.mu.Lock()
		z.six = addrs("2001:db8::2")
		z.mu.Unlock()
		if got := w.after(Interval); !slices.Equal(got, addrs("192.0.2.1", "2001:db8::2")) {
			t.Errorf("addresses %v", got)
		}
	})
}

// a name is looked up at most once a second and at least every five seconds, and lookups of different names
// spread.
func TestIntervalOfLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test", "mcu.test")
		w.after(time.Hour)
		for question, times := range z.asked {
			for i := range len(times) - 1 {
				if gap := times[i+1].Sub(times[i]); gap < time.Second || gap > Interval {
					t.Fatalf("%s: pause of %s", question, gap)
				}
			}
		}
		if slices.Equal(z.times("ip4 sfu.test")[1:10], z.times("ip4 mcu.test")[1:10]) {
			t.Error("two names are asked for at the same times")
		}
	})
}

func TestNameThatMovesEachSecondIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w := newWatching(t, func(_ context.Context, family, _ string) ([]netip.Addr, error) {
			if family == "ip6" {
				return nil, nil
			}
			return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(time.Since(start) / time.Second)})}, nil
		}, "sfu.test")
		for range 120 {
			if got := w.after(time.Second); len(got) != 1 {
				t.Fatalf("addresses %v, want the last answer and nothing else", got)
			}
		}
		if n := w.told.Load(); n < 120/5 || n > 120/4+1 {
			t.Errorf("told %d times in two minutes", n)
		}
	})
}

// the order of an answer does not matter, and the number of addresses is bounded.
func TestAThousandAddressesAreKeptInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: numbered(1500), six: addrs("2001:db8::1")}
		w := newWatching(t, z.lookup, "sfu.test")
		before := w.after(batchDelay)
		if len(before) != MaxAddresses {
			t.Errorf("%d addresses are kept", len(before))
		}
		for range 10 {
			z.set(nil, numbered(1500)...)
			if got := w.after(Interval); !slices.Equal(got, before) {
				t.Fatal("the same addresses in another order are other addresses")
			}
		}
		if w.told.Load() != 1 {
			t.Errorf("told %d times though nothing changed", w.told.Load())
		}
	})
}

func TestMappedAddressesAreUnmapped(t *testing.T) {
	got := normalize(addrs("2001:db8::1", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.0"))
	if want := addrs("192.0.2.0", "192.0.2.1", "2001:db8::1"); !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
}

func TestNamesAreLookedUpOnceAndOnlyWhileWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test", "mcu.test", "sfu.test")
		if n := len(z.times("ip4 sfu.test")); n != 1 {
			t.Errorf("%d lookups of a name that is there twice", n)
		}
		w.Watch([]string{"sfu.test", "mcu.test"})
		synctest.Wait()
		if n := len(z.times("ip4 sfu.test")); n != 1 {
			t.Errorf("a config that names it again makes a lookup")
		}
		w.Watch([]string{"mcu.test"})
		if w.after(time.Minute) != nil {
			t.Error("the name is still known")
		}
		if n := len(z.times("ip4 sfu.test")); n != 1 {
			t.Errorf("%d lookups of a name that is gone", n-1)
		}
		if got := slices.Collect(maps.Keys(w.Answers())); !slices.Equal(got, []string{"mcu.test"}) {
			t.Errorf("names %v are left", got)
		}
		w.Watch([]string{"mcu.test", "sfu.test"})
		if len(w.after(0)) != 1 {
			t.Error("the name does not come back")
		}
	})
}

// hung is a lookup without an answer.
func hung(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAnswerThatIsLateIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t, func(ctx context.Context, family, host string) ([]netip.Addr, error) {
			_, _ = hung(ctx, family, host)
			return addrs("192.0.2.1"), nil
		}, "sfu.test")
		w.Watch(nil)
		synctest.Wait()
		w.Watch([]string{"sfu.test"})
		if w.after(time.Second); len(w.Answers()) != 0 || w.told.Load() != 0 {
			t.Errorf("answers %v of a lookup that was called off", w.Answers())
		}
	})
}

func TestSilenceIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		var silent atomic.Bool
		w := newWatching(t, func(ctx context.Context, family, host string) ([]netip.Addr, error) {
			if silent.Load() {
				return hung(ctx, family, host)
			}
			return z.lookup(ctx, family, host)
		}, "sfu.test")
		silent.Store(true)
		if got := w.after(time.Hour); len(got) != 1 {
			t.Errorf("addresses %v after an hour of silence", got)
		}
		silent.Store(false)
		z.set(nil, addrs("192.0.2.2")...)
		if got := w.after(lookupTimeout + Interval); !slices.Equal(got, addrs("192.0.2.2")) {
			t.Errorf("addresses %v after the silence", got)
		}
	})
}

func TestLookupsAtATimeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hosts []string
		for i := range 500 {
			hosts = append(hosts, fmt.Sprint("sfu", i, ".test"))
		}
		var mu sync.Mutex
		var now, most int
		w := newWatching(t, func(context.Context, string, string) ([]netip.Addr, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return addrs("192.0.2.1"), nil
		}, hosts...)
		w.after(Interval)
		if most != maxLookups {
			t.Errorf("%d lookups at a time, want %d", most, maxLookups)
		}
		if n := len(w.Answers()); n != len(hosts) {
			t.Errorf("%d names are known, want %d", n, len(hosts))
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w := newWatching(t, hung, "sfu.test", "mcu.test")
		w.Close()
		w.Close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("Close waits %s", waited)
		}
	})
}

func TestNoLookupsAndCallsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{four: addrs("192.0.2.1")}
		w := newWatching(t, z.lookup, "sfu.test")
		w.Close()
		for i := range 100 {
			w.Watch([]string{fmt.Sprint("late", i, ".test")})
		}
		if w.after(time.Hour); w.told.Load() != 0 {
			t.Error("a change is told of after Close")
		}
		if n := len(z.asked); n != 2 {
			t.Errorf("%d lookups after Close", n-2)
		}
	})
}

// the number of addresses of all names together is bounded, for any answers. Names with few addresses keep all of
// them.
func TestAddressesOfAllNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := numbered(MaxAddresses)
		lookup := func(_ context.Context, family, host string) ([]netip.Addr, error) {
			switch {
			case family == "ip6":
				return nil, nil
			case strings.HasPrefix(host, "small"):
				return all[:3], nil
			}
			return slices.Clone(all), nil
		}
		var hosts []string
		for i := range 4 * maxAnswers / MaxAddresses {
			hosts = append(hosts, fmt.Sprintf("large-%d.test", i), fmt.Sprintf("small-%d.test", i))
		}
		w := newWatching(t, lookup, hosts...)
		for range 3 {
			w.after(Interval)
			total := 0
			for host, answer := range w.Answers() {
				total += len(answer)
				if strings.HasPrefix(host, "small") && len(answer) != 3 {
					t.Errorf("%s has %d addresses, want 3", host, len(answer))
				}
			}
			if len(w.Answers()) != len(hosts) || total > 2*maxAnswers || total < maxAnswers/2 {
				t.Errorf("%d of %d names have %d addresses, want at most %d", len(w.Answers()), len(hosts), total, 2*maxAnswers)
			}
		}
		w.Watch(hosts[:4])
		if w.after(Interval); len(w.Answers()["large-0.test"]) != MaxAddresses {
			t.Errorf("with few names a name has %d addresses", len(w.Answers()["large-0.test"]))
		}
	})
}
