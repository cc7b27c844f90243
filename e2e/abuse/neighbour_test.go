package abuse

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

const (
	runningCalls, newCalls = 8, 40
	// window is the duration of the neighbour's activity. New calls start during joining.
	window, joining = 3 * time.Second, 2 * time.Second
	// newCallDeadline is the limit for the time to the first echo of a new call.
	newCallDeadline = 5 * time.Second
	// moreLost is how many more datagrams, in percent, running calls may lose than calls of the control. moreAge is how
	// much longer the p99 round trip time of running calls may be than three times that of the control. The factor of
	// three matters on a busy machine only. The comparison with coturn uses both tolerances too.
	moreLost, moreAge = 1.0, 20 * time.Millisecond
)

var (
	withPaths     = flag.Bool("paths", false, "also run TestNoisyNeighbour with each way into the kernel")
	withReference = flag.Bool("coturn", false, "also run TestNoisyNeighbour on coturn, and compare stunnerd with it")
)

// mostChannels is the case that runs in user space and, by TCX and XDP, in the kernel. With -paths, all cases run
// there.
const mostChannels = "a user sends over channels to peers that do not exist"

// TestNoisyNeighbour: running calls continue and new calls succeed during any activity of one client, peer or
// unauthenticated source. The control is a second server with its own hosts and without a neighbour. With -coturn each
// case also runs on coturn, and stunnerd must not be worse. -run selects cases and servers:
// TestNoisyNeighbour/vanish/stunnerd.
func TestNoisyNeighbour(t *testing.T) {
	quiet, noisy, whole := [2]*hosts{}, [2]*hosts{}, t // with veth and with TAP interfaces
	for _, n := range neighbours {
		servers := []server{{name: "stunnerd", engine: "None"}}
		if *withReference {
			servers = append(servers, server{name: coturn})
		}
		if *withPaths || n.sentence == mostChannels {
			servers = append(servers, server{name: "stunnerd by TCX", engine: "TC", mechanism: "TCX"}, server{name: "stunnerd by XDP", engine: "XDP", mechanism: "XDP"})
		}
		if *withPaths {
			servers = append(servers, server{name: "stunnerd by clsact", engine: "TC", mechanism: "clsact"})
		}
		round := map[string]figures{}
		t.Run(n.sentence, func(t *testing.T) {
			for _, what := range servers {
				taps := 0
				if what.engine == "XDP" {
					taps = 1
				}
				if quiet[taps] == nil {
					quiet[taps], noisy[taps] = newHosts(whole, taps == 1), newHosts(whole, taps == 1)
				}
				t.Run(what.name, func(t *testing.T) {
					round[what.name] = measure(t, quiet[taps], noisy[taps], what, n)
				})
			}
		})
		if other, ok := round[coturn]; ok { // -run may select one server only
			if f := round["stunnerd"]; f.lost > other.lost+moreLost || f.p99 > other.p99+moreAge || f.made < other.made {
				t.Errorf("%s: stunnerd %s; coturn %s", n.sentence, f, other)
			}
		}
	}
}

// figures are the results of calls.
type figures struct {
	sent    int
	lost    float64       // percent
	p99     time.Duration // median of the calls
	made    int           // new calls with an echo in time
	slowest time.Duration // slowest new call with an echo in time
	errs    error         // errors of the other calls
	grown   int           // memory of the server, in bytes
}

// String returns a line for the log.
func (f figures) String() string {
	return fmt.Sprintf("%.2f %% of %d datagrams lost, p99 %s; %d of %d new calls, the slowest after %s; memory %+d kB",
		f.lost, f.sent, f.p99.Round(100*time.Microsecond), f.made, newCalls, f.slowest.Round(100*time.Microsecond), f.grown>>10)
}

