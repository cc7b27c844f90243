package abuse

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

const (
	// window is the duration of the neighbour's activity. New calls start during joining.
	window, joining = 5 * time.Second, 3 * time.Second
	// mostLost is the limit for the loss of running calls during the activity, in percent. moreAge is the limit for the
	// increase of their p99 round trip time over the quiet round. Both are also the tolerance of the comparison with
	// coturn: p99 of the 2,000 datagrams of a round is the 20th largest value, so a single pause of 100 ms, which
	// delays 40 datagrams, determines it.
	mostLost, moreAge = 1.0, 20 * time.Millisecond
	// mostStalled is the limit for stalls of the machine in a valid round. A round is repeated up to rounds times until
	// there is none. Stalls are subtracted from round trip times; the limit ensures that a server that occupies all CPUs
	// does not count as a stall.
	mostStalled, rounds = window / 20, 3
)

// neighbours are the clients, peers and unauthenticated sources that could disturb the calls of others.
var neighbours = []struct {
	sentence string
	over     call.Network // transport of the new calls
	trigger  trigger
}{
	{"300 first requests a second come from addresses of the LAN that do not exist", call.UDP, forged(
		300, turnPort, firstRequest,
	)},
	{"500 first requests a second come from addresses of the LAN that do not exist", call.UDP, forged(
		500, turnPort, firstRequest,
	)},
	{"400 ClientHellos a second come from addresses of the LAN that do not exist", call.DTLS, forged(
		400, dtlsPort, firstHello,
	)},
	{mostChannels, call.UDP, media(300, 1000, false, silentPeers...)},
	{"a user sends by indications to peers that do not exist", call.UDP, media(300, 1000, true, silentPeers...)},
	{"a user sends 4.8 Mbit a second to a peer behind a link of 1 Mbit", call.UDP, toSlowPeer},
	{"three clients of the LAN vanish while 2 Mbit a second go to each", call.UDP, vanishing},
	{"a client over TCP does not read", call.UDP, deafReader},
	{"a client over TCP is behind a slow link", call.UDP, slowReader},
	{"one address begins 200 DTLS handshakes a second and ends none", call.DTLS, halfHandshakes},
	{"one address begins 600 TLS handshakes a second and ends none", call.UDP, tlsHandshakes},
	{"a user sends 2,000 datagrams a second to closed ports", call.UDP, closedPorts},
}

// inKernel are the servers whose kernel forwards the running calls. They run in all cases with -paths, otherwise the
// first runs in the case mostChannels, whose media the kernel forwards too.
var inKernel = []server{
	{product + " by TCX", kernelCommand, "TCX"}, {product + " by clsact", kernelCommand, "clsact"},
}

const mostChannels = "a user sends over channels to peers that do not exist"

var withPaths = flag.Bool("paths", false, "also run TestNoisyNeighbour with each way into the kernel")

var withReference = flag.Bool("coturn", false, "also run TestNoisyNeighbour on coturn, and compare stunnerd with it")

// Running calls continue and new calls succeed, whatever one client, peer or unauthenticated source does. With -coturn
// each case also runs on coturn, and stunnerd must not be worse. -run selects cases and servers:
// TestNoisyNeighbour/vanish/stunnerd.
func TestNoisyNeighbour(t *testing.T) {
	servers := []server{{product, stunnerdCommand, ""}}
	if *withReference {
		servers = append(servers, server{reference, coturnCommand, ""})
	}
	usualBuffers(t)
	if !netns.Isolated(t) {
		return
	}
	s := newStage(t, nil)
	results := &table{}
	defer results.print(t)
	quiet := map[string]figures{}
	for _, server := range servers {
		quiet[server.name] = s.settled(t, server, call.UDP, nothing)
		results.add("nothing", server.name, quiet[server.name])
	}
	if *withPaths {
		servers = append(servers, inKernel...)
	}
	for _, n := range neighbours {
		t.Run(n.sentence, func(t *testing.T) {
			round, servers := map[string]figures{}, servers
			if n.sentence == mostChannels && !*withPaths {
				servers = append(slices.Clone(servers), inKernel[0])
			}
			for _, server := range servers {
				t.Run(server.name, func(t *testing.T) {
					if server.mechanism == "clsact" {
						bpf.OccupyTCX(t, "far", "lan", "peers", "slow")
					}
					f := s.settled(t, server, n.over, n.trigger)
					round[server.name] = f
					results.add(n.sentence, server.name, f)
					if server.name != reference {
						f.judge(t, quiet[product])
					}
				})
			}
			if other, ok := round[reference]; ok { // -run may select one server only
				for name, f := range round {
					if name != reference {
						f.compare(t, other)
					}
				}
			}
		})
	}
}

