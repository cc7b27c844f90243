package main

import (
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
	// reservedFiles are descriptors for everything that is no relay: listeners, connections to the config source, probes.
	reservedFiles = 200
	// clientFiles is the part of the descriptors that are sockets for one client: half of those in which clients get one.
	clientFiles = 2 * listener.OwnShare
	// memoryPerSession is a generous estimate of what an allocation costs, kernel memory included.
	memoryPerSession = 64 << 10
	// cgroups is where the limits of a container are to be read.
	cgroups = "/sys/fs/cgroup"
)

// respectMemory makes the garbage collector work harder before the kernel ends the process, unless the environment says otherwise.
func respectMemory(limit int64) {
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// capacity is how many clients with an allocation this process can carry before it runs out of descriptors or memory; a client beyond that is
// told so instead of dragging the others down. memory is in bytes, 0 for no limit.
func capacity(memory int64) int {
	limit := math.MaxInt
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur < math.MaxInt32 {
		limit = max(int(files.Cur)-int(files.Cur)/clientFiles-reservedFiles, 1)
	}
	if memory > 0 {
		limit = min(limit, int(memory/memoryPerSession))
	}
	return limit
}

// allocations is how many allocations a process of a capacity can have with so many relay ports, of all address families; 0 ports are no limit.
func allocations(capacity, ports int) int {
	if ports > 0 {
		return min(capacity, ports)
	}
	return capacity
}

// memoryLimit is the limit of the process's cgroup in bytes, 0 when there is none. root is where cgroups are mounted.
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
