package media

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// load describes traffic: clients in turn send a burst of datagrams to their peer (up), or receive one (down).
type load struct {
	name           string
	size, burst    int
	up, down       bool
	network        string // tcp or tls; empty means UDP
	clients, peers int
}

// figures are the results of one measurement by name.
type figures map[string]float64

// Names of figures. The table has them in this order.
const (
	cost       = "CPU per packet, µs"
	added      = "CPU added per packet, µs"
	whole      = "CPU of the machine per packet, µs"
	generates  = "CPU of the generator per packet, µs"
	share      = "used of its core, %"
	rate       = "packets/s"
	loss       = "loss, %"
	callRate   = "system calls per packet"
	switchRate = "context switches per packet"
	heap       = "heap allocations per packet"
	allocRate  = "allocations/s"
	allocCost  = "CPU per allocation, µs"
	freshRate  = "refreshes/s"
	freshCost  = "CPU per refresh, µs"
	memory     = "bytes of the process per allocation"
	slab       = "bytes of kernel slabs per allocation"
	goroutines = "goroutines per allocation"
	rateOfTwo  = "packets/s with two cores"
	rateRatio  = "packets/s with two cores : with one"
	costRatio  = "CPU per packet with two cores : with one"
)

var figureOrder = []string{
	cost, added, whole, generates, share, rate, loss, callRate, switchRate, heap, "up p50, µs", "up p99, µs", "up p99.9, µs",
	"down p50, µs", "down p99, µs", "down p99.9, µs", allocRate, allocCost, freshRate, freshCost, memory, slab,
	goroutines, rateOfTwo, rateRatio, costRatio,
}

// measure saturates a server with the load.
func (l load) measure(t *testing.T, s *stage, what server) figures {
	p := s.start(t, what, 1)
	g := s.newGenerator(t, what, l)
	g.saturate(t, *duration/10)
	allocated := 0.0
	if what.product {
		allocated = metric(t, "go_memstats_mallocs_total")
	}
	runtime.GC()
	before, idle := cpu(t, p), machineIdle(t)
	n := g.saturate(t, *duration)
	used := cpu(t, p) - before
	busy := time.Duration(cores)*n.wall - (machineIdle(t) - idle)
	packets := float64(n.received)
	if n.wrong > 0 || n.received == 0 {
		t.Fatalf("%s: of %d datagrams %d arrived, and %d with wrong contents or at a wrong address", what.name, n.sent,
			n.received, n.wrong)
	}
	f := figures{
		cost:      micros(used) / packets,
		generates: micros(n.busy) / packets,
		share:     100 * float64(used) / float64(n.wall),
		rate:      packets / n.wall.Seconds(),
		loss:      n.lost(),
		whole:     micros(busy-n.idle-time.Duration(s.noise*float64(n.wall))) / packets,
	}
	if what.product {
		f[heap] = (metric(t, "go_memstats_mallocs_total") - allocated) / packets
	}
	if p != nil {
		if calls, ok := systemCalls(t, p, func() { n = g.saturate(t, *duration/4) }); ok {
			f[callRate] = calls / float64(n.received)
		}
	}
	return f
}

// mostSwitches is the limit of context switches for each datagram that arrives alone: one to the thread that waits for
// it, and a few to threads of the Go runtime. If threads took turns, each datagram would be delayed by one more switch.
const mostSwitches = 1.5

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// rest returns the number of cores that other programs use.
func rest(t *testing.T) float64 {
	t.Helper()
	const d = time.Second
	idle := machineIdle(t)
	time.Sleep(d)
	return max(0, float64(cores)-float64(machineIdle(t)-idle)/float64(d))
}

