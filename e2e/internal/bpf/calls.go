package bpf

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SystemCalls counts the system calls of a process.
type SystemCalls struct {
	counter, program, tracepoint int // file descriptors
}

// CountSystemCalls starts counting. It needs no tracefs, but CAP_BPF and CAP_PERFMON, and the PID in the first PID
// namespace. Close ends it.
func CountSystemCalls(pid int) (*SystemCalls, error) {
	c := &SystemCalls{counter: -1, program: -1, tracepoint: -1}
	if err := c.attach(pid); err != nil {
		return nil, errors.Join(fmt.Errorf("count system calls by BPF: %w", err), c.Close())
	}
	return c, nil
}

func (c *SystemCalls) attach(pid int) (err error) {
	c.counter, err = Call(unix.BPF_MAP_CREATE, &struct{ kind, key, value, entries, flags uint32 }{
		unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0,
	})
	if err != nil {
		return err
	}
	c.program, err = load(unix.BPF_PROG_TYPE_RAW_TRACEPOINT, []uint64{
		14<<32 | 0x85,                     // r0 = bpf_get_current_pid_tgid()
		32<<32 | 0x77,                     // r0 >>= 32
		uint64(pid)<<32 | 4<<16 | 0x55,    // if r0 != pid goto end
		uint64(c.counter)<<32 | 0x2118, 0, // r1 = address of the value of the map
		1<<32 | 0x02b7, // r2 = 1
		0x21db,         // lock *(u64 *)r1 += r2
		0xb7,           // end: r0 = 0
		0x95,           // exit
	})
	if err != nil {
		return err
	}
	name := []byte("sys_enter\x00")
	c.tracepoint, err = Call(unix.BPF_RAW_TRACEPOINT_OPEN, &struct {
		name    uintptr
		program uint64
	}{uintptr(unsafe.Pointer(&name[0])), uint64(c.program)})
	runtime.KeepAlive(name)
	return err
}

// Count returns the number of system calls since CountSystemCalls.
func (c *SystemCalls) Count() (n uint64, err error) {
	var key uint32
	_, err = Call(unix.BPF_MAP_LOOKUP_ELEM, &struct {
		counter    uint64
		key, value uintptr
		flags      uint64
	}{uint64(c.counter), uintptr(unsafe.Pointer(&key)), uintptr(unsafe.Pointer(&n)), 0})
	runtime.KeepAlive(&key)
	runtime.KeepAlive(&n)
	return n, err
}

// Close ends counting.
func (c *SystemCalls) Close() (err error) {
	for _, fd := range []int{c.tracepoint, c.program, c.counter} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}
