package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// The tests that continue sessions in another process run in a network namespace of their own: no other test takes a
// relay port while no process has it.

// session is a client with an allocation, a permission and a channel.
type session struct {
	*ask.Client
	allocate []byte // the Allocate request
	relay    netip.AddrPort
}

// newSessions makes sessions of n clients.
func (d *dataplane) newSessions(n int) (all []session) {
	d.t.Helper()
	for i := range n {
		s := session{Client: d.learn(d.client(i))}
		s.allocate = s.Request(stun.MethodAllocate, ask.UDP())
		relay, err := ask.Relayed(d.once(s.Client, s.allocate))
		if err != nil {
			d.t.Fatal(err)
		}
		s.relay = relay
		d.bind(s.Client)
		d.echo(s.Client)
		all = append(all, s)
	}
	return all
}

// continues checks that sessions continue: data passes in their channels, and each request succeeds at once, without a
// new nonce.
func (d *dataplane) continues(all ...session) {
	d.t.Helper()
	for _, s := range all {
		d.echo(s.Client)
		if relay, err := ask.Relayed(d.once(s.Client, s.allocate)); err != nil || relay != s.relay {
			d.t.Errorf("relayed at %v, %v, want %v", relay, err, s.relay)
		}
		for _, r := range d.ofAllocation() {
			if code := ask.Code(d.once(s.Client, s.Request(r.method, r.attrs...))); code != 0 {
				d.t.Errorf("%s: %d", r.method, code)
			}
		}
	}
}

// again starts a process with the same config file, and waits until it is ready.
func (d *dataplane) again(flags ...string) {
	d.t.Helper()
	d.start(harness.Command{Path: stunnerd}, d.file, flags...)
	d.awaitReady()
}

// terminate sends SIGTERM and waits until the process drains.
func (d *dataplane) terminate() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	d.await("draining", d.status(func(st inspection.Status) bool { return st.Status == inspection.Terminating }))
}

// A process that is killed and started again continues the live sessions of its clients over UDP. It does not continue
// ended sessions.
func TestUDPSessionsContinueAfterACrash(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	state := []string{"--state-dir", t.TempDir()}
	d := running(t, state...)
	all, live := d.newSessions(10), d.calls(call.UDP)
	for range 2 {
		d.kill()
		d.again(state...)
		d.continues(all...)
		d.awaitEchoes(live...)
		d.await("all sessions are restored", d.sessions(len(all)+len(live)))
		if n := d.metric("stunner_sessions_restored_total"); n != float64(len(all)+len(live)) {
			t.Errorf("%v sessions counted as restored", n)
		}
	}
	live[0].End(0)
	for _, s := range all {
		d.must(s.Client, stun.MethodRefresh, ask.Lifetime(0))
	}
	d.await("no session is left", d.sessions(0))
	d.kill()
	d.again(state...)
	d.await("no session is restored", d.sessions(0))
}

// A session whose relay port is in use is dropped and counted, and so are the sessions of a listener that the config no
// longer has. The other sessions continue.
func TestSessionsThatCannotContinueAreCounted(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const metric = "stunner_sessions_dropped_total"
	dir := t.TempDir()
	state := []string{"--state-dir", dir}
	d := running(t, state...)
	all := d.newSessions(5)
	lost, kept := all[0], all[1:]
	d.kill()
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(lost.relay.Port())})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	d.again(state...)
	d.unknown(lost.Client)
	d.continues(kept...)
	if n := d.metric(metric, "port_taken"); n != 1 {
		t.Errorf("%v sessions counted as dropped because of a taken port", n)
	}
	d.kill()
	d.config.Listeners[0].Name += "-other"
	d.write(d.config)
	if err := os.Remove(filepath.Join(dir, "last-good.json")); err != nil {
		t.Fatal(err)
	}
	d.again(state...)
	if n := d.metric(metric, "no_listener"); n != float64(len(kept)) {
		t.Errorf("%v sessions counted as dropped without a listener", n)
	}
	d.await("no session is restored", d.sessions(0))
}

