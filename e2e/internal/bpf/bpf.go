// Package bpf calls bpf(2) for tests, without a library.
package bpf

import (
	"net"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call calls bpf(2) with the part of union bpf_attr (linux/bpf.h) that a command reads. It repeats a call that fails
// with EAGAIN: the kernel returns EAGAIN when a signal, for example of the Go scheduler, interrupts the verifier.
func Call[attributes any](command uintptr, a *attributes) (fd int, err error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
		default:
			return -1, errno
		}
	}
}

// load loads a program. The verifier admits only operations of its program type.
func load(kind uint32, instructions []uint64) (fd int, err error) {
	license := []byte("GPL\x00")
	fd, err = Call(unix.BPF_PROG_LOAD, &struct {
		kind, count           uint32
		instructions, license uintptr
		unused                [14]uint64
	}{
		kind: kind, count: uint32(len(instructions)),
		instructions: uintptr(unsafe.Pointer(&instructions[0])), license: uintptr(unsafe.Pointer(&license[0])),
	})
	runtime.KeepAlive(instructions)
	runtime.KeepAlive(license)
	return fd, err
}

// programsPerHook is how many programs one TCX hook accepts: one less than BPF_MPROG_MAX in linux/bpf_mprog.h.
const programsPerHook = 63

// OccupyTCX fills the TCX ingress hooks of interfaces with programs that do nothing, until the test ends. So stunnerd
// has to use clsact, as with a kernel before Linux 6.6.
func OccupyTCX(t *testing.T, interfaces ...string) {
	t.Helper()
	for range programsPerHook { // a program can be attached only once at a hook
		program, err := load(unix.BPF_PROG_TYPE_SCHED_CLS, []uint64{0xffffffff_000000b7, 0x95}) // r0 = TCX_NEXT; exit
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(program) })
		for _, name := range interfaces {
			i, err := net.InterfaceByName(name)
			if err != nil {
				t.Fatal(err)
			}
			link, err := Call(unix.BPF_LINK_CREATE, &struct {
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

// Statistics makes the kernel count how often it runs programs, until the test ends.
func Statistics(t *testing.T) {
	t.Helper()
	fd, err := Call(unix.BPF_ENABLE_STATS, &struct{ kind uint32 }{unix.BPF_STATS_RUN_TIME})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
}
