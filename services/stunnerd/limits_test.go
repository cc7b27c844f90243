package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

func TestCapacityFollowsMemoryAndDescriptors(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	byFiles := math.MaxInt
	if files.Cur < math.MaxInt32 {
		byFiles = int(files.Cur) - int(files.Cur)/16 - reservedFiles
	}
	if got, by := capacity(0); got != byFiles || byFiles != math.MaxInt && !strings.Contains(by, "file descriptors") {
		t.Errorf("without a memory limit: %d because of %q, want %d", got, by, byFiles)
	}
	if got, by := capacity(64 << 20); got != min(1024, byFiles) || byFiles > 1024 && !strings.Contains(by, "64 MiB") {
		t.Errorf("with 64 MiB: %d because of %q, want %d", got, by, min(1024, byFiles))
	}
	if got, by := capacity(1 << 10); got != 1 || by == "" {
		t.Errorf("with 1 KiB: %d because of %q, want 1", got, by)
	}
}

// the pages on memory and limits have the prices of package session, and how many allocations fit into a memory
// limit.
func TestMemoryOfAllocationsIsDocumented(t *testing.T) {
	var pages string
	for _, name := range []string{"memory.md", "limits.md"} {
		page, err := os.ReadFile("../../docs/reference/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(page)
	}
	const limit = 512 << 20
	kib := func(p config.Protocol) string {
		return strconv.FormatFloat(float64(session.PriceOf(p, 0, 0))/(1<<10), 'f', 1, 64)
	}
	fit := func(price int64) string {
		n := sessionMemory(limit) / price
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	most := session.PriceOf(config.TURNUDP, 256, 64)
	for _, text := range []string{
		fmt.Sprintf("channels | %s KiB |", kib(config.TURNUDP)),
		fmt.Sprintf("| %s KiB; %s KiB; %s KiB |", kib(config.TURNTCP), kib(config.TURNTLS), kib(config.TURNDTLS)),
		fmt.Sprintf("a handshake, over TCP; TLS; DTLS | %d KiB; %d KiB; %d KiB |", session.PriceOfTransport(config.TURNTCP)>>10,
			session.PriceOfTransport(config.TURNTLS)>>10, session.PriceOfTransport(config.TURNDTLS)>>10),
		fmt.Sprintf("each further permission; channel | %d; %d bytes |", session.PricePermission, session.PriceChannel),
		fmt.Sprintf("reserved port | %d KiB |", session.PriceReserved>>10),
		fmt.Sprintf("until it is complete | %d KiB |", session.PriceFrame>>10),
		fmt.Sprintf("%s over TLS, %s over DTLS, or %s with 256", fit(session.PriceOf(config.TURNTLS, 0, 0)),
			fit(session.PriceOf(config.TURNDTLS, 0, 0)), fit(most)),
		fmt.Sprintf("it is %d KiB and %d channels", sessionMemory(limit)/capacityOf(limit)>>10, 65536/capacityOf(limit)),
	} {
		if !strings.Contains(pages, text) {
			t.Errorf("docs/reference/memory.md and limits.md do not contain %q", text)
		}
	}
	if got := sessionMemory(0); got != 0 {
		t.Errorf("without a memory limit sessions may hold %d bytes", got)
	}
	for limit := int64(32 << 20); limit <= 1<<40; limit *= 2 { // the memory determines the capacity
		if need := capacityOf(limit) * session.PriceOf(config.TURNTCP, 0, 0); need > sessionMemory(limit) && limit > 64<<20 {
			t.Errorf("with %d MiB %d sessions need %d MiB", limit>>20, capacityOf(limit), need>>20)
		}
		if need := capacityOf(limit) * session.PriceOf(config.TURNUDP, 0, 0); need > sessionMemory(limit) {
			t.Errorf("with %d MiB %d sessions need %d MiB", limit>>20, capacityOf(limit), need>>20)
		}
	}
}

// capacityOf returns the number of sessions that fit into a memory limit.
func capacityOf(limit int64) int64 { return limit / memoryPerSession }

// From the start the table of file descriptors has room for all clients, because the process stops while it grows.
func TestFileTableHasRoomForAllClients(t *testing.T) {
	p := start(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "FDSize:")
	var size int
	if _, err := fmt.Sscan(after, &size); err != nil {
		t.Fatal(err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	clients, _ := capacity(memoryLimit(cgroups))
	if want := 2 * min(int(min(files.Cur, maxTable))/2, clients); size < want {
		t.Errorf("the table has room for %d descriptors, want %d", size, want)
	}
}

// T-A16: a process has no more allocations than relay ports.
func TestAllocationsFollowRelayPorts(t *testing.T) {
	for _, tc := range []struct{ capacity, ports, want int }{{1000, 0, 1000}, {1000, 100, 100}, {1000, 5000, 1000}} {
		if got := allocations(tc.capacity, tc.ports); got != tc.want {
			t.Errorf("%d clients, %d ports: %d allocations, want %d", tc.capacity, tc.ports, got, tc.want)
		}
	}
}

// the memory limit is read from a cgroup of either version.
func TestMemoryLimitOfEitherCgroup(t *testing.T) {
	for _, tc := range []struct {
		file, content string
		want          int64
	}{
		{"memory.max", "1048576\n", 1 << 20}, {"memory.max", "max\n", 0},
		{"memory/memory.limit_in_bytes", "2097152\n", 2 << 20},
		{"memory/memory.limit_in_bytes", "9223372036854771712\n", 0}, {"other", "1", 0},
	} {
		root := t.TempDir()
		path := filepath.Join(root, tc.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(root); got != tc.want {
			t.Errorf("%s %q: %d, want %d", tc.file, tc.content, got, tc.want)
		}
	}
}

// GOGC has the default of stunnerd, and takes precedence if it is set.
func TestGOGC(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "100")
	tuneGC(0)
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("with GOGC=100 the value is %d", got)
	}
	t.Setenv("GOGC", "")
	tuneGC(0)
	if got := debug.SetGCPercent(100); got != gcPercent {
		t.Errorf("without GOGC the value is %d, want %d", got, gcPercent)
	}
}
