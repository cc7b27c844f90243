package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// A process without a fault has no finding. The finding of a process that a signal has stopped names its id. The
// finding of a process that does not run has the reason and the last error in its log.
func TestFaultsOfAProcess(t *testing.T) {
	d := newDataplanes(t, func(*Settings) {})
	door := types.NamespacedName{Namespace: "calls", Name: "door"}
	d.Ensure(door)
	d.awaitHealth(t, door, "running, pid ")
	p := d.Processes()[door]
	if found := p.Faults(time.Now()); len(found) > 0 || !p.Runs() {
		t.Errorf("a process that runs has %+v", found)
	}
	pid := p.process.Health().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the process is stopped", func() bool { return len(stopped(pid)) > 0 })
	expect(t, p.Faults(time.Now()), finding.Error, "hangs", fmt.Sprintf("kill -CONT %d", pid))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}

	now := time.Now()
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("level=INFO msg=a\nlevel=ERROR msg=first\ntime=t level=ERROR msg=last\nlevel=INFO msg=b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := func(h health, path string) Process {
		return Process{process: &process{command: command{Path: path}, health: h}, object: "Gateway calls/door", log: log}
	}
	waits := health{Phase: waiting, LastExit: "signal: killed", Ends: []time.Time{now}}
	expect(t, ended(waits, log).Faults(now), finding.Error, "does not run: signal: killed; its last error: msg=last", "log "+log)
	expect(t, ended(waits, log+".none").Faults(now), finding.Error, "does not run", "put the program "+log+".none back")
	loops := health{Phase: running, LastExit: "exit status 2", Ends: []time.Time{now.Add(-time.Hour), now, now, now}}
	expect(t, ended(loops, log).Faults(now), finding.Error, "crashes in a loop: it has ended 3 times in 0s, the last time with exit status 2", "log")
	loops.Ends = loops.Ends[:3]
	if found := ended(loops, log).Faults(now); len(found) > 0 {
		t.Errorf("two ends in an hour: %+v", found)
	}
}

func expect(t *testing.T, found []finding.Finding, severity finding.Severity, problem, remedy string) {
	t.Helper()
	if !slices.ContainsFunc(found, func(f finding.Finding) bool {
		return f.Severity == severity && f.Object == "Gateway calls/door" && strings.Contains(f.Problem, problem) &&
			strings.Contains(f.Remedy, remedy)
	}) {
		t.Errorf("found %+v, want %s: %s: %s", found, severity, problem, remedy)
	}
}

// The kernel may still end the child of a process that has just been killed, so that the ports of the child are held.
func TestPortsAreHeldWhileACrashedProcessEnds(t *testing.T) {
	door := types.NamespacedName{Namespace: "calls", Name: "door"}
	holds := func(ends ...time.Time) bool {
		d := New(Settings{})
		d.running[door] = &dataplane{process: &process{health: health{Phase: waiting, Ends: ends}}}
		return d.HoldsPorts(door.String())
	}
	if !holds(time.Now().Add(-time.Hour), time.Now()) {
		t.Error("the ports of a process are free at the moment of its crash")
	}
	if holds(time.Now().Add(-time.Hour)) || holds() {
		t.Error("the ports of a process are held long after its crash")
	}
}

// Holder names the program that has a port. For a free port it returns nothing.
func TestHolderOfAPort(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		tcp, err = net.Listen("tcp", "127.0.0.1:0") // the host has no IPv6
	}
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("(process %d)", os.Getpid())
	ports := map[string]int{"udp": udp.LocalAddr().(*net.UDPAddr).Port, "tcp": tcp.Addr().(*net.TCPAddr).Port}
	for network, port := range ports {
		if got := Holder(network, port); !strings.Contains(got, own) {
			t.Errorf("%s %d: %q, want %s", network, port, got, own)
		}
	}
	udp.Close()
	tcp.Close()
	for network, port := range ports {
		if got := Holder(network, port); strings.Contains(got, own) {
			t.Errorf("%s %d is closed: %q", network, port, got)
		}
	}
}
