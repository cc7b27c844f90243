package offload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// object is a BPF object of the kernel: a prog, map or link.
type object struct {
	kind string
	id   uint32
	size int // of a value of a map
}

type objects []object

// objectsOf returns the BPF objects to which a process has file descriptors.
func objectsOf(t *testing.T, pid int) (all objects) {
	t.Helper()
	for _, fields := range files(t, pid) {
		for kind := range nextID {
			if id := fields[kind+"_id"]; id > 0 {
				all = append(all, object{kind, uint32(id), fields["value_size"]})
			}
		}
	}
	return all
}

// runs returns how often the kernel has run the programs of TC. It counts only after bpf.Statistics.
func (g *gateway) runs() (n int) {
	g.t.Helper()
	for _, fields := range files(g.t, g.PID()) {
		if fields["prog_type"] == unix.BPF_PROG_TYPE_SCHED_CLS {
			n += fields["run_cnt"]
		}
	}
	return n
}

// files returns the fields of /proc/PID/fdinfo of all file descriptors of a process. Fields that are not numbers are 0.
func files(t *testing.T, pid int) (all []map[string]int) {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	harnesstest.NoError(t, err)
	for _, name := range names {
		text, _ := os.ReadFile(name) // the descriptor may be closed meanwhile
		fields := map[string]int{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			fields[key], _ = strconv.Atoi(strings.TrimSpace(value))
		}
		all = append(all, fields)
	}
	return all
}

// nextID is the commands of bpf(2) that list objects, as `bpftool KIND list` does.
var nextID = map[string]uintptr{
	"prog": unix.BPF_PROG_GET_NEXT_ID, "map": unix.BPF_MAP_GET_NEXT_ID, "link": unix.BPF_LINK_GET_NEXT_ID,
}

// byID is the part of union bpf_attr (linux/bpf.h) for commands about identifiers.
type byID struct{ id, next, _ uint32 }

// exists reports whether the kernel lists an object. It does not open the object.
func (o object) exists() (bool, error) {
	a := &byID{id: o.id - 1}
	_, err := bpf.Call(nextID[o.kind], a)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return a.next == o.id, err
}

// gone waits until the kernel has freed the objects, which it does some time after their last use.
func (g *gateway) gone(all objects) {
	g.t.Helper()
	kinds := map[string]int{}
	for _, o := range all {
		kinds[o.kind]++
	}
	if len(kinds) < len(nextID) {
		g.t.Errorf("stunnerd had only the objects %v", all)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx, func(context.Context) error {
		for _, o := range all {
			switch left, err := o.exists(); {
			case err != nil:
				return fmt.Errorf("look for %s %d: %w", o.kind, o.id, err)
			case left:
				return fmt.Errorf("%s %d is left", o.kind, o.id)
			}
		}
		return nil
	}); err != nil {
		g.t.Error(err)
	}
}

const slotSize = 256

// times returns the ends of the first binding and of its permission, by CLOCK_MONOTONIC: the first two fields of struct
// slot in services/stunnerd/internal/offload/bpf/turn.c.
func (g *gateway) times() (until, permitted time.Duration) {
	g.t.Helper()
	for _, o := range g.objects {
		if o.kind != "map" || o.size != slotSize {
			continue
		}
		fd, err := bpf.Call(unix.BPF_MAP_GET_FD_BY_ID, &byID{id: o.id})
		harnesstest.NoError(g.t, err)
		defer unix.Close(fd)
		key, value := make([]byte, 4), make([]byte, slotSize)
		_, err = bpf.Call(unix.BPF_MAP_LOOKUP_ELEM, &struct {
			fd         uint64
			key, value uintptr
			flags      uint64
		}{fd: uint64(fd), key: uintptr(unsafe.Pointer(&key[0])), value: uintptr(unsafe.Pointer(&value[0]))})
		runtime.KeepAlive(key)
		runtime.KeepAlive(value)
		harnesstest.NoError(g.t, err)
		return time.Duration(binary.NativeEndian.Uint64(value)), time.Duration(binary.NativeEndian.Uint64(value[8:]))
	}
	g.t.Fatalf("stunnerd has no map of slots: %v", g.objects)
	return 0, 0
}
