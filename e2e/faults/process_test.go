package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// after SIGTERM under load, a process keeps its calls, refuses new ones, and exits when the last call ends.
func TestR08DrainUnderLoad(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.crowd(25)
	b.signal(syscall.SIGTERM)
	b.await("draining", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.Status != "TERMINATING" {
			err = errors.New("status " + st.Status)
		}
		return err
	})
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(pace) {
		b.probe()
	}
	code, _ := b.do(b.client(1), stun.MethodAllocate, ask.UDP())
	mustRefuse(t, "new allocation", code, overload...)
	for _, network := range []call.Network{call.TCP, call.TLS, call.DTLS} {
		if c, err := call.Start(t.Context(), b.options(network)); err == nil {
			c.End(0)
			t.Errorf("a new call over %s was accepted while draining", network)
		} else if !errors.Is(err, call.ErrRefused) {
			t.Errorf("a new call over %s: %v, want a refusal", network, err)
		}
	}
	b.unharmed(live, 3*silence) // the gap includes the handshakes of later calls
	b.ended(time.Second)
}

// a second SIGTERM ends the process at once.
func TestR08SecondSignalUnderLoad(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.crowd(5)
	b.signal(syscall.SIGTERM)
	b.await("draining", func(context.Context) error {
		if got := b.metric("stunner_allocations_draining"); got != float64(len(live)) {
			return errors.New("not all allocations are draining")
		}
		return nil
	})
	b.signal(syscall.SIGTERM)
	b.ended(2 * time.Second)
}

// after SIGKILL a new process serves from the last good config while discovery is unavailable. Without the session
// journal it responds to clients of the old process at once that their allocations do not exist.
func TestR09Killed(t *testing.T) {
	const clients = 20
	b := newBench(t)
	h, _ := serving(t, b.config)
	state := t.TempDir()
	b.start(h.url(), "--state-dir", state)
	b.inForce(b.config)
	var old []*ask.Client
	for i := range clients {
		old = append(old, b.allocated(i))
	}
	h.down()
	if err := b.process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(state, "sessions.journal")); err != nil {
		t.Fatal(err)
	}
	b.start(h.url(), "--state-dir", state)
	t.Logf(
		"ready %s after the start", b.within(2*time.Second, "ready", bed.Answers(b.health()+"/ready", http.StatusOK)),
	)
	for i, c := range old {
		for method, attrs := range b.three() {
			b.mismatch(c, method, attrs)
		}
		if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Errorf("client %d allocates again: %d", i, code)
		}
	}
}

// mismatch sends a request for an allocation that no longer exists, and expects 437. It does not retransmit, because
// the first request must be answered.
func (b *bench) mismatch(c *ask.Client, method stun.Method, attrs []stun.Setter) {
	b.t.Helper()
	for challenges := 0; ; challenges++ {
		answer, err := c.Once(c.Request(method, attrs...), patience)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		if ask.Code(answer) == stun.CodeStaleNonce && challenges == 0 && c.Learn(answer) {
			continue
		}
		if code := ask.Code(answer); code != stun.CodeAllocMismatch {
			b.t.Errorf("%s for a lost allocation: %d, want 437", method, code)
		}
		return
	}
}

func (b *bench) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.process.Signal(s); err != nil {
		b.t.Fatal(err)
	}
}

// in a container with little memory, clients over the capacity are refused before the kernel kills the process,
// and existing calls continue.
func TestR17MemoryLimit(t *testing.T) {
	const (
		limit    = 32 << 20
		capacity = limit / (64 << 10)
	)
	b := newBench(t)
	group := newContainer(t, limit)
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.startAs(group.enter(stunnerd), b.file)
	b.inForce(b.config)
	if got := b.metric("go_gc_gomemlimit_bytes"); got != limit/10*9 {
		t.Errorf("the memory limit of the garbage collector is %.0f bytes, want nine tenths of %d", got, limit)
	}
	live := b.calls(1)
	var held []*ask.Client
	refused := 0
	for i := range capacity + 50 {
		c := b.client(i)
		c.Username, c.Password = b.user(i) // a single user cannot use the full capacity
		switch code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); {
		case code == 0:
			held = append(held, c)
		default:
			refused++
			mustRefuse(t, "allocation beyond the capacity", code, stun.CodeInsufficientCapacity)
		}
	}
	if got := len(held) + len(live); got != capacity || refused == 0 {
		t.Errorf("%d allocations and %d refused, want %d, the capacity of the memory limit", got, refused, capacity)
	}
	for _, c := range held { // the most expensive use: a channel with media
		if code, _ := b.do(c, stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...); code != 0 {
			t.Fatalf("bind channel: %d", code)
		}
		b.echoes(c)
	}
	b.unharmed(live, silence)
	t.Logf("%d allocations took %d of %d KiB", capacity, group.peak()>>10, limit>>10)
}

