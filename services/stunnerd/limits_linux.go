package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/listener"
)

const (
	// reservedFiles is the number of file descriptors for listeners, connections to the config source, and probes.
	reservedFiles = 200
	// clientFiles is the divisor of the file descriptors that are reserved for the sockets of UDP and DTLS clients. It
	// reserves half of the descriptors that listener.OwnShare allows for them.
	clientFiles = 2 * listener.OwnShare
	// memoryPerSession is how much of the memory limit one session needs: the price of a session over UDP or TCP
	// (package session), and its share of the memory that sessionMemory reserves for other purposes.
	memoryPerSession = 64 << 10
	// processMemory is the memory of a process without clients.
	processMemory = 8 << 20
	// gcPercent is the GOGC of the process: by how many percent of the live heap the heap grows until the next
	// collection. Compared with the default of 100, a burst of allocations uses about 15 % less CPU time, and an
	// allocation about 5 % more memory.
	gcPercent = 200
	// maxTable is the largest table of file descriptors that is allocated at the start, with 8 bytes for each
	// descriptor.
	maxTable = 1 << 18
	// cgroups is the mount point of the cgroup file system.
	cgroups = "/sys/fs/cgroup"
)

// tuneGC sets gcPercent, and the limit of the garbage collector to 90 % of the limit of the cgroup, at which the kernel
// kills the process. GOGC and GOMEMLIMIT take precedence.
func tuneGC(limit int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// capacity returns the number of clients for which file descriptors and memory suffice, and which of the two is the
// limit. The argument memory is in bytes; 0 means no limit. The server refuses more clients, so that the admitted
// clients are not affected.
func capacity(memory int64) (limit int, by string) {
	limit = math.MaxInt
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur < math.MaxInt32 {
		limit = max(int(files.Cur)-int(files.Cur)/clientFiles-reservedFiles, 1)
		by = fmt.Sprintf("%d file descriptors (ulimit -n)", files.Cur)
	}
	if places := int(memory / memoryPerSession); memory > 0 && places < limit {
		limit, by = max(places, 1), fmt.Sprintf("a memory limit of %d MiB", memory>>20)
	}
	return limit, by
}

// sessionMemory returns how much of a memory limit sessions and connections may use, in bytes; 0 means no limit. A
// quarter of the limit is for the garbage collector and for the buffers of sockets.
func sessionMemory(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	return max(limit/4*3-processMemory, limit/4)
}

// growFiles makes room for the sockets of a number of clients, at most two each, in the table of file descriptors. When
// a process with threads opens a descriptor for which the table has no room, the kernel waits for all processors before
// it replaces the table. The replacement takes milliseconds, at 64, 256, 512 descriptors and so on, and during that
// time the reader that opens the socket does not read the datagrams of other clients.
func growFiles(clients int) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read limit of file descriptors: %w", err)
	}
	size := int(min(files.Cur, maxTable))
	if clients < size/2 {
		size = min(size, 2*clients+reservedFiles)
	}
	// A descriptor of any file is sufficient. No other goroutine can close this file.
	last, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a file to grow the table of file descriptors: %w", err)
	}
	highest, err := unix.FcntlInt(uintptr(last), unix.F_DUPFD_CLOEXEC, size-1)
	if err == nil {
		err = unix.Close(highest)
	}
	return errors.Join(err, unix.Close(last))
}

// allocations returns the maximum number of allocations for a capacity and a number of relay ports of all address
// families. If ports is 0, the ports do not limit it.
func allocations(capacity, ports int) int {
	if ports > 0 {
		return min(capacity, ports)
	}
	return capacity
}

// memoryLimit returns the memory limit of the cgroup of the process in bytes; 0 if there is none. root is the mount
// point of the cgroup file system.
func memoryLimit(root string) int64 {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err == nil && n > 0 && n < math.MaxInt64/2 {
			return n
		}
	}
	return 0
}
