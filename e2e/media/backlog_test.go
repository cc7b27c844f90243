package media

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// backlog is a load in the receive buffers of a server: the generator sends it while the server is stopped, and sleeps
// while the server relays it. So the server can use all cores of the machine.
type backlog struct {
	up bool
	// each is the number of datagrams that a client sends or receives. Consecutive datagrams in a buffer belong to
	// different clients.
	clients, each int
}

const (
	// backlogs is the number of measured backlogs for one start of a server. An additional first backlog, which opens
	// sockets, is not measured.
	backlogs = 5
	// backlogBuffer is the size of each receive buffer of the server. A whole backlog fits.
	backlogBuffer = 64 << 20
)

// scaling compares the rate of a server on two cores with that on one, with the same clients.
func (b backlog) scaling(t *testing.T, s *stage, what server) figures {
	var rates, costs [3]float64
	f := figures{loss: 0}
	for _, i := range rand.Perm(2) {
		n := i + 1
		t.Run(fmt.Sprintf("%d cores", n), func(t *testing.T) {
			runtime.LockOSThread()
			var lost float64
			rates[n], costs[n], lost = b.measure(t, s, what, n)
			f[loss] = max(f[loss], lost)
		})
	}
	f[rate], f[rateOfTwo] = rates[1], rates[2]
	f[rateRatio], f[costRatio] = rates[2]/rates[1], costs[2]/costs[1]
	return f
}

// measure returns the medians of rate and cost of a server on a number of cores, and the largest loss.
func (b backlog) measure(t *testing.T, s *stage, what server, n int) (rate, cost, lost float64) {
	t.Helper()
	p := s.start(t, what, n)
	l := load{size: 160, burst: 1, up: b.up, down: !b.up, clients: b.clients, peers: b.clients}
	options := []int{unix.SO_TIMESTAMPNS, unix.SO_REUSEPORT}
	g := s.newGenerator(t, what, l, options...)
	sinks, space := []*socket{g.peers}, s.peers
	if !b.up {
		sinks, space = []*socket{g.clients}, s.clients
	}
	for len(sinks) < cores {
		sinks = append(sinks, open(t, space, options...))
	}
	receiveByCore(t, sinks)
	prioritize(t, p)
	var rates, costs []float64
	for i := range 1 + backlogs {
		enlargeBuffers(t, p)
		stop(t, p)
		b.send(t, g)
		runtime.GC() // no collection may begin while the server needs this core
		before := cpu(t, p)
		harnesstest.NoError(t, p.Signal(unix.SIGCONT))
		d := g.collect(t, sinks)
		used := cpu(t, p) - before
		if g.wrong > 0 || g.received < 2 || g.received > g.sent {
			t.Fatalf("%s: of %d datagrams %d arrived, and %d with wrong contents or at a wrong address", what.name,
				g.sent, g.received, g.wrong)
		}
		if i > 0 {
			rates = append(rates, float64(g.received-1)/d.Seconds())
			costs = append(costs, micros(used)/float64(g.received))
			lost = max(lost, g.lost())
		}
	}
	return median(rates), median(costs), lost
}

// send sends the backlog.
func (b backlog) send(t *testing.T, g *generator) {
	t.Helper()
	g.count = count{}
	for range b.clients * b.each {
		if g.put(b.up); g.clients.queued+g.peers.queued == batch {
			g.flush(t)
		}
	}
	g.flush(t)
}

// collect reads the datagrams that arrive at the sinks, and returns the time from the first to the last. It reads only
// when nothing arrives, because a server may need the core of the generator.
func (g *generator) collect(t *testing.T, sinks []*socket) time.Duration {
	t.Helper()
	const missing = time.Second // datagrams that arrive later count as lost
	first, last := int64(math.MaxInt64), int64(0)
	arrived := func(_ bool, _, at int64) { first, last = min(first, at), max(last, at) }
	prefix := map[bool]int{true: 0, false: header}[g.load.up]
	for quiet := time.Now(); g.received+g.wrong < g.sent && time.Since(quiet) < missing; {
		awaitSilence(t, sinks)
		for _, s := range sinks {
			for g.take(s, g.load.up, prefix, arrived) > 0 {
				quiet = time.Now()
			}
		}
	}
	return time.Duration(last - first)
}

// receiveByCore makes each socket of a port receive the datagrams that one core delivers. Cores that fill the same
// buffer would wait for each other, which would be a cost of the receiver.
func receiveByCore(t *testing.T, sockets []*socket) {
	t.Helper()
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtCPUID},
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(len(sockets))},
		bpf.RetA{},
	})
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	if err == nil {
		err = unix.SetsockoptSockFprog(
			sockets[0].fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]},
		)
	}
	if err != nil {
		t.Fatalf("select the receiving socket by core: %v", err)
	}
}

// stop returns when all threads of a process have stopped.
func stop(t *testing.T, p *harness.Process) {
	t.Helper()
	err := p.Signal(unix.SIGSTOP)
	if err == nil {
		err = unix.EINTR
	}
	for err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED, nil)
	}
	if err != nil {
		t.Fatalf("stop %s: %v", p.Name, err)
	}
}

// enlargeBuffers sets the size of the receive buffers of all UDP sockets of a process.
func enlargeBuffers(t *testing.T, p *harness.Process) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(p.PID(), 0)
	if err != nil {
		t.Fatalf("enlarge receive buffers of %s: %v", p.Name, err)
	}
	defer unix.Close(pidfd)
	files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID()), "fd"))
	for _, f := range files {
		number, bad := strconv.Atoi(f.Name())
		if bad == nil {
			bad = enlargeBuffer(pidfd, number)
		}
		err = errors.Join(err, bad)
	}
	if err != nil {
		t.Fatalf("enlarge receive buffers of %s: %v", p.Name, err)
	}
}

// enlargeBuffer does nothing if the descriptor is closed or no UDP socket.
func enlargeBuffer(pidfd, number int) error {
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_DGRAM {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, backlogBuffer)
}

// awaitSilence returns when nothing has arrived at sockets for a time. Meanwhile it uses almost no CPU.
func awaitSilence(t *testing.T, sockets []*socket) {
	t.Helper()
	const look, enough = 10 * time.Millisecond, 3
	for held, same := 0, 0; same < enough; {
		time.Sleep(look)
		now := 0
		for _, s := range sockets {
			now += s.held(t)
		}
		if same++; now != held {
			held, same = now, 0
		}
	}
}
