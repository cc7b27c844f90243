package faults

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// guest is a raw client with an allocation, a permission and a channel.
type guest struct {
	*ask.Client
	allocate []byte // the Allocate request
	relayed  netip.AddrPort
}

// guests makes allocations of n clients.
func (b *bench) guests(n int) (all []guest) {
	b.t.Helper()
	for i := range n {
		c := b.client(i)
		b.do(c, stun.MethodRefresh, ask.Lifetime(600)) // learns a nonce
		g := guest{Client: c, allocate: c.Request(stun.MethodAllocate, ask.UDP())}
		answer, err := c.Once(g.allocate, patience)
		if err != nil || ask.Code(answer) != 0 {
			b.t.Fatalf("allocate: %v, %v", answer, err)
		}
		if g.relayed, err = ask.Relayed(answer); err != nil {
			b.t.Fatal(err)
		}
		for _, method := range []stun.Method{stun.MethodCreatePermission, stun.MethodChannelBind} {
			if code, _ := b.do(c, method, b.three()[method]...); code != 0 {
				b.t.Fatalf("%s: %d", method, code)
			}
		}
		b.echoes(c)
		all = append(all, g)
	}
	return all
}

// goesOn checks that a session goes on: data passes in its channel, and each request succeeds at once, without a new
// nonce.
func (b *bench) goesOn(g guest) {
	b.t.Helper()
	b.echoes(g.Client)
	answer, err := g.Once(g.allocate, patience)
	if err != nil || ask.Code(answer) != 0 {
		b.t.Errorf("retransmitted Allocate: %d, %v", ask.Code(answer), err)
	} else if relayed, err := ask.Relayed(answer); err != nil || relayed != g.relayed {
		b.t.Errorf("relayed at %v, %v, want %v", relayed, err, g.relayed)
	}
	for method, attrs := range b.three() {
		if answer, err := g.Once(g.Request(method, attrs...), patience); err != nil || ask.Code(answer) != 0 {
			b.t.Errorf("%s: %d, %v", method, ask.Code(answer), err)
		}
	}
}

// killed kills the process. meanwhile is called before it is started again with the same flags.
func (b *bench) killed(meanwhile func(), flags ...string) {
	b.t.Helper()
	if err := b.process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	meanwhile()
	b.start(b.file, flags...)
	b.await("ready", bed.Answers(b.health()+"/ready", http.StatusOK))
}

// A process that is killed and started again continues the sessions of its clients over UDP. The calls of other
// transports end with their connections.
func TestCrashEndsNoSessionOverUDP(t *testing.T) {
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state)
	all := b.guests(20)
	live := b.calls(3, call.UDP)
	connected := b.calls(1, call.TCP, call.TLS, call.DTLS)
	for range 2 {
		began := time.Now()
		b.killed(func() {}, "--state-dir", state)
		t.Logf("ready %s after the kill", time.Since(began))
		for _, g := range all {
			b.goesOn(g)
		}
		b.goOn(live)
		if n := b.status().AllocationCount; n != len(all)+len(live) {
			t.Errorf("%d allocations, want %d", n, len(all)+len(live))
		}
		if n := b.metric("stunner_sessions_restored_total"); n != float64(len(all)+len(live)) {
			t.Errorf("%v sessions counted as restored", n)
		}
	}
	for i, c := range append(connected, live...) {
		if s := c.End(0); i >= len(connected) {
			t.Logf("a call over UDP: %d of %d datagrams lost, longest silence %s", s.Lost, s.Sent, s.LongestGap)
		}
	}
	for _, g := range all {
		if code, _ := b.do(g.Client, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
			t.Errorf("end: %d", code)
		}
	}
	b.await("no session is left", b.sessions(0))
	b.killed(func() {}, "--state-dir", state)
	if n := b.status().AllocationCount; n != 0 {
		t.Errorf("%d sessions restored that had ended", n)
	}
}

// A session whose relay port is taken is dropped and counted. The others go on.
func TestCrashWithATakenRelayPort(t *testing.T) {
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state)
	all := b.guests(5)
	lost, kept := all[2], append(all[:2:2], all[3:]...)
	b.killed(func() {
		taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(lost.relayed.Port())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { taken.Close() })
	}, "--state-dir", state)
	for method, attrs := range b.three() {
		b.mismatch(lost.Client, method, attrs)
	}
	for _, g := range kept {
		b.goesOn(g)
	}
	if n := b.dropped("port_taken"); n != 1 {
		t.Errorf("%v sessions counted as dropped", n)
	}
}

// Sessions of a listener that the config no longer has are dropped and counted.
func TestCrashWithoutTheListener(t *testing.T) {
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state)
	all := b.guests(5)
	b.killed(func() {
		b.config.Listeners[0].Port = freePorts(t, 1)[0]
		b.write(b.config)
		if err := os.Remove(filepath.Join(state, "last-good.json")); err != nil {
			t.Fatal(err)
		}
	}, "--state-dir", state)
	if n := b.dropped("no_listener"); n != float64(len(all)) {
		t.Errorf("%v sessions counted as dropped", n)
	}
	b.await("no session is restored", b.sessions(0))
	b.allocated(10)
}

// Two processes with one state folder run. The second one stores no sessions, and says so.
func TestTwoProcessesOnOneStateFolder(t *testing.T) {
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state)
	g := b.guests(1)[0]
	first := b.process
	second := newBench(t)
	second.run("--state-dir", state)
	if got := second.metric("stunner_journal_problem"); got != 1 {
		t.Errorf("the second process has no problem: %v", got)
	}
	other := second.guests(1)[0]
	b.process = first
	b.killed(func() {
		if err := os.Remove(filepath.Join(state, "last-good.json")); err != nil { // it is of the second process
			t.Fatal(err)
		}
	}, "--state-dir", state)
	b.goesOn(g)
	second.goesOn(other)
	if got := b.metric("stunner_journal_problem"); got != 0 {
		t.Errorf("the first process has a problem: %v", got)
	}
}

// dropped returns the number of sessions that were not restored for a reason.
func (b *bench) dropped(reason string) float64 {
	b.t.Helper()
	return b.byReason("stunner_sessions_dropped_total", reason)
}
