// Package media measures the cost of relaying media, side by side with coturn and bare pion/turn.
//
// # Files
//
//	media_test.go                     loads and servers
//	generator_test.go socket_test.go  batched clients and peers
//	backlog_test.go                   two cores
//	report_test.go                    table
package media

import (
	"context"
	"flag"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

var (
	rounds      = flag.Int("rounds", 1, "rounds; each measures every row with every server in turn")
	tries       = flag.Int("tries", 1, "measurements of a row, until other programs do not disturb it")
	duration    = flag.Duration("duration", 50*time.Millisecond, "of one measurement")
	clients     = flag.Int("clients", 100, "clients with a channel each")
	allocations = flag.Int("allocations", 200, "allocations of the storm")
	many        = flag.Int("huge", 0, "also measure one process with this number of allocations")
	onlyRows    = flag.String("rows", "", "measure only rows that match this `PATTERN`")
	onlyServers = flag.String("servers", "", "measure only servers that match this `PATTERN`; default: all, with one "+
		"round those of the product")
	baseline   = flag.String("baseline", "", "also measure this `PROGRAM`, another build of stunnerd")
	programs   = flag.String("programs", "", "measure stunnerd and bare of this `FOLDER`, and build nothing")
	coturnPath = flag.String("coturn-binary", "turnserver", "measure this `PROGRAM` as coturn")
	output     = flag.String("output", "", "write `FILE`.md with the table, and FILE.json")
)

// cores is the number of cores of the machine. Servers have the first cores, the generator has the last core.
var cores = runtime.NumCPU()

// row is one kind of measurement.
type row struct {
	name    string
	measure func(*testing.T, *stage, server) figures // starts the server and measures
	on      func(server) bool                        // selects the servers
}

func everything(server) bool    { return true }
func servers(s server) bool     { return s.command != nil }
func onlyProduct(s server) bool { return s.product }
func userSpace(s server) bool   { return s.command != nil && !s.kernel }
func streams(s server) bool     { return s.streams && !s.kernel }

func table() (rows []row) {
	one, each := 1, *clients
	for _, l := range []load{
		{name: "up, 160 B", size: 160, burst: 1, up: true, peers: one},
		{name: "up, 160 B, bursts of 8", size: 160, burst: 8, up: true, peers: one},
		{name: "up, 1,200 B, bursts of 8", size: 1200, burst: 8, up: true, peers: one},
		{name: "down, 160 B, bursts of 8", size: 160, burst: 8, down: true, peers: one},
		{name: "down, 160 B", size: 160, burst: 1, down: true, peers: one},
		{name: "both ways, 160 B", size: 160, burst: 1, up: true, down: true, peers: one},
		{name: "both ways, 160 B, a peer for each client", size: 160, burst: 1, up: true, down: true, peers: each},
	} {
		l.clients = *clients
		rows = append(rows, row{l.name, l.measure, everything})
	}
	for _, network := range []string{"tcp", "tls"} {
		l := load{size: 160, burst: 8, down: true, network: network, clients: *clients, peers: one}
		rows = append(rows, row{"down, 160 B, bursts of 8, over " + strings.ToUpper(network), l.measure, streams})
	}
	calls := load{size: 160, burst: 1, up: true, down: true, clients: *clients, peers: one}
	rows = append(rows,
		row{"5,000 packets/s each way", calls.latencies, everything},
		row{"storm of allocations", storm, servers},
	)
	for _, way := range []string{"up", "down"} {
		b := backlog{up: way == "up", clients: 10 * *clients, each: max(1, int(*duration/(35*time.Millisecond)))}
		rows = append(rows, row{"two cores, " + way + ", 160 B", b.scaling, userSpace})
	}
	if *many > 0 {
		rows = append(rows, row{"many allocations", huge, onlyProduct})
	}
	return rows
}

// Every server relays datagrams of every load unchanged and to the right address. The test prints their cost. The
// figures depend on the machine, so only figures of the same run are comparable.
func TestMedia(t *testing.T) {
	if cores < 2 {
		t.Fatal("the server and the generator need a core each")
	}
	if !netns.Isolated(t) {
		return
	}
	bin := *programs
	if bin == "" {
		bin = harnesstest.Build(t, harness.Stunnerd, "e2e/media/bare")
	}
	s := newStage(t)
	if *onlyServers == "" && *rounds == 1 { // a single round tests the product, and compares nothing
		*onlyServers = "^(stunnerd|in-kernel)$"
	}
	all := []server{direct, stunnerd("stunnerd", filepath.Join(bin, "stunnerd"), "None")}
	results := newReport()
	kernel := stunnerd("in-kernel", filepath.Join(bin, "stunnerd"), "TC")
	if reason := s.unavailable(t, kernel); reason == "" {
		kernel.kernel = true
		all = append(all, kernel)
	} else {
		results.Notes = append(results.Notes, "in-kernel is not measured: "+reason)
	}
	if path, err := exec.LookPath(*coturnPath); err == nil {
		all = append(all, coturn(path))
	} else {
		results.Notes = append(results.Notes, "coturn is not measured: run `sudo apt-get install --yes coturn`")
	}
	all = append(all, bare(filepath.Join(bin, "bare")))
	if *baseline != "" {
		all = append(all, stunnerd("baseline", *baseline, "None"))
	}
	if err := countable(); err != nil {
		results.Notes = append(results.Notes, "system calls are not counted: "+err.Error())
	}
	rowPattern, serverPattern := regexp.MustCompile(*onlyRows), regexp.MustCompile(*onlyServers)
	if !slices.ContainsFunc(table(), func(r row) bool { return rowPattern.MatchString(r.name) }) {
		t.Fatalf("-rows: the name of no row matches %q", *onlyRows)
	}
	pin(t, cores-1)
	for range *rounds {
		s.noise = rest(t)
		results.Noise = max(results.Noise, s.noise)
		// In a fixed order, periodic work of the machine could disturb the same server in every round.
		rand.Shuffle(len(all)-1, func(i, j int) { all[1+i], all[1+j] = all[1+j], all[1+i] })
		for _, r := range table() {
			if !rowPattern.MatchString(r.name) {
				continue
			}
			var base figures
			for _, what := range all {
				if !r.on(what) || what.command != nil && !serverPattern.MatchString(what.name) {
					continue
				}
				f := s.measure(t, r, what, results)
				if what.command == nil {
					base = f
				}
				if what.kernel && f[share] > 50 {
					t.Errorf("%s: stunnerd forwards in user space, although /status has an offload engine", r.name)
				}
				f.add(base, what)
				results.record(r.name, what.name, f)
			}
		}
	}
	results.print(t)
}

// measure measures a row with a server. It repeats a measurement during which other programs used the machine.
func (s *stage) measure(t *testing.T, r row, what server, results *report) (f figures) {
	t.Helper()
	for range *tries {
		before := account(t)
		t.Run(r.name+"/"+what.name, func(t *testing.T) {
			runtime.LockOSThread() // CPU times are counted for the thread
			f = r.measure(t, s, what)
		})
		if account(t).others(before) < disturbed {
			return f
		}
	}
	results.Disturbed++
	return f
}

// disturbed is the number of cores that other programs may use during a measurement.
const disturbed = 0.1

// add sets the figure added: the CPU time of the server and of the load generator, minus that of the load generator
// without a server. It deletes the figures that do not apply to the row.
func (f figures) add(none figures, what server) {
	if _, media := f[cost]; !media || none == nil {
		delete(f, generates)
		return
	}
	f[added] = f[cost] + f[generates] - none[generates]
	if what.kernel {
		f[cost] = f[added]
	}
	if what.command == nil {
		delete(f, cost)
		delete(f, share)
		delete(f, added)
	}
}

// unavailable returns the reason why stunnerd does not forward in the kernel, or "".
func (s *stage) unavailable(t *testing.T, what server) (reason string) {
	t.Helper()
	t.Run("in-kernel path", func(t *testing.T) {
		s.start(t, what, 1)
		var engine, warnings string
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		harnesstest.NoError(t,
			// stunnerd opens its listeners before the endpoint of its status
			harness.Until(ctx, func(ctx context.Context) (err error) {
				engine, warnings, err = offload(ctx)
				return err
			}))
		if engine == "None" || engine == "" {
			reason = "/status has offload None: " + warnings
		}
	})
	return reason
}