// The sessions on a port that their listener has left continue there at the next process, until the last one ends. If
// another listener has the port, they are dropped.
func TestSessionsOnAFormerPortContinue(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	dir := t.TempDir()
	state := []string{"--state-dir", dir}
	d := running(t, state...)
	all := d.newSessions(5)
	former := d.config.Listeners[0].Port
	moved := func(change func(next *config.Config)) {
		t.Helper()
		d.kill()
		d.config = d.changed(change)
		d.write(d.config)
		if err := os.Remove(filepath.Join(dir, "last-good.json")); err != nil {
			t.Fatal(err)
		}
		d.again(state...)
	}
	for range 2 {
		port := harnesstest.Port(t)
		moved(func(next *config.Config) { next.Listeners[0].Port = port })
		d.continues(all...)
		d.allocated(10)
	}
	d.must(all[0].Client, stun.MethodRefresh, ask.Lifetime(0))
	moved(func(next *config.Config) {
		other := next.Listeners[0]
		other.Name, other.Port = other.Name+"-other", former
		next.Listeners = append(next.Listeners, other)
	})
	if n := d.metric("stunner_sessions_dropped_total", "no_listener"); n != float64(len(all)-1) {
		t.Errorf("%v sessions counted as dropped because another listener has their port", n)
	}
	d.unknown(all[1].Client)
}

// The session of a user who was revoked while no process ran is not restored. If the next process starts with its last
// good config, which has no revocation, the session ends when the new config arrives. Sessions of others continue.
func TestSessionsRevokedWhileNoProcessRuns(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	for name, c := range map[string]struct {
		lastGood bool
		dropped  float64
	}{
		"config with the revocation first": {false, 1},
		"last good config first":           {true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			state := []string{"--state-dir", dir}
			d := running(t, state...)
			kept, now := d.newSessions(2), time.Now()
			authority := credential.Authority{Realm: d.config.Auth.Realm, SharedSecret: secret}
			bob, err := authority.Mint("bob", time.Hour, now)
			if err != nil {
				t.Fatal(err)
			}
			revoked := d.client(len(kept))
			revoked.Username, revoked.Password = bob.Username, string(bob.Password)
			d.must(revoked, stun.MethodAllocate, ask.UDP())
			d.bind(revoked)
			d.kill()
			d.config.Auth.Revocations = []credential.Revocation{
				{User: "bob", IssuedBefore: now.Unix(), Until: now.Add(time.Hour).Unix()},
			}
			d.write(d.config)
			missing := filepath.Join(dir, "last-good.json")
			if c.lastGood {
				missing = d.file
			}
			if err := os.Remove(missing); err != nil {
				t.Fatal(err)
			}
			d.again(state...)
			if c.lastGood {
				d.await("all sessions are restored", d.sessions(len(kept)+1))
				d.write(d.config)
			}
			d.await("one session has ended", d.sessions(len(kept)))
			d.continues(kept...)
			if code, _ := d.do(revoked, stun.MethodRefresh, ask.Lifetime(600)); code != stun.CodeUnauthorized {
				t.Errorf("request of the revoked user: %d, want 401", code)
			}
			if n := d.metric("stunner_sessions_dropped_total", "revoked"); n != c.dropped {
				t.Errorf("%v sessions counted as dropped because of a revocation, want %v", n, c.dropped)
			}
		})
	}
}

// a session that is older than a change of the credentials may use its credential for the overlap, also at
// the next process: after a crash, and on the node of a pod with the host network. The overlap does not begin again
// there.
func TestFormerCredentialAtTheNextProcess(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	for name, c := range map[string]struct {
		flags func(t *testing.T, dir string) []string
		end   func(d *dataplane, dir string)
	}{
		"after a crash": {func(_ *testing.T, dir string) []string { return []string{"--state-dir", dir} },
			func(d *dataplane, dir string) {
				// The next process begins with the saved config, so the test waits until that has the new credentials.
				d.await("saved", func(context.Context) error {
					saved, err := os.ReadFile(filepath.Join(dir, "last-good.json"))
					if err == nil && !bytes.Contains(saved, []byte(secret+"-changed")) {
						err = errors.New("the file has the former credentials")
					}
					return err
				})
				d.kill()
			}},
		"on the node": {podFlags, func(d *dataplane, _ string) {
			d.signal(syscall.SIGTERM)
			d.awaitEnd()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const overlap = 10 * time.Second
			dir := t.TempDir()
			d := running(t, c.flags(t, dir)...)
			all := d.newSessions(2)
			d.config = d.changed(func(next *config.Config) {
				next.Auth.Credentials[config.KeyPassword] += "-changed"
				next.Auth.Credentials[config.KeySecret] += "-changed"
				next.Auth.CredentialOverlap = new(int32(overlap.Seconds()))
			})
			d.write(d.config)
			d.await("in force", d.inForce(d.config))
			begun := time.Now()
			c.end(d, dir)
			d.again(c.flags(t, dir)...)
			for _, s := range all {
				d.echo(s.Client)
				for _, r := range d.ofAllocation() {
					d.must(s.Client, r.method, r.attrs...)
				}
			}
			d.await("the credential is refused", func(context.Context) error {
				if code, _ := d.do(all[0].Client, stun.MethodRefresh, ask.Lifetime(600)); code != stun.CodeUnauthorized {
					return fmt.Errorf("Refresh: %d", code)
				}
				return nil
			})
			if took := time.Since(begun); took < overlap-time.Second || took > overlap+2*time.Second {
				t.Errorf("refused after %s, want %s", took, overlap)
			}
		})
	}
}

