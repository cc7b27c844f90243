package host

import (
	"bytes"
	"errors"
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

// stateVariable is the environment variable with the folder of a dataplane's last good config. Each Gateway has a
// folder of its own, so the variable shows to which Gateway a running process belongs, even if a user started the
// process.
const stateVariable = "STUNNER_STATE_DIR"

// addressVariable is the environment variable with the relay addresses of a dataplane.
const addressVariable = "STUNNER_ADDR"

// relaysVariable is the environment variable with the range of ports that a dataplane may use for relay sockets.
const relaysVariable = "STUNNER_RELAY_PORTS"

// superviseVariable is the environment variable that makes a dataplane run as a supervisor and its child.
// supervisorVariable is set in the environment of the child only.
const (
	superviseVariable  = "STUNNER_SUPERVISE"
	supervisorVariable = "STUNNER_SUPERVISOR"
)

// orphan is a running dataplane process that a previous operator process started: the supervisor, or the dataplane
// itself if it has no supervisor.
type orphan struct {
	pid     int
	since   time.Time
	command command
	// program is the file that the dataplane itself executes, which may differ from the file of its supervisor.
	program os.FileInfo
	// bound are the ports of the sockets of the dataplane itself.
	bound map[Port]bool
}

// Port is a port of a network, udp or tcp.
type Port struct {
	Network string
	Number  int
}

// orphans finds the running processes whose executable has the file name of a program, in any folder, and whose state
// folder is a subfolder of below. The keys of the result are the names of the state folders. Children of supervisors
// are not returned.
func orphans(program, below string) (map[string]orphan, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("find running dataplanes: %w", err)
	}
	found, children := map[string]orphan{}, map[string]orphan{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		o, ok := inspect(pid)
		name := filepath.Base(o.stateDir())
		if !ok || filepath.Base(o.command.Path) != filepath.Base(program) ||
			o.stateDir() != filepath.Join(below, name) {
			continue
		}
		o.command.Name = name
		if variable(o.command.Env, supervisorVariable) != "" {
			children[name] = o
			continue
		}
		found[name] = o
	}
	for name, o := range found {
		pid := o.pid
		if child, ok := children[name]; ok {
			o.program, pid = child.program, child.pid
		}
		o.bound = boundPorts(filepath.Join("/proc", strconv.Itoa(pid)))
		found[name] = o
	}
	return found, nil
}

// inspect reads the command line and the environment of a process. It returns false if the process has ended or belongs
// to another user.
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
	// Linux appends the suffix " (deleted)" to the path of an executable file that was replaced.
	program, _ := os.Stat(filepath.Join(dir, "exe"))
	return orphan{pid: pid, since: startOf(dir), program: program, command: command{
		Path: strings.TrimSuffix(exe, " (deleted)"), Args: args[1:], Env: env,
	}}, true
}

// boundPorts returns the ports to which a process has bound sockets. dir is the folder of the process in /proc.
func boundPorts(dir string) map[Port]bool {
	entries, _ := os.ReadDir(filepath.Join(dir, "fd"))
	own := map[string]bool{} // links to sockets contain their inodes
	for _, e := range entries {
		link, _ := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		own[link] = true
	}
	bound := map[Port]bool{}
	for _, table := range []string{"udp", "udp6", "tcp", "tcp6"} {
		data, _ := os.ReadFile(filepath.Join(dir, "net", table))
		for line := range strings.Lines(string(data)) {
			// Field 1 is the local address and the port in hexadecimal digits, field 9 the inode.
			fields := strings.Fields(line)
			if len(fields) < 10 || !own["socket:["+fields[9]+"]"] {
				continue
			}
			_, digits, _ := strings.Cut(fields[1], ":")
			if number, err := strconv.ParseUint(digits, 16, 16); err == nil {
				bound[Port{strings.TrimSuffix(table, "6"), int(number)}] = true
			}
		}
	}
	return bound
}

// readList reads a file that contains zero-terminated strings.
func readList(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

func (o orphan) stateDir() string { return variable(o.command.Env, stateVariable) }

// startOf returns the start time of a process; the zero time if it is unknown. dir is the folder of the process in
// /proc. proc(5) gives the start time in clock ticks since boot, which are hundredths of a second.
func startOf(dir string) time.Time {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return time.Time{}
	}
	// In /proc/PID/stat, the second field is the name of the process in parentheses, which may contain any character.
	// The start time is field 22.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var now unix.Sysinfo_t
	if len(fields) < 20 || unix.Sysinfo(&now) != nil {
		return time.Time{}
	}
	hundredths, _ := strconv.ParseInt(string(fields[19]), 10, 64)
	booted := time.Now().Add(-time.Duration(now.Uptime) * time.Second)
	return booted.Add(time.Duration(hundredths) * 10 * time.Millisecond).Truncate(time.Second)
}

// watchEnd watches a process that is not a child of this process. The returned channel receives a message when the
// process ends. Closing leave ends the watch. The returned handle refers to this process, even if its id is used again.
func watchEnd(o orphan, leave <-chan struct{}) (<-chan string, *os.Process, error) {
	fd, err := unix.PidfdOpen(o.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("watch process %d: %w", o.pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, connErr := file.SyscallConn()
	handle, err := os.FindProcess(o.pid)
	// inspect follows both handles: if the id still belongs to the dataplane, both handles refer to it.
	if now, ok := inspect(o.pid); errors.Join(connErr, err) != nil || !ok || now.stateDir() != o.stateDir() {
		file.Close()
		return nil, nil, fmt.Errorf("watch process %d: it has ended", o.pid)
	}
	exit, over := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(over)
		// A pidfd becomes readable when its process ends. Closing the pidfd ends the wait with an error.
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
	return exit, handle, nil
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// environment returns the environment variables of the operator that dataplanes inherit. The variables with settings of
// the operator are removed.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "STUNNER_") })
}
