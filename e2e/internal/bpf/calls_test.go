package bpf

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The counter counts each system call of the process, and no other.
func TestSystemCalls(t *testing.T) {
	own, err := CountSystemCalls(os.Getpid())
	if err != nil {
		t.Fatalf("%v: run the test as root", err)
	}
	defer own.Close()
	other, err := CountSystemCalls(1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	const calls = 1000
	before, err := own.Count()
	if err != nil {
		t.Fatal(err)
	}
	for range calls {
		unix.Getppid()
	}
	n, err := own.Count()
	if n -= before; err != nil || n < calls || n > calls+calls/2 {
		t.Errorf("counted %d system calls, want %d and a few of the Go runtime: %v", n, calls, err)
	}
	if n, err := other.Count(); err != nil || n >= calls {
		t.Errorf("counted %d system calls of another process, %v", n, err)
	}
}
