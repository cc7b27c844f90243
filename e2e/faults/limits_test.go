package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// in a container with little memory, clients over the capacity are refused before the kernel kills the process,
// and existing calls continue.
func TestLittleMemoryRefusesClientsInTime(t *testing.T) {
	const (
		limit    = 32 << 20
		capacity = limit / (64 << 10)
	)
	group := harnesstest.MemoryGroup(t, "faults", limit)
	d := newDataplane(t)
	d.serve(group.Contain(harness.Command{Path: stunnerd}))
	if got := d.metric("go_gc_gomemlimit_bytes"); got != limit/10*9 {
		t.Errorf("the memory limit of the garbage collector is %.0f bytes, want nine tenths of %d", got, limit)
	}
	live := d.calls()
	var held []*ask.Client
	refused := 0
	for i := range capacity + 50 {
		c := d.client(i)
		// A single user cannot use the full capacity.
		minted, err := d.config.Auth.Authority().Mint(fmt.Sprint("user-", i), time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.Username, c.Password = minted.Username, string(minted.Password)
		if code, _ := d.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			refused++
			mustRefuse(t, "allocation beyond the capacity", code, stun.CodeInsufficientCapacity)
			continue
		}
		held = append(held, c)
	}
	if got := len(held) + len(live); got != capacity || refused == 0 {
		t.Errorf("%d allocations and %d refused, want %d, the capacity of the memory limit", got, refused, capacity)
	}
	for _, c := range held { // the most expensive use: a channel with media
		d.bind(c)
		d.echo(c)
	}
	d.undisturbed(live)
}

// clients that use all their permissions are refused in time too. Without that, the number of clients that the
// capacity allows would need twice the memory limit. Clients can refresh the permissions that they have.
func TestPermissionsOfManyClientsFitIntoTheMemory(t *testing.T) {
	const (
		limit    = 64 << 20
		capacity = limit / (64 << 10)
		each     = 64 // permissions in a request
	)
	group := harnesstest.MemoryGroup(t, "faults-permissions", limit)
	d := newDataplane(t)
	d.config.Clusters[0].Endpoints = append(d.config.Clusters[0].Endpoints, "127.2.0.0/16")
	d.serve(group.Contain(harness.Command{Path: stunnerd}))
	live := d.calls()
	peers := func(request int) (list []stun.Setter) {
		for i := range each {
			list = append(list, ask.Peer(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 2, byte(request), byte(i)}), 9)))
		}
		return list
	}
	var held []*ask.Client
	refused := map[stun.Method]int{}
	for i := range capacity {
		c := d.client(i)
		minted, err := d.config.Auth.Authority().Mint(fmt.Sprint("user-", i), time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.Username, c.Password = minted.Username, string(minted.Password)
		if code, _ := d.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			refused[stun.MethodAllocate]++
			mustRefuse(t, "allocation without memory", code, stun.CodeInsufficientCapacity)
			continue
		}
		whole := true
		for n := range 4 {
			if code, _ := d.do(c, stun.MethodCreatePermission, peers(n)...); code != 0 {
				refused[stun.MethodCreatePermission]++
				mustRefuse(t, "permissions without memory", code, stun.CodeInsufficientCapacity)
				whole = false
				break
			}
		}
		if whole {
			held = append(held, c)
		}
	}
	if len(held) < capacity/8 || refused[stun.MethodCreatePermission]+refused[stun.MethodAllocate] == 0 {
		t.Errorf("%d clients have all permissions, refused %v", len(held), refused)
	}
	for _, c := range held {
		d.must(c, stun.MethodCreatePermission, peers(0)...)
	}
	d.undisturbed(live)
	t.Logf("%d clients have 256 permissions each; refused %v", len(held), refused)
}

