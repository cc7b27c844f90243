package abuse

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

const (
	// moreMemory is the limit for memory growth after a flood. It covers the pacing of the garbage collector, but no
	// per-client state.
	moreMemory = 16 << 20
	// mostLog is the limit for log output of a flood.
	mostLog = 100 << 10
)

// T-10: 10,000 first requests of one source get few responses, with a small amplification factor.
func TestFirstRequestsAreNotAmplified(t *testing.T) {
	siege(t, func(d *target, same *call.Call) {
		const burst, rate = 10, 10
		newcomer := d.client(t, public, public, user, password)
		f := newFlood(t, d, newcomer)
		began, size := time.Now(), 0
		for i := range 10_000 {
			if i == 5000 {
				if err := same.Renew(); err != nil {
					t.Errorf("a session of the same address: %v", err)
				}
			}
			first := newcomer.Request(stun.MethodAllocate, ask.UDP())
			size = len(first)
			f.send(first)
		}
		f.arrived() // until it has read all requests, the dataplane may answer
		took := time.Since(began)
		// 2 for a partly refilled token, and for a token that a new call gives back
		limit := burst + int(took.Seconds()*rate) + 2
		answers := f.answers()
		if answers > limit || answers == 0 {
			t.Errorf("%d responses to 10,000 requests in %s, want at most %d", answers, took, limit)
		}
		if bytes := int(f.bytes.Load()); bytes > answers*size*7/2 {
			t.Errorf(
				"%d responses of %d bytes to requests of %d bytes each: amplification over 3.5", answers, bytes, size,
			)
		}
		t.Logf(
			"%d responses of %d bytes to 10,000 requests of %d bytes each in %s", answers, f.bytes.Load(), size, took,
		)
	})
}

// T-17, T-19: mutations of all messages of a client, with every first byte, sent by a client with an allocation and by
// a client without an allocation.
func TestServerHandlesMutatedMessages(t *testing.T) {
	siege(t, func(d *target, _ *call.Call) {
		const datagrams = 100_000
		dice := rand.New(rand.NewPCG(17, 17))
		newcomer, holder := d.client(t, public.Next(), public, user, password), d.client(t, public.Next(), public, user, password)
		if code := codeOf(t, holder, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Fatalf("allocate: %d", code)
		}
		from := []*flood{newFlood(t, d, newcomer), newFlood(t, d, holder)}
		seeds := [][]byte{
			newcomer.Request(stun.MethodAllocate, ask.UDP()),
			holder.Request(stun.MethodAllocate, ask.UDP(), ask.Lifetime(900)),
			holder.Request(stun.MethodRefresh, ask.Lifetime(900)), holder.Request(stun.MethodBinding),
			holder.Request(
				stun.MethodChannelBind, ask.Channel(0x4001), ask.Peer(netip.MustParseAddrPort("192.0.2.1:9")),
			),
			holder.Request(stun.MethodCreatePermission, ask.Peer(netip.MustParseAddrPort("192.0.2.1:9"))),
			ask.ChannelData(0x4001, make([]byte, 100)),
			stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), ask.Peer(d.peer),
				stun.RawAttribute{Type: stun.AttrData, Value: make([]byte, 100)}).Raw,
		}
		for i := range datagrams {
			b := mutate(dice, seeds[dice.IntN(len(seeds))])
			if i%2 == 0 && len(b) > 0 {
				b[0] = byte(i / 2)
			}
			from[dice.IntN(2)].send(b)
		}
		t.Logf("%d responses to %d mutations", from[0].answers()+from[1].answers(), datagrams)
		if code := codeOf(t, holder, stun.MethodRefresh, ask.Lifetime(600)); code != 0 {
			t.Errorf("the allocation of the client that sent them: %d", code)
		}
	})
}

// mutate changes, truncates or extends a message in a few places.
func mutate(dice *rand.Rand, seed []byte) []byte {
	b := append([]byte(nil), seed...)
	for range 1 + dice.IntN(4) {
		switch at := dice.IntN(len(b) + 1); dice.IntN(4) {
		case 0:
			b = b[:at]
		case 1:
			b = append(b, make([]byte, dice.IntN(64))...)
		default:
			if at < len(b) {
				b[at] = byte(dice.Uint32())
			}
		}
	}
	return b
}

