package offload

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// relayEnv is the environment variable that makes this test program run as a relay. Its value is a relayConfig.
const relayEnv = "OFFLOAD_TEST_RELAY"

// relayConfig configures a relay process. Like stunnerd, this process forwards ChannelData in user space, and arms a
// binding after the first packet.
type relayConfig struct {
	Engine      string
	Mechanisms  []Mechanism
	XDPMode     link.XDPAttachFlags
	Interfaces  []string
	MaxBindings int
	Bindings    []relayBinding
	// Lifetime is the lifetime of channels, 10 minutes by default. Permission is the lifetime of permissions, by
	// default Lifetime.
	Lifetime, Permission time.Duration
}

type relayBinding struct {
	Client, Listener, Peer, Relay netip.AddrPort
	Channel                       uint16
}

// relayState is the answer of a relay process to a command.
type relayState struct {
	Status Status
	// User counts the packets that the process itself has forwarded. Kernel counts the packets that the programs have
	// forwarded.
	User, Kernel Counters
	// Ended counts the packets of ended channels that the process has discarded.
	Ended uint64
	// Runs is the number of runs of the ingress program. RunTime is the run time of all programs that forward, while
	// the kernel keeps statistics of programs.
	Runs    uint64
	RunTime time.Duration
	// CPU is the CPU time of the command, which does not depend on the load of the machine.
	CPU     time.Duration
	Error   string
	Objects objects
}

// objects are the names of programs and maps by their identifiers.
type objects struct {
	Programs map[ebpf.ProgramID]string
	Maps     map[ebpf.MapID]string
}

// relayProcess is a running relay.
type relayProcess struct {
	config  relayConfig
	command *exec.Cmd
	in      *bufio.Writer
	out     *bufio.Scanner
}

// capabilities are the capabilities that the in-kernel path needs (linux/capability.h).
var capabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_BPF}

// startRelay starts a relay process in the network namespace of the calling thread, with no other privileges than caps.
func startRelay(c relayConfig, caps []uintptr) (*relayProcess, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// The process runs as a user that has no access to the folder of the test program.
	p := &relayProcess{config: c, command: exec.Command("/proc/self/exe")}
	p.command.Env = append(os.Environ(), relayEnv+"="+string(text))
	p.command.Stderr = os.Stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps, Pdeathsig: syscall.SIGKILL,
	}
	in, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = bufio.NewWriter(in), bufio.NewScanner(out)
	return p, p.command.Start()
}