// with few descriptors, idle connections are closed to make room. Without a free descriptor, new clients are
// refused or wait for accept without CPU cost, and probes are answered.
func TestFewDescriptorsRefuseClientsInTime(t *testing.T) {
	const limit = 256
	d := newDataplane(t)
	d.serve(harness.Command{Path: "prlimit", Args: []string{fmt.Sprintf("--nofile=%d:%d", limit, limit), stunnerd}})
	live := d.calls()
	var held []*ask.Client
	for i := range limit {
		c := d.client(i)
		if code, _ := d.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			mustRefuse(t, "allocation beyond the capacity", code, stun.CodeInsufficientCapacity)
			break
		}
		held = append(held, c)
	}
	if got := len(held); got < 2 || got > limit-200 {
		t.Fatalf("%d allocations with %d descriptors", got, limit)
	}
	before := d.metric("stunner_listener_connections")
	idle := d.connect(2 * limit) // the oldest connections are closed
	d.probe()
	d.must(held[0], stun.MethodRefresh, ask.Lifetime(0))
	live = append(live, d.call(d.options(call.TCP)))
	d.must(held[1], stun.MethodRefresh, ask.Lifetime(0))

	for _, conn := range idle {
		_ = conn.Close()
	}
	d.await("the idle connections are closed", func(ctx context.Context) error {
		open, err := harness.Metric(ctx, d.config.Admin.MetricsEndpoint, "stunner_listener_connections")
		if want := before + 1; err == nil && open != want { // one more: the latest call, over TCP
			err = fmt.Errorf("%.0f connections, want %.0f", open, want)
		}
		return err
	})
	taken := d.files()
	d.limitFiles(taken+4, limit) // the reserve for probes is larger
	d.connect(3)                 // occupy the gaps in the descriptor numbers
	d.await("no descriptor is free for clients", func(context.Context) error {
		if free := d.lowestFree(); free < taken-6 {
			return fmt.Errorf("%d is free, with %d taken", free, taken)
		}
		return nil
	})
	waiting := make(chan error, 1)
	go func() { waiting <- admits(d.options(call.TCP))(t.Context()) }()
	const window = 2 * time.Second
	used, began := d.metric("process_cpu_seconds_total"), time.Now()
	for time.Since(began) < window {
		d.probe()
		code, _ := d.do(d.client(limit), stun.MethodAllocate, ask.UDP())
		mustRefuse(t, "allocation without a descriptor", code, stun.CodeInsufficientCapacity)
		time.Sleep(5 * interval)
	}
	// A loop of failing accept calls would use a whole CPU. The usage of calls and probes depends on the machine.
	if share := (d.metric("process_cpu_seconds_total") - used) / time.Since(began).Seconds(); share > 0.5 {
		t.Errorf("%.0f %% CPU while no connection can be accepted", share*100)
	}
	if len(waiting) > 0 {
		t.Error("accepted without a free descriptor")
	}
	d.limitFiles(limit, limit)
	if err := <-waiting; err != nil {
		t.Errorf("not accepted after descriptors became free: %v", err)
	}
	d.undisturbed(live)
}

// connect opens connections to the TCP listener, which are closed last at the end of the test.
func (d *dataplane) connect(n int) (all []net.Conn) {
	d.t.Helper()
	for range n {
		conn, err := net.Dial("tcp", d.at(call.TCP).String())
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
	}
	return all
}

// limitFiles changes RLIMIT_NOFILE of the running process.
func (d *dataplane) limitFiles(soft, hard int) {
	d.t.Helper()
	set := exec.Command("prlimit", fmt.Sprintf("--pid=%d", d.process.PID()), fmt.Sprintf("--nofile=%d:%d", soft, hard))
	if out, err := set.CombinedOutput(); err != nil {
		d.t.Fatalf("limit descriptors: %v: %s", err, out)
	}
}

// lowestFree returns the descriptor number that the process gets next.
func (d *dataplane) lowestFree() (fd int) {
	d.t.Helper()
	for ; ; fd++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", d.process.PID(), fd)); errors.Is(err, fs.ErrNotExist) {
			return fd
		} else if err != nil {
			d.t.Fatal(err)
		}
	}
}

// probe sends the probes as a kubelet does, over a new connection each time.
func (d *dataplane) probe() {
	d.t.Helper()
	fresh := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/ready", "/live"} {
		res, err := fresh.Get(d.health() + path)
		if err != nil {
			d.t.Fatalf("probe: %v", err)
		}
		if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
			d.t.Errorf("%s: status %d", path, res.StatusCode)
		}
	}
}