// with few descriptors, idle connections are closed to make room. Without a free descriptor, new clients are
// refused or wait for accept without CPU cost, and probes are answered.
func TestR18Descriptors(t *testing.T) {
	const limit = 256
	b := newBench(t)
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.startAs(
		bed.Command{Path: "prlimit", Args: []string{fmt.Sprintf("--nofile=%d:%d", limit, limit), stunnerd}}, b.file,
	)
	b.inForce(b.config)
	live := b.calls(1)
	var held []*ask.Client
	for i := range limit {
		c := b.client(i)
		code, _ := b.do(c, stun.MethodAllocate, ask.UDP())
		if code != 0 {
			mustRefuse(t, "allocation beyond the capacity", code, stun.CodeInsufficientCapacity)
			break
		}
		held = append(held, c)
	}
	if got := len(held); got == 0 || got > limit-200 {
		t.Errorf("%d allocations with %d descriptors", got, limit)
	}
	quiet := b.metric("stunner_listener_connections")
	crowd := b.connect(2 * limit) // silent connections: the oldest are closed
	b.probe()
	if code, _ := b.do(held[0], stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
		t.Errorf("free an allocation: %d", code)
	}
	live = append(live, b.call(b.options(call.TCP)))
	if code, _ := b.do(held[1], stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
		t.Errorf("free an allocation: %d", code)
	}

	for _, conn := range crowd {
		_ = conn.Close()
	}
	b.await("the idle connections are closed", func(ctx context.Context) error {
		open, err := bed.Metric(ctx, b.config.Admin.MetricsEndpoint, "stunner_listener_connections")
		if want := quiet + 1; err == nil && open != want { // the last live call
			err = fmt.Errorf("%.0f connections, want %.0f", open, want)
		}
		return err
	})
	taken := b.files()
	b.limitFiles(taken+4, limit) // the reserve for probes is larger
	b.connect(3)                 // occupy the gaps in the descriptor numbers
	b.await("no descriptor is free for clients", func(context.Context) error {
		if free := b.lowestFree(); free < taken-6 {
			return fmt.Errorf("%d is free, with %d taken", free, taken)
		}
		return nil
	})
	waiting := make(chan error, 1)
	go func() {
		c, err := call.Start(t.Context(), b.options(call.TCP))
		if err == nil {
			c.End(0)
		}
		waiting <- err
	}()
	const window = 4 * time.Second
	before, began := b.processor(), time.Now()
	for time.Since(began) < window {
		b.probe()
		code, _ := b.do(b.client(limit), stun.MethodAllocate, ask.UDP())
		mustRefuse(t, "allocation without a descriptor", code, stun.CodeInsufficientCapacity)
		time.Sleep(5 * pace)
	}
	// A loop of failing accept calls would use a whole CPU. The usage of calls and probes depends on the machine.
	if share := float64(b.processor()-before) / float64(time.Since(began)); share > 0.5 {
		t.Errorf("%.0f %% CPU while no connection can be accepted", share*100)
	} else {
		t.Logf("%.1f %% CPU while no connection can be accepted, with %d calls and the probes", share*100, len(live))
	}
	if len(waiting) > 0 {
		t.Error("accepted without a free descriptor")
	}
	b.limitFiles(limit, limit)
	if err := <-waiting; err != nil {
		t.Errorf("not accepted after descriptors became free: %v", err)
	}
	b.unharmed(live, silence)
}

// connect opens connections to the TCP listener, which are closed last at the end of the test.
func (b *bench) connect(n int) (all []net.Conn) {
	b.t.Helper()
	for range n {
		conn, err := net.Dial("tcp", b.at(call.TCP).String())
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { _ = conn.Close() })
		all = append(all, conn)
	}
	return all
}