func (p *relayProcess) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// do sends a command and returns the state after it.
func (p *relayProcess) do(t testing.TB, format string, arguments ...any) relayState {
	t.Helper()
	_, _ = fmt.Fprintf(p.in, format+"\n", arguments...)
	if err := p.in.Flush(); err != nil {
		t.Fatal(err)
	}
	var s relayState
	if !p.out.Scan() {
		t.Fatalf("relay process: %v", errors.Join(p.out.Err(), errors.New("no answer")))
	}
	if err := json.Unmarshal(p.out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Error != "" {
		t.Fatal(s.Error)
	}
	return s
}

// waiting is the number of tests that run at a time on a small machine. Many of them mostly wait.
const waiting = 4

func TestMain(m *testing.M) {
	if text := os.Getenv(relayEnv); text != "" {
		relayMain(text)
		return
	}
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given && runtime.GOMAXPROCS(0) < waiting {
		_ = flag.Set("test.parallel", fmt.Sprint(waiting))
	}
	os.Exit(m.Run())
}

// flow is an atomic Flow.
type flow struct{ packets, bytes atomic.Uint64 }

func (f *flow) add(packets, bytes uint64) {
	f.packets.Add(packets)
	f.bytes.Add(bytes)
}
func (f *flow) load() Flow { return Flow{f.packets.Load(), f.bytes.Load()} }

// testRelay is the relay process.
type testRelay struct {
	config                                 relayConfig
	offload                                *Offload
	group                                  *Group
	userUp, userDown, kernelUp, kernelDown flow
	ended                                  atomic.Uint64
	bindings                               []*testBinding
	objects                                objects
}

type testBinding struct {
	relayBinding
	binding  Binding
	listener *net.UDPConn
	relay    *net.UDPConn
	arming   sync.Mutex // so that no packet arms the binding after its end
	ended    atomic.Bool
	until    atomic.Pointer[time.Time]
}

func relayMain(text string) {
	r := &testRelay{}
	if err := json.Unmarshal([]byte(text), &r.config); err != nil {
		panic(err)
	}
	if r.config.Lifetime == 0 {
		r.config.Lifetime = 10 * time.Minute
	}
	if r.config.Permission == 0 {
		r.config.Permission = r.config.Lifetime
	}
	r.offload = Open(Options{
		Engine: r.config.Engine, Interfaces: r.config.Interfaces, MaxBindings: r.config.MaxBindings,
		Log: slog.New(
			slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}),
		), mechanisms: r.config.Mechanisms, xdpMode: r.config.XDPMode,
	})
	r.group = r.offload.NewGroup()
	listeners := map[netip.AddrPort]*net.UDPConn{}
	for _, b := range r.config.Bindings {
		c := &testBinding{relayBinding: b, listener: listeners[b.Listener]}
		var err error
		if c.listener == nil {
			if c.listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(b.Listener)); err != nil {
				panic(err)
			}
			listeners[b.Listener] = c.listener
		}
		network := "udp4"
		if b.Peer.Addr().Is6() {
			network = "udp6"
		}
		if c.relay, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(b.Relay)); err != nil {
			panic(err)
		}
		c.extend(r.config.Lifetime)
		r.bindings = append(r.bindings, c)
	}
	for _, l := range listeners {
		go r.fromClients(l)
	}
	for _, c := range r.bindings {
		go r.fromPeer(c)
	}
	r.serve()
}

func (c *testBinding) extend(lifetime time.Duration) {
	until := time.Now().Add(lifetime)
	c.until.Store(&until)
}

func (r *testRelay) arm(c *testBinding, generation Generation) {
	c.arming.Lock()
	defer c.arming.Unlock()
	if c.binding.Live(generation) || c.ended.Load() {
		return
	}
	until := *c.until.Load()
	generation.Arm(&c.binding, Entry{
		Client: c.Client, Listener: c.Listener, Channel: c.Channel, Peer: c.Peer, Relay: c.Relay,
		Until: until, Permitted: time.Now().Add(r.config.Permission), Prolong: r.config.Permission,
		Count: func(n Counters) {
			r.kernelUp.add(n.Up.Packets, n.Up.Bytes)
			r.kernelDown.add(n.Down.Packets, n.Down.Bytes)
		},
	})
}

func (r *testRelay) fromClients(conn *net.UDPConn) {
	b := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if n < 4 {
			continue
		}
		number, length := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		for _, c := range r.bindings {
			client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			switch {
			case c.Client != client || c.listener != conn || c.Channel != number || n < 4+length ||
				time.Now().After(*c.until.Load()):
			case c.ended.Load():
				r.ended.Add(1)
			default:
				generation := r.group.Generation()
				r.userUp.add(1, uint64(length)) // before the packet is sent, so that a test reads the new count
				_, _ = c.relay.WriteToUDPAddrPort(b[4:4+length], c.Peer)
				r.arm(c, generation)
			}
		}
	}
}

func (r *testRelay) fromPeer(c *testBinding) {
	b := make([]byte, 65536)
	for {
		n, from, err := c.relay.ReadFromUDPAddrPort(b[4:])
		if err != nil {
			return
		}
		if c.Peer != netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) || time.Now().After(*c.until.Load()) {
			continue
		}
		if c.ended.Load() {
			r.ended.Add(1)
			continue
		}
		generation := r.group.Generation()
		binary.BigEndian.PutUint16(b, c.Channel)
		binary.BigEndian.PutUint16(b[2:], uint16(n))
		r.userDown.add(1, uint64(n))
		_, _ = c.listener.WriteToUDPAddrPort(b[:4+n], c.Client)
		r.arm(c, generation)
	}
}

