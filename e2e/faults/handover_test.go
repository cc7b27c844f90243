package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// handsOver starts a process as in a pod of a DaemonSet with host network. The state folder is that of the pod, and the
// journal that of the node.
func (b *bench) handsOver(journal string) {
	b.t.Helper()
	b.run(b.podFlags(journal)...)
}

func (b *bench) podFlags(journal string) []string {
	return []string{"--state-dir", b.t.TempDir(), "--journal-dir", journal, "--hand-over"}
}

// drains is the condition that the process drains.
func (b *bench) drains(ctx context.Context) error {
	st, err := b.look(ctx)
	if err == nil && st.Status != inspection.Terminating {
		err = fmt.Errorf("status %s", st.Status)
	}
	return err
}

// ends awaits the end of the process, with exit code 0.
func (b *bench) ends() {
	b.t.Helper()
	select {
	case <-b.process.Done():
	case <-b.t.Context().Done():
	}
	if err := b.process.Err(); err != nil {
		b.t.Fatalf("the process failed: %v", err)
	}
}

// after SIGTERM, a process with --hand-over waits for the calls that no other process can continue, and leaves
// the others to the next process with the same journal: with their relay ports, permissions and channels.
func TestSIGTERMHandsOver(t *testing.T) {
	b, journal := newBench(t), t.TempDir()
	b.handsOver(journal)
	all := b.guests(20)
	live := b.calls(2, call.UDP)
	connected := b.calls(1, call.TCP, call.TLS, call.DTLS)
	b.signal(syscall.SIGTERM)
	b.await("draining", b.drains)
	b.goOn(append(live, connected...))

	other := newBench(t)
	other.handsOver(journal)
	if got := other.metric("stunner_journal_problem"); got != 1 {
		t.Errorf("a process on a journal in use has no problem: %v", got)
	}
	if err := other.process.Kill(); err != nil {
		t.Fatal(err)
	}

	connected.end()
	b.ends()
	b.start(b.file, b.podFlags(journal)...)
	b.await("ready", bed.Answers(b.health()+"/ready", http.StatusOK))
	for _, g := range all {
		b.goesOn(g)
	}
	b.goOn(live)
	if n := b.status().AllocationCount; n != len(all)+len(live) {
		t.Errorf("%d allocations, want %d", n, len(all)+len(live))
	}
}

// The calls that live at the end of draining are left to the next process too, without --hand-over.
func TestDrainTimeoutLeavesSessions(t *testing.T) {
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state, "--drain-timeout", "1ms")
	all := b.guests(5)
	b.signal(syscall.SIGTERM)
	b.ends()
	b.start(b.file, "--state-dir", state)
	b.await("ready", bed.Answers(b.health()+"/ready", http.StatusOK))
	for _, g := range all {
		b.goesOn(g)
	}
}

// the process of a deleted Gateway drains although it could hand its sessions over, and removes the journal,
// because no process follows.
func TestDeletedGatewayLeavesNoJournal(t *testing.T) {
	b, journal := newBench(t), t.TempDir()
	h, source := serving(t, b.config)
	b.start(h.url(), b.podFlags(journal)...)
	b.inForce(b.config)
	live := b.calls(1, call.UDP)
	source.Delete(gateway)
	if _, err := b.process.AwaitOutput(t.Context(), regexp.MustCompile("config deleted at its source")); err != nil {
		t.Fatal(err)
	}
	b.signal(syscall.SIGTERM)
	b.await("draining", b.drains)
	b.goOn(live)
	live.end()
	b.ends()
	left, err := os.ReadDir(filepath.Join(journal, strconv.Itoa(os.Geteuid())))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the journal folder: %v, %v", left, err)
	}
}