// limitFiles changes RLIMIT_NOFILE of the running process.
func (b *bench) limitFiles(soft, hard int) {
	b.t.Helper()
	set := exec.Command("prlimit", fmt.Sprintf("--pid=%d", b.process.PID()), fmt.Sprintf("--nofile=%d:%d", soft, hard))
	if out, err := set.CombinedOutput(); err != nil {
		b.t.Fatalf("limit descriptors: %v: %s", err, out)
	}
}

// probe sends the probes as a kubelet does, over a new connection each time.
func (b *bench) probe() {
	b.t.Helper()
	fresh := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/ready", "/live"} {
		res, err := fresh.Get(b.health() + path)
		if err != nil {
			b.t.Fatalf("probe: %v", err)
		}
		if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
			b.t.Errorf("%s: status %d", path, res.StatusCode)
		}
	}
}

// with 100 relay ports and 200 clients, every client gets a port of its own or 508. A freed port can be allocated
// again.
func TestR19RelayPorts(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	const ports, first = 100, 40000
	b := newBench(t) // first, so that the peer does not take one of the ports
	if err := os.WriteFile(
		"/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, first+ports-1), 0o600,
	); err != nil {
		t.Fatal(err)
	}
	b.run()
	holders := map[uint16]*ask.Client{}
	refused := 0
	for i := range 2 * ports {
		c, err := ask.DialFrom(netip.AddrPortFrom(source(i), 5000), b.at(call.UDP), user, password)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		answer, _ := b.answer(c, stun.MethodAllocate, ask.UDP())
		if code := ask.Code(answer); code != 0 {
			refused++
			mustRefuse(t, "allocation without a port", code, stun.CodeInsufficientCapacity)
			continue
		}
		relay, err := ask.Relayed(answer)
		if err != nil || relay.Port() < first || relay.Port() >= first+ports || holders[relay.Port()] != nil {
			t.Fatalf("relay %s: not in the range, or allocated twice: %v", relay, err)
		}
		holders[relay.Port()] = c
	}
	if got := len(holders); got < ports-1 || got+refused != 2*ports {
		t.Errorf("%d of %d ports allocated, %d clients refused", got, ports, refused)
	}
	for port, c := range holders {
		if code, _ := b.do(c, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
			t.Fatalf("free port %d: %d", port, code)
		}
		if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Errorf("allocate after a port was freed: %d", code)
		}
	}
	t.Logf("%d ports allocated, %d clients refused", len(holders), refused)
}

// container is a memory cgroup that a program sees as the root cgroup, as in a container.
type container struct {
	t    *testing.T
	dir  string
	root string // path of the cgroup as the program sees it
	peak func() int
}

func newContainer(t *testing.T, limit int) *container {
	t.Helper()
	c := &container{t: t, root: "/sys/fs/cgroup/memory"}
	files := map[string]string{"limit": "memory.limit_in_bytes", "peak": "memory.max_usage_in_bytes"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		c.root, files = "/sys/fs/cgroup", map[string]string{"limit": "memory.max", "peak": "memory.peak"}
	}
	c.dir = filepath.Join(c.root, fmt.Sprintf("e2e-faults-%d", os.Getpid()))
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the process was killed before, but the kernel may not have removed it yet
		for deadline := time.Now().Add(patience); os.Remove(c.dir) != nil &&
			time.Now().Before(deadline); time.Sleep(pace) {
		}
	})
	if err := os.WriteFile(filepath.Join(c.dir, files["limit"]), fmt.Append(nil, limit), 0o600); err != nil {
		t.Fatal(err)
	}
	c.peak = func() (n int) {
		data, err := os.ReadFile(filepath.Join(c.dir, files["peak"]))
		if err == nil {
			_, err = fmt.Sscan(string(data), &n)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return c
}

// enter returns a command that runs a program in the cgroup.
func (c *container) enter(program string) bed.Command {
	const script = `echo $$ >"$0/cgroup.procs" && mount --bind "$0" "$1" && shift && exec "$@"`
	return bed.Command{Path: "unshare", Args: []string{"--mount", "sh", "-c", script, c.dir, c.root, program}}
}
