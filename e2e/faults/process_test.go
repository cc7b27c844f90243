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

// told to end under load, a process keeps every call that it has, sends new ones elsewhere, and ends with the last one.
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
			t.Errorf("a new call over %s while draining", network)
		} else if !errors.Is(err, call.ErrRefused) {
			t.Errorf("a new call over %s: %v, want a refusal", network, err)
		}
	}
	b.unharmed(live, 3*silence) // which counts from when the first of a hundred calls was up and the others shook hands
	b.ended(time.Second)
}

// a second SIGTERM does not wait for anybody.
func TestR08SecondSignalUnderLoad(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.crowd(5)
	b.signal(syscall.SIGTERM)
	b.await("draining", func(context.Context) error {
		if got := b.metric("stunner_allocations_draining"); got != float64(len(live)) {
			return errors.New("not all drain")
		}
		return nil
	})
	b.signal(syscall.SIGTERM)
	b.ended(2 * time.Second)
}

// after SIGKILL a new process serves from the last good config while discovery is away, and tells clients of the old one at once that
// their allocations are gone.
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
	b.start(h.url(), "--state-dir", state)
	t.Logf("serves %s after the start", b.within(2*time.Second, "ready", bed.Answers(b.health()+"/ready", http.StatusOK)))
	for i, c := range old {
		for method, attrs := range b.three() {
			b.mismatch(c, method, attrs)
		}
		if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Errorf("client %d allocates again: %d", i, code)
		}
	}
}

// mismatch sends a request for an allocation that is gone. A retransmission would be silence to a client.
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
			b.t.Errorf("%s for an allocation that is gone: %d, want 437", method, code)
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

// in a container with little memory, clients beyond its capacity are sent elsewhere before the kernel ends the process, and the calls
// that it has go on.
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
		t.Errorf("the garbage collector aims at %.0f bytes, want nine tenths of %d", got, limit)
	}
	live := b.calls(1)
	var held []*ask.Client
	refused := 0
	for i := range capacity + 50 {
		c := b.client(i)
		c.Username, c.Password = b.user(i) // one user alone does not get the last of it
		switch code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); {
		case code == 0:
			held = append(held, c)
		default:
			refused++
			mustRefuse(t, "allocation beyond the capacity", code, stun.CodeInsufficientCapacity)
		}
	}
	if got := len(held) + len(live); got != capacity || refused == 0 {
		t.Errorf("%d allocations and %d refused, want %d, which is what the memory is for", got, refused, capacity)
	}
	for _, c := range held { // each does what costs most: a channel, and media through it
		if code, _ := b.do(c, stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...); code != 0 {
			t.Fatalf("bind channel: %d", code)
		}
		b.echoes(c)
	}
	b.unharmed(live, silence)
	t.Logf("%d allocations took %d of %d KiB", capacity, group.peak()>>10, limit>>10)
}

// with few descriptors, silent connections make room for others, and where there is none left, new clients are sent elsewhere or wait at
// the door, at no cost, and probes are answered.
func TestR18Descriptors(t *testing.T) {
	const limit = 256
	b := newBench(t)
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.startAs(bed.Command{Path: "prlimit", Args: []string{fmt.Sprintf("--nofile=%d:%d", limit, limit), stunnerd}}, b.file)
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
	crowd := b.connect(2 * limit) // and say nothing: the oldest have to go
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
	b.await("the crowd is gone", func(ctx context.Context) error {
		open, err := bed.Metric(ctx, b.config.Admin.MetricsEndpoint, "stunner_listener_connections")
		if want := quiet + 1; err == nil && open != want { // the last of the live calls
			err = fmt.Errorf("%.0f connections, want %.0f", open, want)
		}
		return err
	})
	taken := b.files()
	b.limitFiles(taken+4, limit) // what is kept for the probes is more
	b.connect(3)                 // take the descriptors that the crowd and the freed allocation left between others
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
	// Whoever asks for a descriptor again and again takes a whole processor; what the calls and the probes take depends on how fast it is.
	if share := float64(b.processor()-before) / float64(time.Since(began)); share > 0.5 {
		t.Errorf("%.0f %% of a processor while nobody can be let in", share*100)
	} else {
		t.Logf("%.1f %% of a processor while nobody can be let in, with %d calls and the probes", share*100, len(live))
	}
	if len(waiting) > 0 {
		t.Error("let in without a descriptor")
	}
	b.limitFiles(limit, limit)
	if err := <-waiting; err != nil {
		t.Errorf("let in as soon as there are descriptors again: %v", err)
	}
	b.unharmed(live, silence)
}

// connect opens connections to the TCP listener, which the test ends at last.
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

// limitFiles changes the limit of descriptors of the running process.
func (b *bench) limitFiles(soft, hard int) {
	b.t.Helper()
	set := exec.Command("prlimit", fmt.Sprintf("--pid=%d", b.process.PID()), fmt.Sprintf("--nofile=%d:%d", soft, hard))
	if out, err := set.CombinedOutput(); err != nil {
		b.t.Fatalf("limit descriptors: %v: %s", err, out)
	}
}

// probe asks like a kubelet: over a connection of its own each time.
func (b *bench) probe() {
	b.t.Helper()
	fresh := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/ready", "/live"} {
		res, err := fresh.Get(b.health() + path)
		if err != nil {
			b.t.Fatalf("probe: %v", err)
		}
		if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
			b.t.Errorf("%s answers %d", path, res.StatusCode)
		}
	}
}

// with a hundred ports and two hundred clients, every client gets a port of its own or hears 508, and a port that is given back is
// good for the next one.
func TestR19RelayPorts(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	const ports, first = 100, 40000
	b := newBench(t) // before: the peer shall not take one of the ports
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, first+ports-1), 0o600); err != nil {
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
			t.Fatalf("relay %s: not in the range, or given twice: %v", relay, err)
		}
		holders[relay.Port()] = c
	}
	if got := len(holders); got < ports-1 || got+refused != 2*ports {
		t.Errorf("%d of %d ports were given, %d clients refused", got, ports, refused)
	}
	for port, c := range holders {
		if code, _ := b.do(c, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
			t.Fatalf("free port %d: %d", port, code)
		}
		if code, _ := b.do(c, stun.MethodAllocate, ask.UDP()); code != 0 {
			t.Errorf("allocate with a port that is free again: %d", code)
		}
	}
	t.Logf("%d ports given, %d clients refused", len(holders), refused)
}

// container is a memory cgroup that a program sees as the root of all, like in a container.
type container struct {
	t    *testing.T
	dir  string
	root string // where the program looks for it
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
	t.Cleanup(func() { // the process was killed by an earlier clean-up, but the kernel may still be busy with it
		for deadline := time.Now().Add(patience); os.Remove(c.dir) != nil && time.Now().Before(deadline); time.Sleep(pace) {
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

// enter runs a program inside.
func (c *container) enter(program string) bed.Command {
	const script = `echo $$ >"$0/cgroup.procs" && mount --bind "$0" "$1" && shift && exec "$@"`
	return bed.Command{Path: "unshare", Args: []string{"--mount", "sh", "-c", script, c.dir, c.root, program}}
}