// latencies sends 5,000 datagrams a second in each direction, and measures the time from the call that sends one until
// the kernel receives it at the other end. The server has real-time priority, because a program that uses 1 % of its
// core would otherwise determine the 99th percentile.
func (l load) latencies(t *testing.T, s *stage, what server) figures {
	p := s.start(t, what, 1)
	g := s.newGenerator(t, what, l, unix.SO_TIMESTAMPNS)
	prioritize(t, p)
	// Before the kernel forwards the data of a channel, stunnerd forwards the first packets of it in both directions.
	g.pace(t, 5000, warmUp, func(bool, int64, int64) {})
	used, switched := cpu(t, p), switches(t, p)
	ages := map[string][]time.Duration{}
	g.pace(t, 5000, 2*(*duration), func(up bool, sent, at int64) {
		way := map[bool]string{true: "up", false: "down"}[up]
		ages[way] = append(ages[way], time.Duration(at-sent))
	})
	if g.wrong > 0 || len(ages) < 2 {
		t.Fatalf("%s: of %d datagrams %d arrived, and %d with wrong contents or at a wrong address", what.name, g.sent,
			g.received, g.wrong)
	}
	f := figures{loss: g.lost()}
	if p != nil {
		f[share] = 100 * float64(cpu(t, p)-used) / float64(2*(*duration)+drained)
		f[switchRate] = (switches(t, p) - switched) / float64(g.received)
	}
	if what.name == "stunnerd" && f[switchRate] > mostSwitches {
		t.Errorf("%.2f context switches a datagram, want at most %.1f", f[switchRate], mostSwitches)
	}
	for way, all := range ages {
		slices.Sort(all)
		for name, part := range map[string]float64{"p50": .5, "p99": .99, "p99.9": .999} {
			f[way+" "+name+", µs"] = micros(quantile(all, part))
		}
	}
	return f
}

// storm opens allocations with a permission and a channel at the highest rate, refreshes them, and measures their
// memory.
func storm(t *testing.T, s *stage, what server) figures {
	p := s.start(t, what, 1)
	g := s.newGenerator(t, what, load{})
	g.all = newClients(turnServer, *allocations, 1)
	time.Sleep(settle)
	resident, kernel, routines := rss(t, p), kB(t, "/proc/meminfo", "Slab"), 0.0
	if what.product {
		routines = metric(t, "go_goroutines")
	}
	n := float64(len(g.all))
	before, began := cpu(t, p), time.Now()
	if err := g.clients.run(g.all, setUp); err != nil {
		t.Fatalf("%s: %v", what.name, err)
	}
	f := figures{
		allocRate: n / time.Since(began).Seconds(),
		allocCost: micros(cpu(t, p)-before) / n,
	}
	time.Sleep(settle)
	f[memory] = (rss(t, p) - resident) / n
	f[slab] = (kB(t, "/proc/meminfo", "Slab") - kernel) / n
	if what.product {
		f[goroutines] = (metric(t, "go_goroutines") - routines) / n
	}
	before, began = cpu(t, p), time.Now()
	if err := g.clients.run(g.all, refresh); err != nil {
		t.Fatalf("%s: %v", what.name, err)
	}
	f[freshRate] = n / time.Since(began).Seconds()
	f[freshCost] = micros(cpu(t, p)-before) / n
	return f
}

// settle is the time in which a server finishes its work after the last answer.
const settle = time.Second

// warmUp is the time after which each client has sent and received several datagrams.
const warmUp = 200 * time.Millisecond

// huge opens the number of allocations of -huge, at most the capacity of the process, on two relay addresses, and
// measures the process at rest.
func huge(t *testing.T, s *stage, what server) figures {
	command := what.command
	what.command = func(t *testing.T, s *stage, cores int) harness.Command {
		c := command(t, s, cores)
		c.Env = append(c.Env, "GODEBUG=gctrace=1")
		return c
	}
	p := s.start(t, what, 1)
	g := s.newGenerator(t, what, load{})
	g.all = newClients(turnServer, min(*many, int(metric(t, "stunner_allocations_capacity"))), 1)
	for i, c := range g.all {
		c.lifetime = 3600 // otherwise the first allocations may expire on a slow machine
		if i >= len(g.all)/2 {
			c.server = sockaddr(relays[0].As4(), morePort)
		}
	}
	kernel := kB(t, "/proc/meminfo", "Slab")
	if err := g.clients.run(g.all, setUp); err != nil {
		t.Fatalf("%s: %v", what.name, err)
	}
	time.Sleep(settle)
	before := cpu(t, p)
	time.Sleep(5 * settle)
	rest := cpu(t, p) - before
	active := metric(t, "stunner_allocations_active")
	if active != float64(len(g.all)) {
		t.Errorf("%.0f allocations are active, want %d", active, len(g.all))
	}
	stops := pauses(t, p)
	return figures{
		"allocations":              active,
		"MiB of the process":       rss(t, p) / (1 << 20),
		"MiB of kernel slabs":      (kB(t, "/proc/meminfo", "Slab") - kernel) / (1 << 20),
		"GC pauses p99, ms":        millis(quantile(stops, .99)),
		"GC pauses, longest, ms":   millis(stops[len(stops)-1]),
		"CPU at rest, % of a core": 100 * float64(rest) / float64(5*settle),
	}
}