// threadCPU returns the CPU time that this thread has used.
func threadCPU() time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Nano())
}

// serve executes commands. It answers each with the state.
func (r *testRelay) serve() {
	runtime.LockOSThread() // for threadCPU
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		var s relayState
		started := threadCPU()
		if err := r.execute(words); err != nil {
			s.Error = err.Error()
		}
		s.CPU = threadCPU() - started
		r.offload.Fold()
		s.Status = r.offload.Status()
		s.Ended = r.ended.Load()
		s.User = Counters{r.userUp.load(), r.userDown.load()}
		s.Kernel = Counters{r.kernelUp.load(), r.kernelDown.load()}
		if err := r.kernel(&s); err != nil {
			s.Error = err.Error()
		}
		answer, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", answer)
	}
}

// kernel adds the state of the programs and maps, as the kernel reports it.
func (r *testRelay) kernel(s *relayState) error {
	if s.Status.Mechanism == None {
		return nil
	}
	programs := r.offload.kernel.collection.Programs
	if r.objects.Programs == nil { // programs stay the same, and reading all of them takes longer than most commands
		r.objects = objects{map[ebpf.ProgramID]string{}, map[ebpf.MapID]string{}}
		for name, p := range programs {
			info, err := p.Info()
			if err != nil {
				return err
			}
			id, _ := info.ID()
			r.objects.Programs[id] = name
		}
		for name, m := range r.offload.kernel.collection.Maps {
			info, err := m.Info()
			if err != nil {
				return err
			}
			id, _ := info.ID()
			r.objects.Maps[id] = name
		}
	}
	s.Objects = r.objects
	for _, name := range []string{"relay_in", "enter_in", "relay_xdp"} {
		p := programs[name]
		if p == nil {
			continue
		}
		stats, err := p.Stats()
		if err != nil {
			return err
		}
		s.RunTime += stats.Runtime
		if name != "relay_xdp" {
			s.Runs += stats.RunCount
		}
	}
	return nil
}

func (r *testRelay) execute(words []string) error {
	switch words[0] {
	case "state":
	case "fold":
		r.offload.Fold()
	case "invalidate":
		r.group.Invalidate()
	case "end":
		c := r.bindings[0]
		c.arming.Lock()
		defer c.arming.Unlock()
		c.ended.Store(true)
		c.binding.End()
	case "restart": // the channel is bound again, after the end of its binding
		r.bindings[0].ended.Store(false)
	case "renew":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		r.bindings[0].extend(d)
		r.bindings[0].binding.Renew(*r.bindings[0].until.Load(), *r.bindings[0].until.Load())
	case "fill": // arms bindings that have no sockets
		var n int
		if _, err := fmt.Sscan(words[1], &n); err != nil {
			return err
		}
		return r.fill(n)
	case "close":
		return r.offload.Close()
	default:
		return fmt.Errorf("unknown command %q", words[0])
	}
	return nil
}

func (r *testRelay) fill(n int) error {
	client, peer := netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.98.0.1")
	for i := range n {
		if i%60000 == 0 {
			client, peer = client.Next(), peer.Next()
		}
		port := uint16(1024 + i%60000)
		e := Entry{
			Client: netip.AddrPortFrom(
				client,
				port,
			), Listener: netip.MustParseAddrPort("10.77.1.1:3478"), Channel: 0x4000,
			Peer: netip.AddrPortFrom(peer, port), Relay: netip.MustParseAddrPort("10.77.2.1:5000"),
			Until: time.Now().Add(time.Hour), Permitted: time.Now().Add(time.Hour),
		}
		if !r.group.Generation().Arm(new(Binding), e) {
			return fmt.Errorf("binding %d was not armed: %+v", i, r.offload.Status())
		}
	}
	return nil
}
