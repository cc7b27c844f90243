package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stateVariable tells a dataplane where it keeps its last good config. No two processes may share that folder, and so the variable tells
// whose dataplane a process is: after a crash of the operator, and also when somebody has started it again by hand.
const stateVariable = "STUNNER_STATE_DIR"

// addressVariable tells a dataplane its relay address.
const addressVariable = "STUNNER_ADDR"

// relaysVariable tells a dataplane which ports relays may have.
const relaysVariable = "STUNNER_RELAY_PORTS"

// orphan is a process that an earlier operator left running.
type orphan struct {
	pid     int
	since   time.Time
	command command
}

// orphans finds the processes of a program that keep their state below a folder, by the name of their folder.
func orphans(program, below string) (map[string]orphan, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("find running dataplanes: %w", err)
	}
	found := map[string]orphan{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		o, ok := inspect(pid)
		name := filepath.Base(o.stateDir())
		if !ok || filepath.Base(o.command.Path) != filepath.Base(program) || o.stateDir() != filepath.Join(below, name) {
			continue
		}
		o.command.Name = name
		found[name] = o
	}
	return found, nil
}

// inspect reads what a process of this user was started with; false for one that has ended or is not ours to look at.
func inspect(pid int) (o orphan, ok bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var owner syscall.Stat_t
	if syscall.Stat(dir, &owner) != nil || int(owner.Uid) != os.Getuid() {
		return o, false
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	args, argsErr := readList(filepath.Join(dir, "cmdline"))
	env, envErr := readList(filepath.Join(dir, "environ"))
	if err != nil || argsErr != nil || envErr != nil || len(args) == 0 {
		return o, false
	}
	env = slices.DeleteFunc(env, func(entry string) bool { return !strings.HasPrefix(entry, "STUNNER_") })
	// A program that was built anew shows as deleted.
	return orphan{pid: pid, since: startOf(dir), command: command{Path: strings.TrimSuffix(exe, " (deleted)"), Args: args[1:], Env: env}}, true
}

// readList reads a file of strings that end in zero bytes.
func readList(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

func (o orphan) stateDir() string { return variable(o.command.Env, stateVariable) }

// startOf reads when a process was started: proc(5) counts in hundredths of a second since boot. The zero time says that it is not known.
func startOf(dir string) time.Time {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return time.Time{}
	}
	// The second field is the name in parentheses and may hold anything; the time is the 22nd.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var now unix.Sysinfo_t
	if len(fields) < 20 || unix.Sysinfo(&now) != nil {
		return time.Time{}
	}
	hundredths, _ := strconv.ParseInt(string(fields[19]), 10, 64)
	booted := time.Now().Add(-time.Duration(now.Uptime) * time.Second)
	return booted.Add(time.Duration(hundredths) * 10 * time.Millisecond).Truncate(time.Second)
}

// watchEnd returns a channel that gets a message when a process ends that is not our child, until leave is closed.
func watchEnd(o orphan, leave <-chan struct{}) (<-chan string, error) {
	fd, err := unix.PidfdOpen(o.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", o.pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if now, ok := inspect(o.pid); err != nil || !ok || now.stateDir() != o.stateDir() {
		file.Close()
		return nil, fmt.Errorf("watch process %d: it has ended", o.pid)
	}
	exit, over := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(over)
		// A pidfd becomes readable when its process ends. Closing the file ends the wait with an error.
		if raw.Read(func(fd uintptr) bool { return readable(int(fd)) }) == nil {
			exit <- "unknown, because an earlier operator had started it"
		}
	}()
	go func() {
		select {
		case <-leave:
		case <-over:
		}
		file.Close()
	}()
	return exit, nil
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// environment is what a dataplane inherits: everything but settings of the product.
func environment() (env []string) {
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "STUNNER_") {
			env = append(env, entry)
		}
	}
	return env
}
