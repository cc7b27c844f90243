// Package offload forwards the data of channels in the kernel, by BPF programs at the traffic control hooks of network
// interfaces (bpf/turn.c).
//
// User space makes each decision, and the kernel repeats it: a relay arms a Binding after it has forwarded a packet of
// a channel. From then on the kernel forwards the packets of that channel in both directions, until the binding ends,
// its time is over, or its Group is invalidated. A packet of an unsupported form, for example a fragment or ChannelData
// with padding, is passed to user space, which handles it as without this package. STUN messages of clients to peers
// are passed to user space too.
//
// A relay reads Group.Generation before the view of the routes by which it judges a packet, and arms with that
// generation. A config change stores the new view and then calls Group.Invalidate. So an entry that was judged by an
// old view is never live.
//
// The programs do not compute routes. The first packets of a binding go through user space, and the egress program
// records by which interface and source address they leave. The programs forward packets up to the length of the
// longest one that has left unfragmented, because the MTU of the path may be smaller than that of the interface.
// Clients and peers that are not reached through an interface with the programs, such as those behind the loopback
// interface, stay in user space.
//
// With EngineXDP, a program in the driver of a network card forwards packets before these programs, if client and peer
// are behind its interface. It takes the Ethernet header of the next host from packets that have left, and passes a
// packet to the other programs about once a second to learn the header again. It sends the same frames as the other
// programs.
//
// Nothing is pinned. TCX links end with the process. The filters of clsact remain when a process is killed: they
// forward nothing from then on, and the next Open in the same network namespace removes them.
//
// # Files
//
//	bpf/turn.c                       the BPF programs; make gen compiles them
//	binding.go table.go              arming and end of bindings
//	offload.go                       engines and status
//	host_linux.go                    the engine Auto
//	kernel_linux.go                  TCX and XDP
//	clsact_linux.go                  clsact
//	links_linux.go                   interfaces
//	follow_linux.go change_linux.go  changes of the network
//	netlink_linux.go                 requests to the kernel
//	model_test.go                    a second implementation of bpf/turn.c, for random frames
package offload

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Values of Options.Engine. The dataplane config has the same values.
const (
	EngineNone = "None"
	EngineTC   = "TC"
	EngineXDP  = "XDP"
	EngineAuto = "Auto"
)

// Mechanism is how the programs are attached.
type Mechanism string

const (
	// None means that no packet is forwarded in the kernel.
	None Mechanism = "None"
	// TCX is available in Linux 6.6 and later.
	TCX Mechanism = "TCX"
	// Clsact is a queueing discipline with filters. The programs need Linux 6.1.
	Clsact Mechanism = "clsact"
	// XDP is a program in the driver of the network card, in front of TCX or Clsact.
	XDP Mechanism = "XDP"
)

// DefaultMaxBindings is the default of Options.MaxBindings.
const DefaultMaxBindings = 65536

// Options configures an Offload.
type Options struct {
	// Engine is None, TC, XDP or Auto. XDP is TC and, at interfaces whose driver supports it, a program that forwards
	// packets between a client and a peer behind the same interface. Auto is TC, or None in the network namespace of
	// the host.
	Engine string
	// Interfaces are the names of the interfaces of the programs. Empty means all Ethernet interfaces, veth included.
	// Interfaces may appear and disappear at any time. Ports of a bridge or a bond are not used: the programs forward
	// at the interface on top.
	Interfaces []string
	// MaxBindings bounds the bindings in the kernel, each of which takes 256 bytes of locked memory from the start.
	// Further bindings stay in user space. 0 means DefaultMaxBindings.
	MaxBindings int
	Log         *slog.Logger

	// mechanisms are the mechanisms to try, in this order. Only tests set it and sysctls (see onHost).
	mechanisms []Mechanism
	sysctls    string
	xdpMode    link.XDPAttachFlags // replaces the mode of the driver, also for veth interfaces
}

// Status describes an Offload at one moment.
type Status struct {
	// Engine is the requested engine.
	Engine string
	// Mechanism is the mechanism in use. It is None while no interface has the programs.
	Mechanism Mechanism
	// Reason says why packets are not forwarded in the kernel, or not as requested. It is empty otherwise.
	Reason string
	// Interfaces are the interfaces with the programs, sorted by name.
	Interfaces []string
	// Bindings is the number of armed bindings.
	Bindings, MaxBindings int
	// Exhausted counts calls of Arm that failed because all slots were in use, or all slots that one client may use.
	Exhausted uint64
}

// Offload is the in-kernel path of one process in one network namespace. All methods of a nil Offload, of its nil
// Groups and of zero Bindings are valid: nothing is ever armed.
type Offload struct {
	options Options
	log     *slog.Logger
	table   *table
	kernel  *kernel
	started time.Time // the same instant as startedNS
	ns      int64     // CLOCK_MONOTONIC at started, in nanoseconds

	mu       sync.Mutex
	attached map[int]*attachment // by interface index
	failed   map[string]string   // interface name to the reason
	reason   string
	closed   bool

	exhausted atomic.Uint64
	warnings  exhaustion
	stop      func()
	done      chan struct{}
}

