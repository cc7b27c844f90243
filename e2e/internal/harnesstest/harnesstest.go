// Package harnesstest wraps functions of package harness for tests: an error ends the test.
package harnesstest

import (
	"context"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Parallel sets how many tests run in parallel, unless the command line sets it. TestMain calls it in packages whose
// tests mostly wait: the default is the number of processors.
func Parallel(tests int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(tests)) // Set accepts any number
	}
}

// NoError ends the test after an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Root returns the root of the repository.
func Root(t testing.TB) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// Read returns the content of a file. Its path is relative to the root of the repository.
func Read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Root(t), file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Build builds programs into a temporary folder, each under the base name of its folder, and returns the folder.
func Build(t testing.TB, programs ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := harness.Build(t.Context(), Root(t), folder, programs...); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Port returns a port that is free for UDP and TCP.
func Port(t testing.TB) int {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Address returns a free port of the loopback address, as HOST:PORT.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort(harness.Loopback, strconv.Itoa(Port(t)))
}

// MemoryGroup makes a cgroup with a memory limit in bytes. The cgroup is deleted at the end of the test, after the
// programs that the test starts later have ended.
func MemoryGroup(t testing.TB, name string, limit int64) *harness.MemoryGroup {
	t.Helper()
	group, err := harness.NewMemoryGroup(name, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := group.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	return group
}

// Start starts a program, and waits until ready returns nil. The program is killed at the end of the test. The last
// lines of its log are printed if the test has failed.
func Start(t testing.TB, c harness.Command, ready func(context.Context) error) *harness.Process {
	t.Helper()
	p, err := harness.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of %s:\n%s", c.Name, strings.Join(p.Tail(5), "\n"))
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Until(ctx, ready); err != nil {
		t.Fatal(err)
	}
	return p
}

// Echo runs a UDP peer that returns every datagram, and returns its address. It uses a free port of addr.
func Echo(t testing.TB, addr netip.Addr) netip.AddrPort {
	t.Helper()
	return Peer(t, addr, func(conn *net.UDPConn) {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from) // callers count losses
		}
	})
}

// Peer runs a UDP peer on a free port of addr until the test ends, and returns its address. serve handles the datagrams
// until its socket is closed.
func Peer(t testing.TB, addr netip.Addr, serve func(*net.UDPConn)) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetReadBuffer(4 << 20); err != nil { // room for datagrams while a busy machine does not run the peer
		t.Fatal(err)
	}
	go serve(conn)
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}
