package main

import (
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor ends if its child has crashed maxCrashes times within crashWindow, so that kubelet restarts the
// container with its own delays.
const (
	maxCrashes  = 3
	crashWindow = 30 * time.Second
)

// supervisorMemory is the memory limit of the supervisor's garbage collector.
const supervisorMemory = 4 << 20

// supervisorVariable is set in the environment of a supervised process. Its value is the process id of the supervisor.
const supervisorVariable = "STUNNER_SUPERVISOR"

// ending are the signals after which the supervisor does not start its child again. restarting are the other signals
// that it passes to the child.
var (
	ending     = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
	restarting = []os.Signal{syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
)

// isSupervised reports whether the parent of this process is its supervisor.
func isSupervised() bool { return os.Getenv(supervisorVariable) == strconv.Itoa(os.Getppid()) }

// endWithSupervisor makes the kernel kill this process when its supervisor ends. The kernel drops the setting of
// the supervisor if the program file has capabilities (prctl(2), PR_SET_PDEATHSIG).
func endWithSupervisor() {
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	if !isSupervised() { // the supervisor ended before the call
		os.Exit(exitFailed)
	}
}

// supervisor is the parent process of stunnerd with --supervise. It restarts its child when a signal or a panic has
// ended it. The container does not end meanwhile, so the pod stays ready and keeps its conntrack entries, and the next
// child continues the sessions.
type supervisor struct {
	log     *slog.Logger
	program string
	// child is the process id of the running child; 0 if none is running.
	child   int
	ending  bool        // no further child is started
	crashes []time.Time // within crashWindow
	signals chan os.Signal
	ended   chan os.Signal // SIGCHLD
}

// supervise runs the program of this process as a child until the child ends by itself, crashes too often or ends after
// a signal that ends stunnerd. It returns the exit code of the last child.
func supervise(log *slog.Logger) int {
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts the child
	s := &supervisor{log: log, program: program(), signals: make(chan os.Signal, 16), ended: make(chan os.Signal, 1)}
	signal.Notify(s.ended, syscall.SIGCHLD)
	for _, sig := range slices.Concat(ending, restarting) {
		if !signal.Ignored(sig) { // nohup(1) makes the process ignore SIGHUP
			signal.Notify(s.signals, sig)
		}
	}
	debug.SetGCPercent(10)
	debug.SetMemoryLimit(supervisorMemory)
	for {
		var err error
		if s.child, err = s.start(); err != nil {
			log.Error("cannot start stunnerd", "program", s.program, "error", err)
			return exitFailed
		}
		debug.FreeOSMemory()
		status := s.wait()
		if s.last(status) {
			return exitCode(status)
		}
	}
}

// program returns the path from which this process was started, which may lead to another file after an upgrade. A
// symbolic link is not followed, because an upgrade may replace the link.
func program() string {
	path, _ := exec.LookPath(os.Args[0])
	named, namedErr := os.Stat(path)
	own, ownErr := os.Stat("/proc/self/exe")
	if namedErr == nil && ownErr == nil && os.SameFile(named, own) {
		if path, err := filepath.Abs(path); err == nil {
			return path
		}
	}
	path, _ = os.Executable()
	return path
}

// start starts a child in a process group of its own, so that Ctrl-C reaches only the supervisor: for the child, a
// second signal ends draining. If the program cannot be started, for example because an upgrade is replacing it, the
// child runs the program of the supervisor.
func (s *supervisor) start() (int, error) {
	env := append(os.Environ(), supervisorVariable+"="+strconv.Itoa(os.Getpid()))
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Setpgid: true,
	}}
	child, err := syscall.ForkExec(s.program, os.Args, attr)
	if err != nil {
		s.log.Warn("cannot start the program, start that of the supervisor", "program", s.program, "error", err)
		child, err = syscall.ForkExec("/proc/self/exe", os.Args, attr)
	}
	return child, err
}

// wait passes signals on to the child until the child has ended, and returns how it ended. It also reaps other
// processes, because the supervisor is process 1 of the container. Signals are sent and children reaped in one
// goroutine, so that no signal reaches another process that has got the id of the child.
func (s *supervisor) wait() (how syscall.WaitStatus) {
	for s.child != 0 {
		select {
		case sig := <-s.signals:
			s.received(sig)
		case <-s.ended:
			for {
				var status syscall.WaitStatus
				pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
				if pid == s.child {
					how, s.child = status, 0
				}
				if pid <= 0 && err != syscall.EINTR {
					break
				}
			}
		}
	}
	for { // a SIGTERM that arrives together with the end of the child ends the supervisor too
		select {
		case sig := <-s.signals:
			s.received(sig)
		default:
			return how
		}
	}
}

// received records a signal and passes it to the child. A child that drains is not restarted.
func (s *supervisor) received(sig os.Signal) {
	s.ending = s.ending || slices.Contains(ending, sig)
	if s.child != 0 && !(s.ending && sig == syscall.SIGUSR2) {
		_ = syscall.Kill(s.child, sig.(syscall.Signal))
	}
}

// last reports whether the supervisor ends too after its child has ended with a status. After a panic, the Go runtime
// exits with exitCrashed. A wrong command line has the same exit code, but ends the supervisor before it starts a
// child.
func (s *supervisor) last(status syscall.WaitStatus) bool {
	crashed := status.Signaled() || status.ExitStatus() == exitCrashed
	if s.ending || !crashed && status.ExitStatus() != exitReplaced {
		return true
	}
	if !crashed {
		s.log.Info("stunnerd is replaced", "program", s.program)
		return false
	}
	now := time.Now()
	s.crashes = append(slices.DeleteFunc(s.crashes, func(t time.Time) bool { return now.Sub(t) > crashWindow }), now)
	if len(s.crashes) >= maxCrashes {
		s.log.Error("stunnerd crashed repeatedly, give up", "crashes", len(s.crashes), "within", crashWindow,
			"status", exitCode(status))
		return true
	}
	s.log.Error("stunnerd crashed, start it again", "status", exitCode(status), "crashes", len(s.crashes))
	return false
}

// exitCode returns the exit code of a process that has ended, and for a signal 128 and its number, as shells do.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