// after SIGKILL a new process serves from the last good config within two seconds, while config discovery is
// unavailable. Without the session journal it answers clients of the old process at once that their allocations do not
// exist.
func TestKilledProcessServesItsLastGoodConfig(t *testing.T) {
	d := newDataplane(t)
	source := newPublisher(t, harness.Loopback, d.config)
	state := t.TempDir()
	d.start(harness.Command{Path: stunnerd}, source.url(), "--state-dir", state)
	d.await("in force", d.inForce(d.config))
	all := d.newSessions(5)
	source.close()
	d.kill()
	if err := os.Remove(filepath.Join(state, "sessions.journal")); err != nil {
		t.Fatal(err)
	}
	d.start(harness.Command{Path: stunnerd}, source.url(), "--state-dir", state)
	d.within(2*time.Second, "ready", harness.Answers(d.health()+"/ready", http.StatusOK))
	for _, s := range all {
		d.unknown(s.Client)
		d.must(s.Client, stun.MethodAllocate, ask.UDP())
	}
}

// podFlags are the flags of a process in a pod of a DaemonSet with host network. The state folder belongs to the pod,
// and the journal belongs to the node.
func podFlags(t *testing.T, journal string) []string {
	t.Helper()
	return []string{"--state-dir", t.TempDir(), "--journal-dir", journal, "--hand-over"}
}

// after SIGTERM, a process with --hand-over waits for the calls that no other process can continue. It leaves all
// others to the next process with the same journal: with their relay ports, permissions and channels. A process that
// starts before its end stores no sessions and reports that as a problem.
func TestTerminatedProcessHandsItsSessionsOver(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	journal := t.TempDir()
	d := running(t, podFlags(t, journal)...)
	all, live := d.newSessions(5), d.calls(call.UDP)
	connected := d.calls(call.TCP, call.TLS, call.DTLS)
	d.terminate()
	d.awaitEchoes(append(live, connected...)...)

	early := running(t, podFlags(t, journal)...)
	if got := early.metric("stunner_journal_problem"); got != 1 {
		t.Errorf("a process on a journal in use has no problem: %v", got)
	}
	early.newSessions(1)
	early.kill()

	end(connected)
	d.awaitEnd()
	d.again(podFlags(t, journal)...)
	d.continues(all...)
	d.awaitEchoes(live...)
	d.await("all sessions are restored", d.sessions(len(all)+len(live)))
	if got := d.metric("stunner_journal_problem"); got != 0 {
		t.Errorf("the next process has a problem: %v", got)
	}
}

// Without --hand-over, the sessions that remain at the end of draining are left to the next process too.
func TestSessionsContinueAfterTheDrainTimeout(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	state := t.TempDir()
	d := running(t, "--state-dir", state, "--drain-timeout", "1ms")
	all := d.newSessions(5)
	d.signal(syscall.SIGTERM)
	d.awaitEnd()
	d.again("--state-dir", state)
	d.continues(all...)
}

// the process of a deleted Gateway drains even with --hand-over, and removes the journal, because there is no
// next process.
func TestDeletedGatewayLeavesNoJournal(t *testing.T) {
	t.Parallel()
	d, journal := newDataplane(t), t.TempDir()
	source := newPublisher(t, harness.Loopback, d.config)
	d.start(harness.Command{Path: stunnerd}, source.url(), podFlags(t, journal)...)
	d.await("in force", d.inForce(d.config))
	live := d.calls(call.UDP)
	source.Delete(gateway)
	if _, err := d.process.AwaitOutput(t.Context(), regexp.MustCompile("config deleted at its source")); err != nil {
		t.Fatal(err)
	}
	d.terminate()
	d.undisturbed(live)
	d.awaitEnd()
	left, err := os.ReadDir(filepath.Join(journal, strconv.Itoa(os.Geteuid())))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the journal folder: %v, %v", left, err)
	}
}