// T-20: the number of time series does not depend on the number of users.
func TestUnknownUsersAddNoSeries(t *testing.T) {
	siege(t, func(d *target, _ *call.Call) {
		guesser := d.client(t, public, public, "user", "guess")
		codeOf(t, guesser, stun.MethodAllocate, ask.UDP())
		f := newFlood(t, d, guesser)
		guess := func(first, last int) {
			for i := first; i < last; i++ {
				guesser.Username = fmt.Sprint("user-", i)
				f.send(guesser.Request(stun.MethodAllocate, ask.UDP()))
			}
			f.arrived()
		}
		guess(0, 100)
		before := d.series(t)
		guess(100, 10_000)
		const ofCalls = 5 // series that first appear when a call of the siege ends
		if after := d.series(t); after > before+ofCalls {
			t.Errorf("%d series after 10,000 users, %d after 100", after, before)
		}
		if strings.Contains(d.process.Output(), "user-") {
			t.Error("the log contains names of unknown users")
		}
	})
}

// series returns the number of time series.
func (d *target) series(t *testing.T) (n int) {
	t.Helper()
	code, page, err := harness.Get(t.Context(), d.metrics)
	if err != nil || code != http.StatusOK {
		t.Fatalf("read metrics: status %d, %v", code, err)
	}
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// T-11: only requests are answered.
func TestResponsesAreNotAnswered(t *testing.T) {
	siege(t, func(d *target, _ *call.Call) {
		c := d.client(t, public.Next(), public, user, password)
		f := newFlood(t, d, c)
		for _, method := range []stun.Method{
			stun.MethodBinding, stun.MethodAllocate, stun.MethodRefresh, stun.MethodSend, stun.MethodData,
			stun.MethodCreatePermission, stun.MethodChannelBind,
		} {
			for _, class := range []stun.MessageClass{
				stun.ClassSuccessResponse, stun.ClassErrorResponse, stun.ClassIndication,
			} {
				for range 100 {
					f.send(stun.MustBuild(
						stun.TransactionID, stun.NewType(method, class), stun.CodeUnauthorized, stun.NewRealm("r"),
						stun.NewNonce("n"),
					).Raw)
				}
			}
		}
		if answers := f.answers(); answers != 0 {
			t.Errorf("%d responses to responses and indications", answers)
		}
	})
}

// T-11: two dataplanes that each receive forged requests from the address of the other do not start a loop.
func TestServersDoNotLoop(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t)
	const forged = 50
	raw := netns.NewRawSocket(t)
	for i := range forged {
		request := stun.MustBuild(
			stun.TransactionID,
			stun.NewType([]stun.Method{stun.MethodBinding, stun.MethodAllocate}[i%2], stun.ClassRequest), ask.UDP(),
		).Raw
		must(t, raw.Send(b.at(public, call.UDP), a.at(public, call.UDP), request))
	}
	packets := func(d *target, direction string) int {
		return int(
			d.metric(t, fmt.Sprintf("stunner_listener_packets_total{direction=%q,name=\"abuse/door/udp\"}", direction)),
		)
	}
	a.await(t, timeout, func(context.Context) error {
		if got := packets(a, "rx"); got != forged {
			return fmt.Errorf("%d of %d forged requests were read", got, forged)
		}
		return nil
	})
	sent := packets(a, "tx")
	b.await(t, timeout, func(context.Context) error {
		if got := packets(b, "rx"); got != sent {
			return fmt.Errorf("%d of %d responses were read", got, sent)
		}
		return nil
	})
	if back := packets(b, "tx"); sent == 0 || back != 0 || packets(a, "rx") != forged {
		t.Errorf(
			"%d forged requests, %d responses to the other server, %d responses of the other server", forged, sent,
			back,
		)
	}
}