// if the kernel has 100 ports for relays and there are 200 clients, each client gets its own port or 508. A freed
// port can be allocated again.
func TestFewRelayPortsAreNotAssignedTwice(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	const ports, first = 100, 40000
	d := newDataplane(t) // started first, so that the peer does not use one of the ports
	limits := fmt.Appendf(nil, "%d %d", first, first+ports-1)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", limits, 0o600); err != nil {
		t.Fatal(err)
	}
	d.serve(harness.Command{Path: stunnerd})
	holders := map[uint16]*ask.Client{}
	for i := range 2 * ports {
		c, err := ask.DialFrom(netip.AddrPortFrom(clientAddr(i), 5000), d.at(call.UDP), user, password)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		answer := d.once(d.learn(c), c.Request(stun.MethodAllocate, ask.UDP()))
		if code := ask.Code(answer); code != 0 {
			mustRefuse(t, "allocation without a port", code, stun.CodeInsufficientCapacity)
			continue
		}
		relay, err := ask.Relayed(answer)
		if err != nil || relay.Port() < first || relay.Port() >= first+ports || holders[relay.Port()] != nil {
			t.Fatalf("relay %s: not in the range, or allocated twice: %v", relay, err)
		}
		holders[relay.Port()] = c
	}
	if got := len(holders); got < ports-1 {
		t.Errorf("%d of %d ports allocated", got, ports)
	}
	for _, c := range holders {
		d.must(c, stun.MethodRefresh, ask.Lifetime(0))
		d.must(c, stun.MethodAllocate, ask.UDP())
	}
}

// a thousand clients start within a second. Each is served or refused in time, none gets two allocations because
// of retransmissions, and existing calls have no long gaps.
func TestThousandClientsAtOnceAreServedInTime(t *testing.T) {
	const clients, limit = 1000, 10 * time.Second
	d := running(t)
	live := d.calls()
	before := d.metric("stunner_connections_total")
	all := make([]*ask.Client, clients)
	for i := range all {
		all[i] = d.client(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var served atomic.Int64
	var group sync.WaitGroup
	for i, c := range all {
		group.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / clients)
			answer, _, err := c.Do(ctx, stun.MethodAllocate, ask.UDP())
			switch code := ask.Code(answer); {
			case err != nil:
				t.Errorf("allocate: %v", err)
			case code == 0:
				served.Add(1)
			default:
				mustRefuse(t, "one of many allocations", code, overload...)
			}
		})
	}
	group.Wait()
	d.await("one allocation per served client", d.sessions(len(live)+int(served.Load())))
	if made := d.metric("stunner_connections_total") - before; made != float64(served.Load()) {
		t.Errorf("%.0f allocations created for %d clients", made, served.Load())
	}
	d.awaitEchoes(live...)
	for _, s := range end(live) { // lost datagrams are permitted
		if worst := d.stalls.Worst(); s.LongestGap-worst > silence {
			t.Errorf("live call: %s; longest stall of the machine %s", s, worst)
		}
	}
}

// The supervisor of a dataplane needs at most 16 MiB.
func TestSupervisorIsSmall(t *testing.T) {
	t.Parallel()
	d := running(t, "--supervise")
	live := d.calls()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	resident := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(string(status))
	if resident == nil {
		t.Fatalf("the resident memory is unknown: %s", status)
	}
	if kilobytes, err := strconv.Atoi(resident[1]); err != nil || kilobytes > 16<<10 {
		t.Errorf("the supervisor has %s kB resident, want at most 16 MiB", resident[1])
	}
	d.undisturbed(live)
}

// L-1: the set-up of a call takes at most 50 ms (p99) with 1,000 live sessions. The set-up is the time before the first
// byte: challenge, Allocate and ChannelBind. The deletion of the session is not included.
func BenchmarkCallSetup(b *testing.B) {
	const sessions = 1000
	d := running(b)
	for i := range sessions {
		d.allocated(i)
	}
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		began := time.Now()
		c := d.allocated(sessions + n)
		took = append(took, time.Since(began))
		d.must(c, stun.MethodRefresh, ask.Lifetime(0))
		c.Close()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
