package netns

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// Processes that threads of this process have started outlive the namespaces of these threads.
func TestProcessesOutliveTheNamespacesOfTheirThreads(t *testing.T) {
	child := exec.Command("sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	t.Run("space", func(t *testing.T) {
		s := New(t, "space")
		s.Do(func() {
			if err := child.Start(); err != nil {
				t.Error(err)
			}
		})
	})
	left := make(chan error, 1)
	go func() { left <- child.Wait() }()
	t.Run("later spaces", func(t *testing.T) { New(t, "later").Run(t, "true") })
	select {
	case err := <-left:
		t.Fatalf("the process ended with its namespace: %v", err)
	default:
	}
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-left
}

// A function that ends its test in the namespace ends its goroutine. The cleanups of the test can still use the
// namespace.
func TestFailureInANamespaceEndsTheTest(t *testing.T) {
	s := New(t, "space")
	for range 2 {
		ended, returned := make(chan struct{}), false
		go func() {
			defer close(ended)
			s.Do(runtime.Goexit)
			returned = true
		}()
		<-ended
		if returned {
			t.Error("Do returns after the end of the test")
		}
		s.Run(t, "ip link show dev lo")
	}
}