// siege runs an attack during calls from the attacker's address and from others. These calls must lose nothing, and a
// new call must succeed. Afterwards the process must use no more resources than before.
func siege(t *testing.T, attack func(d *target, same *call.Call)) {
	t.Helper()
	t.Parallel()
	d := start(t)
	d.good(t, call.UDP) // the first call allocates one-time state
	rss, goroutines := d.rss(t), d.goroutines(t)
	var calls []*call.Call
	for _, o := range []call.Options{d.options(call.UDP, public), d.options(call.UDP, loopback), d.options(call.TCP, loopback)} {
		c, err := call.Start(t.Context(), o)
		must(t, err)
		calls = append(calls, c)
	}
	newcomer := make(chan error, 1)
	go func() {
		_, err := d.newCall(t.Context(), call.UDP, loopback, timeout)
		newcomer <- err
	}()
	attack(d, calls[0])
	if err := <-newcomer; err != nil {
		t.Errorf("a new call during the attack: %v", err)
	}
	d.uninterrupted(t, calls)
	d.recovered(t, rss, goroutines)
	if n := d.metric(t, "stunner_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// uninterrupted ends calls, which must be running and must have lost nothing.
func (d *target) uninterrupted(t *testing.T, calls []*call.Call) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for _, c := range calls {
		err := c.AwaitMore(ctx, 3)
		if s := c.End(timeout); err != nil || s.Lost > 0 {
			t.Errorf("call: %s: %v", s, err)
		}
	}
}

// recovered checks that the process uses no more resources than before the attack.
func (d *target) recovered(t *testing.T, rss, goroutines int) {
	t.Helper()
	if more := d.rss(t) - rss; more > moreMemory {
		t.Errorf("%d KiB more memory", more>>10)
	} else {
		t.Logf("%d KiB more memory", more>>10)
	}
	const spare = 10 // for the test's own allocations and metrics connections
	d.await(t, timeout, func(ctx context.Context) error {
		got, err := d.read(ctx, "go_goroutines")
		if err == nil && int(got) > goroutines+spare {
			err = fmt.Errorf("%.0f goroutines, %d before", got, goroutines)
		}
		return err
	})
	const window = time.Second
	before := d.cpu(t)
	time.Sleep(window) // an idle process uses no CPU in this time
	if busy := d.cpu(t) - before; busy > window/20 {
		t.Errorf("%s of CPU time in %s while idle", busy, window)
	}
	if log := d.process.Output(); strings.Contains(log, "panic") || len(log) > mostLog {
		t.Errorf("log of %d bytes, or with a panic", len(log))
	}
}

// flood sends many datagrams from one socket, only as fast as the dataplane reads. Datagrams that the kernel drops
// would not test the dataplane.
type flood struct {
	t          *testing.T
	client     *ask.Client
	port       uint16 // UDP port of the listener
	sent       int
	got, bytes atomic.Int64
	done       chan struct{} // closed when receiving has ended
}

func newFlood(t *testing.T, d *target, c *ask.Client) *flood {
	t.Helper()
	f := &flood{t: t, client: c, port: uint16(d.ports[call.UDP]), done: make(chan struct{})}
	f.listen(time.Time{})
	go func() {
		defer close(f.done)
		for buf := make([]byte, 2048); ; {
			n, err := c.Conn.Read(buf)
			if err != nil {
				return
			}
			f.got.Add(1)
			f.bytes.Add(int64(n))
		}
	}()
	return f
}

// few is the number of datagrams between two checks of the queue. It is small enough that two floods do not fill the
// default socket buffer. much is the number of queued bytes above which send waits.
const few, much = 64, 32 << 10

func (f *flood) send(b []byte) {
	f.t.Helper()
	if f.sent++; f.sent%few == 0 {
		f.below(much)
	}
	must(f.t, f.client.Send(b))
}

// arrived waits until the dataplane has read everything.
func (f *flood) arrived() { f.t.Helper(); f.below(1) }

// answers returns the number of responses, after the last response has arrived.
func (f *flood) answers() int {
	f.t.Helper()
	f.arrived()
	const quiet = 500 * time.Millisecond
	f.listen(time.Now().Add(quiet))
	<-f.done
	return int(f.got.Load())
}

// listen sets until when responses are received.
func (f *flood) listen(until time.Time) {
	f.t.Helper()
	must(f.t, f.client.Conn.SetReadDeadline(until))
}

// below waits until less than the given number of bytes is queued at the listener.
func (f *flood) below(bytes int) {
	f.t.Helper()
	for deadline := time.Now().Add(timeout); f.waiting() >= bytes; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatal("the dataplane does not read its queue")
		}
	}
}

// waiting returns the longest receive queue of the listener's sockets in bytes.
func (f *flood) waiting() int { f.t.Helper(); return queued(f.t, f.port) }

// queued returns the longest receive queue of the sockets with a UDP port, in bytes (proc_net(5)), in the network
// namespace of the calling thread.
func queued(t *testing.T, port uint16) (most int) {
	t.Helper()
	for _, name := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		data, err := os.ReadFile(name)
		must(t, err)
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			_, queue, _ := strings.Cut(fields[4], ":")
			n, err := strconv.ParseInt(queue, 16, 64)
			must(t, err)
			most = max(most, int(n))
		}
	}
	return most
}
