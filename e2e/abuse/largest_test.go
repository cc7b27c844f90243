package abuse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"flag"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

const (
	// journalLimit is the size of the volume of the journal that the operator gives to a pod with 512 MiB, in bytes.
	journalLimit = 16 << 20
	// fillTimeout is how long one user may take until the server refuses it. A busy machine needs most of it.
	fillTimeout = 2 * time.Minute
)

var (
	largestFlag = flag.Bool("largest", false, "run TestLargestClients with each request, attribute and transport")
	// The memory of the server includes its kernel memory and the journal.
	memoryFlag = flag.Int64("memory", 512, "MiB of the server in TestLargestClients; 512 is the limit of the chart")
)

// TestLargestClients: one user with one address repeats a message with different values in as many sessions as
// possible, until the server refuses more. The server stays within its memory limit, running calls lose no more than
// calls at another server, and new calls of other users succeed. After SIGKILL all running calls continue from the
// journal.
func TestLargestClients(t *testing.T) {
	quiet, noisy := newHosts(t, false), newHosts(t, false)
	for _, h := range []*hosts{quiet, noisy} {
		h.ephemeral = true
		key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader) // RSA would allow fewer connections
		must(t, err)
		h.chain, h.key = certificateOf(t, serverAddr, key)
		h.roots.AppendCertsFromPEM(h.chain)
	}
	fromSource(t)
	for _, a := range acts() {
		t.Run(a.String(), func(t *testing.T) { survive(t, quiet, noisy, a) })
	}
}

func survive(t *testing.T, quiet, noisy *hosts, a act) {
	group := harnesstest.MemoryGroup(t, "abuse", *memoryFlag<<20)
	confined := server{name: "stunnerd", engine: "None", memory: group, state: volume(t)}
	quiet.run(t, server{name: "stunnerd", engine: "None"})
	noisy.run(t, confined)
	control, calls := quiet.calls(t, call.UDP), noisy.calls(t, call.UDP)
	defer func() {
		for _, c := range append(calls, control...) {
			c.End(0)
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	hoard := &hoard{hosts: noisy, act: a, peer: socket(t, noisy.peers, netip.AddrPortFrom(noisy.echo[0].Addr(), 0))}
	defer hoard.close()
	var filling sync.WaitGroup
	defer filling.Wait()
	defer stop()
	filling.Go(func() { hoard.fill(ctx) })
	began := time.Now()
	full := noisy.process.Until(bounded(t, fillTimeout), func(context.Context) error {
		return hoard.isFull(time.Since(began))
	})
	took := time.Since(began)
	over := call.UDP
	if a.request == idle {
		over = a.over
	}
	f := noisy.join(t.Context(), over)
	peak, err := group.Peak()
	must(t, err)
	note := fmt.Sprintf("%d sessions, %d connections without, %d refused, %d messages in %s; peak %d MiB",
		hoard.open.Load(), hoard.idle.Load(), hoard.refused.Load(), hoard.sent.Load(), took.Round(100*time.Millisecond),
		peak>>20)
	lost, undisturbed := losses(calls), losses(control)
	t.Logf("%s; %.2f %% lost, control %.2f %%; %d of %d new calls, the slowest after %s", note, lost, undisturbed, f.made,
		newCalls, f.slowest)
	select {
	case <-noisy.process.Done():
		t.Fatalf("the server has ended: %v", noisy.process.Err())
	default:
	}
	if full != nil {
		t.Fatalf("TEST NOT VALID: %s: %v; last failure of a client: %v", note, full, hoard.failure())
	}
	if lost > undisturbed+moreLost {
		t.Errorf("running calls lose %.2f %%, those of the control %.2f %%", lost, undisturbed)
	}
	if f.made < newCalls {
		t.Errorf("%d of %d new calls succeed within %s: %v", f.made, newCalls, newCallDeadline, f.errs)
	}

	stop()
	filling.Wait()
	noisy.continueAfterKill(t, confined, calls)
}

// continueAfterKill ends the server by SIGKILL, starts it again, and checks that calls continue: the journal has their
// sessions, and the sessions of the user fit into the memory.
func (h *hosts) continueAfterKill(t *testing.T, what server, calls []*call.Call) {
	t.Helper()
	must(t, h.process.Kill())
	h.run(t, what)
	ctx := bounded(t, timeout)
	for i, c := range calls {
		if err := c.AwaitMore(ctx, 10); err != nil {
			t.Errorf("call %d does not continue after SIGKILL: %v", i, err)
		}
	}
	select {
	case <-h.process.Done():
		t.Errorf("the server has ended after SIGKILL: %v", h.process.Err())
	default:
	}
}

// bounded returns a context that ends after a time, or with the test.
func bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// volume returns a folder on a small file system, like the folder of the journal in a pod.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", journalLimit)))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// losses returns how many datagrams of calls are lost, in percent. The last datagrams do not count, because they may be
// on their way.
func losses(calls []*call.Call) float64 {
	const late = 25 // half a second of a call
	sent, lost := 0, 0
	for _, c := range calls {
		s := c.Stats()
		sent += s.Sent
		lost += max(s.Sent-s.Received-late, 0)
	}
	return 100 * float64(lost) / float64(max(sent, 1))
}