// measure runs calls at two servers, one of which has a neighbour.
func measure(t *testing.T, quiet, noisy *hosts, what server, n neighbour) (f figures) {
	t.Helper()
	quiet.run(t, what)
	noisy.run(t, what)
	control, calls := quiet.calls(t, n.over), noisy.calls(t, n.over)
	harm := n.trigger(t, noisy)
	memory := noisy.memory(t)
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	var note string
	var harming sync.WaitGroup
	harming.Go(func() {
		var err error
		if note, err = harm(ctx); err != nil {
			t.Errorf("TEST NOT VALID: %v", err)
		}
	})
	f = noisy.join(t.Context(), n.over)
	harming.Wait()
	f.grown = noisy.memory(t) - memory
	undisturbed := figures{}
	undisturbed.end(control)
	f.end(calls)
	t.Logf("%s; control: %.2f %% lost, p99 %s; neighbour: %s", f, undisturbed.lost, undisturbed.p99, note)
	if what.mechanism != "" {
		noisy.assertKernel(t, what.mechanism, f.sent)
	}
	if what.name == coturn {
		return f
	}
	if f.lost > undisturbed.lost+moreLost || f.p99 > 3*undisturbed.p99+moreAge {
		t.Errorf("running calls are disturbed: %s; control: %.2f %% lost, p99 %s", f, undisturbed.lost, undisturbed.p99)
	}
	if f.grown > n.growth<<20 {
		t.Errorf("the memory of the server grows by %d kB, limit %d MiB", f.grown>>10, n.growth)
	}
	if f.made < newCalls {
		t.Errorf("%d of %d new calls succeed within %s: %v", f.made, newCalls, newCallDeadline, f.errs)
	}
	return f
}

// memory returns the memory of the server, in bytes.
func (h *hosts) memory(t *testing.T) int {
	t.Helper()
	bytes, err := h.process.Memory()
	must(t, err)
	return bytes
}

// calls starts the running calls.
func (h *hosts) calls(t *testing.T, over call.Network) (calls []*call.Call) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for i := range runningCalls {
		c, err := call.Start(t.Context(), h.options(over, uint16(1+i)))
		must(t, err)
		must(t, c.Await(ctx, 1))
		calls = append(calls, c)
	}
	return calls
}

// options returns the options for the call of the client with a number. A client over UDP or DTLS has a known port, so
// that others can forge its address.
func (h *hosts) options(over call.Network, number uint16) call.Options {
	gateway, port := turnServer, uint16(0)
	if over == call.UDP || over == call.DTLS {
		port = 40_000 + number
	}
	if over == call.TLS || over == call.DTLS {
		gateway = dtlsServer
	}
	name, word := user, password
	if h.ephemeral {
		c := mint(fmt.Sprint("caller-", number))
		name, word = c.Username, string(c.Password)
	}
	return call.Options{
		Gateway: gateway, Network: over, Do: h.far.Do, Local: netip.AddrPortFrom(host(farClients, number), port),
		Roots: h.roots, Username: name, Password: word, Peer: h.echo[int(number)%len(h.echo)],
		Interval: 20 * time.Millisecond,
	}
}

// end ends running calls and adds their figures.
func (f *figures) end(calls []*call.Call) {
	lost := 0
	var p99 []time.Duration
	for _, c := range calls {
		s := c.End(time.Second) // later echoes count as lost
		f.sent += s.Sent
		lost += s.Lost
		p99 = append(p99, s.P99)
	}
	slices.Sort(p99)
	f.lost, f.p99 = 100*float64(lost)/float64(max(f.sent, 1)), p99[len(p99)/2]
}

// join starts new calls one after the other and waits for all of them.
func (h *hosts) join(ctx context.Context, over call.Network) (f figures) {
	var lock sync.Mutex
	var group sync.WaitGroup
	tick := time.NewTicker(joining / newCalls)
	defer tick.Stop()
	for i := range newCalls {
		<-tick.C
		group.Go(func() {
			began := time.Now()
			err := h.newCall(ctx, over, uint16(1000+i))
			took := time.Since(began)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				f.errs = errors.Join(f.errs, err)
				return
			}
			f.made++
			f.slowest = max(f.slowest, took)
		})
	}
	group.Wait()
	return f
}

// newCall makes a call up to its first echo.
func (h *hosts) newCall(ctx context.Context, over call.Network, number uint16) error {
	limited, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	c, err := call.Start(limited, h.options(over, number))
	if err != nil {
		return err
	}
	err = c.Await(limited, 1)
	go c.End(0) // End waits for the response to its last request
	return err
}