// Open loads the programs and attaches them to the interfaces, and follows appearing and disappearing interfaces until
// Close. It never fails: if the programs cannot be used, the status has the reason, and every packet stays in user
// space.
//
// It needs Linux 6.1, and the capabilities CAP_BPF and CAP_NET_ADMIN. The verifier of earlier kernels allows
// comparisons of pointers into packets only with CAP_PERFMON.
//
// In the network namespace of a node, redirected packets bypass the packet filter of the node, and with it its network
// policies. So callers use EngineAuto there like EngineNone.
func Open(o Options) *Offload {
	if o.MaxBindings <= 0 {
		o.MaxBindings = DefaultMaxBindings
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.mechanisms == nil {
		o.mechanisms = []Mechanism{TCX, Clsact}
	}
	f := &Offload{options: o, log: o.Log, attached: map[int]*attachment{}, failed: map[string]string{}}
	f.started, f.ns = time.Now(), monotonic()
	switch o.Engine {
	case EngineTC, EngineXDP:
	case EngineAuto:
		if onHost(cmp.Or(o.sysctls, sysctls)) {
			f.reason = "in the network namespace of the host, Auto means None, because forwarded packets bypass " +
				"the packet filter of the host: use TC to accept this, or None"
			f.log.Warn("media is not forwarded in the kernel", "engine", o.Engine, "reason", f.reason)
			return f
		}
	case EngineNone, "":
		return f
	default:
		f.reason = fmt.Sprintf("engine %q is unknown: use None, TC, XDP or Auto", o.Engine)
		return f
	}
	if err := f.open(); err != nil {
		f.reason = err.Error()
		f.log.Warn("media is not forwarded in the kernel", "engine", o.Engine, "reason", err)
	}
	return f
}

func (f *Offload) open() error {
	k, err := load(f.options.MaxBindings, f.options.Engine == EngineXDP)
	if err != nil && f.options.Engine == EngineXDP {
		var without error
		if k, without = load(f.options.MaxBindings, false); without == nil {
			f.reason = "TC is used instead of XDP: " + err.Error()
		}
		err = without
	}
	if err != nil {
		return err
	}
	f.kernel = k
	f.table = newTable(f, k)
	if err := f.follow(); err != nil {
		return errors.Join(err, f.Close())
	}
	if s := f.Status(); s.Mechanism != None {
		f.log.Info("media is forwarded in the kernel", "mechanism", s.Mechanism, "interfaces", s.Interfaces)
	}
	return nil
}

// monotonic returns CLOCK_MONOTONIC, which is the clock of the programs and of time.Time.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// nanoseconds converts a time to the clock of the programs. The result of a time in the past is at least 1.
func (f *Offload) nanoseconds(t time.Time) uint64 {
	return uint64(max(1, f.ns+int64(t.Sub(f.started))))
}

// time converts a time of the clock of the programs.
func (f *Offload) time(ns uint64) time.Time { return f.started.Add(time.Duration(int64(ns) - f.ns)) }

// Status returns the current status.
func (f *Offload) Status() Status {
	if f == nil {
		return Status{Engine: EngineNone, Mechanism: None}
	}
	s := Status{
		Engine: f.options.Engine, Mechanism: None, MaxBindings: f.options.MaxBindings, Exhausted: f.exhausted.Load(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.attached {
		s.Interfaces = append(s.Interfaces, a.name)
		s.Mechanism = worse(s.Mechanism, a.mechanism)
	}
	slices.Sort(s.Interfaces)
	if f.table != nil {
		s.Bindings = f.table.armed()
	}
	s.Reason = f.why(s.Interfaces)
	return s
}

// worse returns the mechanism to report for two interfaces together.
func worse(a, b Mechanism) Mechanism {
	order := []Mechanism{None, XDP, TCX, Clsact}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// withoutXDP returns why no interface has an XDP program, with EngineXDP. It returns nothing if one interface has it: a
// node has interfaces of pods besides its network card, and XDP does not support those. The caller holds f.mu.
func (f *Offload) withoutXDP() (reasons []string) {
	for _, a := range f.attached {
		switch {
		case a.mechanism == XDP:
			return nil
		case a.noXDP != "":
			reasons = append(reasons, "interface "+a.name+": TC is used instead of XDP: "+a.noXDP)
		}
	}
	return reasons
}

// why returns the reason of the status. The caller holds f.mu.
func (f *Offload) why(attached []string) string {
	var reasons []string
	if f.reason != "" {
		reasons = append(reasons, f.reason)
	}
	if f.table == nil || f.closed {
		return strings.Join(reasons, "; ")
	}
	for name, why := range f.failed {
		reasons = append(reasons, "interface "+name+": "+why)
	}
	reasons = append(reasons, f.withoutXDP()...)
	for _, name := range f.options.Interfaces {
		if _, failed := f.failed[name]; !failed && !slices.Contains(attached, name) {
			reasons = append(reasons, "interface "+name+" does not exist")
		}
	}
	if len(attached) == 0 && len(reasons) == 0 {
		reasons = append(reasons, "there is no Ethernet interface")
	}
	slices.Sort(reasons)
	return strings.Join(reasons, "; ")
}

// warnInterval is the minimum time between two log messages about bindings in use.
const warnInterval = time.Minute

// exhaustion logs that all bindings are in use. It is not safe for concurrent use.
type exhaustion struct {
	last    time.Time
	counted uint64 // attempts that were logged
}

func (e *exhaustion) log(log *slog.Logger, attempts uint64, bindings int, now time.Time) {
	if attempts == e.counted || now.Sub(e.last) < warnInterval {
		return
	}
	log.Warn("channels stay in user space because all bindings of the in-kernel path are in use, or all that a client may have",
		"bindings", bindings, "attempts", attempts-e.counted)
	e.last, e.counted = now, attempts
}

// Close ends all bindings, calls their Count a last time, and removes the programs from the interfaces.
func (f *Offload) Close() error {
	if f == nil || f.kernel == nil {
		return nil
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	if f.stop != nil {
		f.stop()
		<-f.done
	}
	f.table.close()
	var errs []error
	f.mu.Lock()
	for _, a := range f.attached {
		errs = append(errs, a.close())
	}
	clear(f.attached)
	f.mu.Unlock()
	f.table.foldAll()
	f.table.releaseAll()
	errs = append(errs, f.kernel.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove programs: %w", err)
	}
	return nil
}
