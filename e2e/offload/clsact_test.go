package offload

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// programsPerHook is how many programs TCX takes at one hook: one less than BPF_MPROG_MAX in linux/bpf_mprog.h.
const programsPerHook = 63

// occupyTCX fills the ingress of the interfaces of the gateway with programs without effect until the test ends.
// So stunnerd has to use clsact, as with a kernel before Linux 6.6.
func occupyTCX(t *testing.T) {
	t.Helper()
	instructions := []uint64{0xffffffff_000000b7, 0x95} // r0 = TCX_NEXT; exit
	license := []byte("GPL\x00")
	for range programsPerHook { // a program has one place at a hook
		program, err := bpf(unix.BPF_PROG_LOAD, &struct {
			kind, count           uint32
			instructions, license uintptr
			unused                [14]uint64
		}{
			kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(instructions)),
			instructions: uintptr(unsafe.Pointer(&instructions[0])), license: uintptr(unsafe.Pointer(&license[0])),
		})
		runtime.KeepAlive(instructions)
		runtime.KeepAlive(license)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(program) })
		for _, name := range []string{"clients", "peers"} {
			i, err := net.InterfaceByName(name)
			if err != nil {
				t.Fatal(err)
			}
			link, err := bpf(unix.BPF_LINK_CREATE, &struct {
				program, target, hook, flags uint32
				unused                       [2]uint64
			}{program: uint32(program), target: uint32(i.Index), hook: unix.BPF_TCX_INGRESS})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(link) })
		}
	}
}

// With clsact the prober has the same verdicts. The filters remain when stunnerd is killed: they forward nothing, and
// the next stunnerd removes them when it ends.
func clsact(t *testing.T, w *world) {
	occupyTCX(t)
	g := w.start(t)
	if m := g.status().Offload.Mechanism; m != "clsact" {
		t.Fatalf("mechanism %s, want clsact", m)
	}
	probed(t, g)
	g.apply(func(c *config.Config) { c.Admin.OffloadEngine = "TC" })
	s := g.path(v4).stream()
	s.kernel(50)
	if err := g.process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed, sent := time.Now(), s.sent.Load()
	if err := bed.Until(t.Context(), func(context.Context) error {
		if s.sent.Load() < sent+100 {
			return errors.New("the client has sent too few datagrams")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close(s.stop)
	s.workers.Wait()
	if late := time.Unix(0, s.last.Load()).Sub(killed); late > stopTime {
		t.Errorf("a datagram reached the peer %s after the end of stunnerd", late)
	}
	if filters(t) == "" {
		t.Error("no filter remains, so nothing was tested")
	}
	g = w.start(t)
	p := g.path(v4)
	p.inKernel()
	p.hangUp()
	if err := g.process.Stop(patience); err != nil {
		t.Error(err)
	}
	if left := filters(t); left != "" {
		t.Errorf("filters are left:\n%s", left)
	}
}

// filters lists the filters of the interfaces of the gateway.
func filters(t *testing.T) (all string) {
	t.Helper()
	for _, name := range []string{"clients", "peers"} {
		all += netns.Run(t, "tc qdisc show dev "+name+" clsact")
		for _, hook := range []string{"ingress", "egress"} {
			all += netns.Run(t, "tc filter show dev "+name+" "+hook)
		}
	}
	return all
}
