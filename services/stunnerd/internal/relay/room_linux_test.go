package relay

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// relay sockets leave descriptors for probes and metrics.
func TestRelaySocketsLeaveDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const few = 256
	low := limit
	low.Cur = few
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	var err error
	for opened := 0; err == nil; opened++ {
		var s Socket
		if s, err = (Kernel{}).Open(netip.MustParseAddr("127.0.0.1"), 0); err == nil {
			defer s.Close()
		}
		if opened > few {
			t.Fatal("no end of sockets")
		}
	}
	if !errors.Is(err, ErrNoRoom) {
		t.Errorf("open: %v", err)
	}
	for range reserved - 1 {
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatalf("nothing is left: %v", err)
		}
		defer file.Close()
	}
}
