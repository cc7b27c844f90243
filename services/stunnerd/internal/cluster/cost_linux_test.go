package cluster

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// The cost of a view grows linearly with the number of its clusters. The test compares the CPU time of the thread,
// because other processes affect it less than the wall-clock time.
func TestTheCostOfAViewIsLinear(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const total = 500_000 // clusters, so that the resolution of the CPU time suffices
	cost := func(clusters int) time.Duration {
		all, routes := numbered(clusters, 1)
		before := used()
		for range total / clusters {
			b := ViewBuilder{}
			b.Take(all)
			b.View(routes)
		}
		return used() - before
	}
	if few, many := cost(200), cost(10_000); many > 8*few {
		t.Errorf("%d clusters in views of 200 take %v, in views of 10,000 they take %v", total, few, many)
	}
}