// TestNoisyNeighbour with the in-kernel path by XDP, with all hosts behind one interface of the server. Without -paths it
// runs the case mostChannels only.
func TestNoisyNeighbourXDP(t *testing.T) {
	usualBuffers(t)
	if !netns.Isolated(t) {
		return
	}
	s := newStage(t, netns.NewSwitch(t, "card"))
	results := &table{}
	defer results.print(t)
	quiet := s.settled(t, server{product, stunnerdCommand, ""}, call.UDP, nothing)
	results.add("nothing", product, quiet)
	xdp := server{product + " by XDP", xdpCommand, "XDP"}
	for _, n := range neighbours {
		if n.sentence != mostChannels && !*withPaths {
			continue
		}
		t.Run(n.sentence, func(t *testing.T) {
			f := s.settled(t, xdp, n.over, n.trigger)
			results.add(n.sentence, xdp.name, f)
			f.judge(t, quiet)
		})
	}
}

// judge compares a round with the quiet round of the same server.
func (f figures) judge(t *testing.T, quiet figures) {
	t.Helper()
	if f.lostPercent() > mostLost {
		t.Errorf("running calls lose %.1f %%", f.lostPercent())
	}
	if f.p99 > quiet.p99+moreAge {
		t.Errorf("p99 round trip time of running calls is %s, without the neighbour %s", short(f.p99), short(quiet.p99))
	}
	if f.made < newCalls {
		t.Errorf("%d of %d new calls succeed within %s; first error: %v", f.made, newCalls, newCallDeadline, f.errs[0])
	}
}

// compare compares a round with the same round of another server.
func (f figures) compare(t *testing.T, other figures) {
	t.Helper()
	if f.lostPercent() > other.lostPercent()+mostLost || f.p99 > other.p99+moreAge || f.made < other.made {
		t.Errorf("%s: %.2f %% lost, p99 %s, %d new calls; %s: %.2f %% lost, p99 %s, %d new calls",
			product, f.lostPercent(), short(f.p99), f.made, reference, other.lostPercent(), short(
				other.p99,
			), other.made)
	}
}

// settled returns the round with the fewest stalls of the machine. It repeats a round in which the machine stalled, up to
// rounds times, because stalls also disturb the programs afterwards.
func (s *stage) settled(t *testing.T, server server, over call.Network, neighbour trigger) (best figures) {
	t.Helper()
	for i := range rounds {
		if f := s.round(t, server, over, neighbour); i == 0 || f.stalled < best.stalled {
			best = f
		}
		if best.stalled == 0 {
			return best
		}
	}
	if best.stalled > mostStalled {
		t.Errorf("TEST NOT VALID: the machine stalled for more than %s in each of %d rounds", mostStalled, rounds)
	}
	return best
}

// round starts a server and calls, and runs the neighbour's activity.
func (s *stage) round(t *testing.T, server server, over call.Network, neighbour trigger) figures {
	t.Helper()
	process := s.run(t, server)
	var flows []*flow
	for i := range runningCalls {
		flows = append(flows, s.startFlow(t, 1+i))
	}
	harm := neighbour(t, s)
	machine := stall.Start()
	defer machine.Stop()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	var note string
	var harmed sync.WaitGroup
	harmed.Go(func() {
		var err error
		if note, err = harm(ctx); err != nil {
			t.Errorf("TEST NOT VALID: %v", err)
		}
	})
	for _, f := range flows {
		f.work.Go(f.send)
	}
	f := s.join(t.Context(), over)
	harmed.Wait()
	f.note = note
	for _, flow := range flows {
		close(flow.end)
	}
	f.stalled = machine.Stalled(began, time.Now())
	f.count(flows, machine)
	if server.mechanism != "" {
		f.assertKernel(t, server.mechanism)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	netns.Run(t, "ip neigh flush dev lan")
	netns.Run(t, "ip neigh flush dev peers")
	return f
}

// assertKernel fails the test unless the kernel has forwarded most datagrams of the running calls.
func (f figures) assertKernel(t *testing.T, mechanism string) {
	t.Helper()
	_, status, err := bed.Get(t.Context(), "http://127.0.0.1:8086/status")
	if err != nil {
		t.Fatal(err)
	}
	n, err := bed.Metric(t.Context(), "http://127.0.0.1:8080/metrics", telemetry.OffloadPackets)
	if err != nil || int(n) < f.sent || !strings.Contains(string(status), fmt.Sprintf(`"mechanism": %q`, mechanism)) {
		t.Errorf("%d datagrams were sent in each direction, the kernel has forwarded %g; %v; %s", f.sent, n, err, status)
	}
}

// table collects the results that the test prints at the end.
type table struct{ lines []string }

func (l *table) add(neighbour, server string, f figures) {
	l.lines = append(l.lines, fmt.Sprintf("%s\t%s\t%.2f\t%s\t%s\t%d\t%s\t%s\t%s", neighbour, server,
		f.lostPercent(), short(f.p50), short(f.p99), f.made, short(f.slowest), short(f.stalled), f.note))
}

func (l *table) print(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(
		w, "neighbour\tserver\tlost %%\tage p50\tp99\tnew of %d\tslowest\tstalls\tactivity of the neighbour\n",
		newCalls,
	)
	for _, line := range l.lines {
		fmt.Fprintln(w, line)
	}
	_ = w.Flush() // to memory
	t.Logf("%d running calls and %d new calls during:\n%s", runningCalls, newCalls, &out)
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
