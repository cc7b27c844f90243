package abuse

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/pulse"
)

const (
	// window is how long a trigger lasts, and joining over how much of it new calls begin.
	window, joining = 6 * time.Second, 4 * time.Second
	// mostLost is what a call may lose beside a trigger, in percent, and moreAge how much later its datagrams may come than without one.
	mostLost, moreAge = 1.0, 20 * time.Millisecond
)

// neighbours are the parties that could harm the calls of others.
var neighbours = []struct {
	sentence string
	over     call.Network // of the new calls
	trigger  trigger
}{
	{"300 first requests a second from addresses of the LAN that nobody has", call.UDP, forged(300, turnPort, firstRequest)},
	{"500 first requests a second from addresses of the LAN that nobody has", call.UDP, forged(500, turnPort, firstRequest)},
	{"400 ClientHellos a second from addresses of the LAN that nobody has", call.DTLS, forged(400, dtlsPort, func() []byte { return clientHello(random(), 0, nil) })},
	{"a user sends over channels to peers that are not there", call.UDP, media(300, 1000, false, "peers", silentPeers...)},
	{"a user sends by indications to peers that are not there", call.UDP, media(300, 1000, true, "peers", silentPeers...)},
	{"a user sends 4.8 Mbit a second to a peer behind a link of 1 Mbit", call.UDP, toSlowPeer},
	{"three clients of the LAN vanish while 2 Mbit a second go to each", call.UDP, vanishing},
	{"a client over TCP does not read", call.UDP, deafReader},
	{"a client over TCP is behind a slow link", call.UDP, slowReader},
	{"one address begins DTLS handshakes and ends none", call.DTLS, halfHandshakes},
	{"a user sends to closed ports", call.UDP, closedPorts},
}

// TestNoisyNeighbour: what one client, peer or stranger does takes nothing from the calls of others. Each neighbour is tried on the product
// and on coturn, which stands in the same place.
func TestNoisyNeighbour(t *testing.T) {
	usualBuffers(t)
	if !netns.Isolated(t) {
		return
	}
	s := newStage(t)
	table := &table{}
	defer table.print(t)
	quiet := map[string]figures{}
	for _, what := range servers {
		quiet[what.name] = s.round(t, what, call.UDP, nothing)
		table.add("nothing", what.name, quiet[what.name])
	}
	for _, n := range neighbours {
		t.Run(n.sentence, func(t *testing.T) {
			for _, what := range servers {
				t.Run(what.name, func(t *testing.T) {
					f := s.round(t, what, n.over, n.trigger)
					table.add(n.sentence, what.name, f)
					if what.name == "stunnerd" {
						f.judge(t, quiet[what.name])
					}
				})
			}
		})
	}
}

// judge compares a round with the quiet one.
func (f figures) judge(t *testing.T, quiet figures) {
	t.Helper()
	if f.lostPercent() > mostLost {
		t.Errorf("running calls lose %.1f %%", f.lostPercent())
	}
	if f.p99 > quiet.p99+moreAge {
		t.Errorf("datagrams of running calls are %s old, and %s without the neighbour (p99)", short(f.p99), short(quiet.p99))
	}
	if f.made < newCalls {
		t.Errorf("%d of %d new calls are made within %s; the first error of the others: %v", f.made, newCalls, newCallDeadline, f.errs[0])
	}
}

// round starts a server, makes calls, and harms them.
func (s *stage) round(t *testing.T, what server, over call.Network, neighbour trigger) figures {
	t.Helper()
	process := s.run(t, what)
	var flows []*flow
	for i := range runningCalls {
		flows = append(flows, s.startFlow(t, 1+i))
	}
	harm := neighbour(t, s)
	machine := pulse.Start()
	defer machine.Stop()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	said := make(chan string, 1)
	go func() { said <- harm(ctx) }()
	for _, f := range flows {
		f.work.Go(f.send)
	}
	var joined figures
	s.join(t.Context(), over, joining, &joined)
	<-ctx.Done()
	note := <-said
	for _, f := range flows {
		close(f.end)
	}
	f := count(flows, machine)
	f.made, f.slowest, f.errs, f.note = joined.made, joined.slowest, joined.errs, note
	f.stalled = machine.Stalled(began, time.Now())
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	netns.Run(t, "ip neigh flush all")
	return f
}

// table is what the test prints at its end.
type table struct{ lines []string }

func (l *table) add(neighbour, server string, f figures) {
	l.lines = append(l.lines, fmt.Sprintf("%s\t%s\t%.2f\t%s\t%s\t%d\t%s\t%s\t%s", neighbour, server,
		f.lostPercent(), short(f.p50), short(f.p99), f.made, short(f.slowest), short(f.stalled), f.note))
}

func (l *table) print(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "neighbour\tserver\tlost %\tp50\tp99\tnew of 40\tslowest\tmachine stalled\tdone")
	for _, line := range l.lines {
		fmt.Fprintln(w, line)
	}
	_ = w.Flush() // to memory
	t.Logf("%d running calls beside:\n%s", runningCalls, &out)
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// commandOutput is what a command prints in the network of this process.
func commandOutput(command string) string {
	words := strings.Fields(command)
	out, _ := exec.Command(words[0], words[1:]...).CombinedOutput()
	return string(out)
}
